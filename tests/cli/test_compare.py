"""strata compare as a user meets it, and the records of every command."""

import hashlib
import json
import signal
import subprocess
import time

import pytest

from support import STRATA, TINY, home, strata  # noqa: F401 (home is a fixture)


def test_compare_resumes_and_reports(home):
    args = ["compare", "--attentions", "flat", "hkt:levels=2", "--seeds", "2", *TINY[:-2], "--epochs", "6", "--folder", "cmp", "--jobs", "2"]
    running = subprocess.Popen([STRATA, *args], stderr=subprocess.PIPE, text=True)
    while not (home / "cmp/flat-seed1/metrics.jsonl").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    assert "the same command continues" in running.communicate(timeout=60)[1] and running.returncode == 130
    table = strata(*args)
    assert "hkt:levels=2" in table and "1.2500x" in table
    results = json.load(open(home / "cmp/results.json"))
    first = json.load(open(home / "cmp/flat-seed1/result.json"))
    assert results["attentions"][0]["scores"][0] == pytest.approx(100 * first["test"]["accuracy"])
    assert len(results["pairs"]) == 1 and (home / "cmp/results.md").exists()
    assert len(open(home / "cmp/results.csv").readlines()) == 5
    assert json.loads(strata(*args, "--json")) == results  # nothing is run again
    assert "seeds is 2 there and 3 here" in strata(*[{"2": "3"}.get(a, a) if args[i - 1] == "--seeds" else a for i, a in enumerate(args)], code=4)


def test_compare_stops_when_its_minutes_are_over(home):
    args = ["compare", "--attentions", "flat", "hkt", "--seeds", "1", *TINY[:-2], "--epochs", "6", "--folder", "cmp", "--jobs", "1"]
    message = strata(*args, "--minutes", "0.001", code=130)
    assert "0.001 minutes are over" in message and "the same command continues" in message
    plan = json.load(open(home / "cmp/compare.json"))
    del plan["options"]["tokens"]  # as if it came from before there was this option
    (home / "cmp/compare.json").write_text(json.dumps(plan))
    assert "validation" in strata(*args)
    assert "holds another comparison (/options/batch" in strata(*args, "--batch", "33", code=4)


def test_compare_searches_learning_rates(home):
    """Each attention takes the rate that is best on the validation rows after half of the steps; a run that diverges is the worst."""
    args = ["compare", "--attentions", "flat", "hkt:learning_rate=1e-3", "--seeds", "2", *TINY[:-2], "--epochs", "2", "--folder", "cmp", "--search-rates",
            "1e-3", "2e-3", "10", "--weight-decay", "10"]
    assert "after a search: learning rates 0.001, 0.002, 10" in strata(*args, "--dry-run")
    text = strata(*args)
    results = json.load(open(home / "cmp/results.json"))
    assert [one["name"] for one in results["search"]["attentions"]] == ["flat"], "hkt has a rate of its own"
    found = results["search"]["attentions"][0]
    tried = {one["learning_rate"]: one["valid"] for one in found["tried"]}
    assert tried[10.0] is None
    folders = sorted(path.name for path in (home / "cmp/search").iterdir())
    assert len(folders) == len(tried) and "flat-learning_rate=0.001-seed1" in folders
    for rate, valid in tried.items():
        folder = home / f"cmp/search/flat-learning_rate={rate:g}-seed1"
        if valid is None:
            assert "the loss is not finite" in json.load(open(folder / "diverged.json"))["message"]
            continue
        run = json.load(open(folder / "result.json"))
        assert run["steps"] == 16 and valid == pytest.approx(100 * run["valid"]["accuracy"])
    began = min(json.load(open(run / "run.json"))["started"] for run in (home / "cmp/search").iterdir())
    assert results["record"]["started"] == began, "the search is a part of the comparison"
    best = max(valid for valid in tried.values() if valid is not None)
    assert found["learning_rate"] == min(rate for rate, valid in tried.items() if valid == best)
    options = [json.load(open(home / f"cmp/{name}-seed2/run.json"))["options"] for name in ("flat", "hkt-learning_rate=1e-3")]
    assert [one["learning_rate"] for one in options] == [found["learning_rate"], 1e-3] and options[0]["steps"] == 0
    assert f"learning rate of flat: {found['learning_rate']:g}" in text and "learning rate of flat" in (home / "cmp/results.md").read_text()
    assert json.loads(strata(*args, "--json")) == results, "nothing is run again"
    assert "/search" in strata(*args[:-5], "1e-3", "2e-3", *args[-2:], code=4)
    assert "expected at least two" in strata("compare", "--search-rates", "1e-3", code=2)
    assert "--search-part: expected --search-rates beside it" in strata("compare", "--search-part", "0.3", code=2)
    assert "--search-rates: expected an attention without a learning rate of its own, got hkt:learning_rate=1e-3" in strata(
        "compare", "--attentions", "hkt:learning_rate=1e-3", "--search-rates", "1e-3", "2e-3", code=2)


def test_compare_says_which_run_failed(home):
    message = strata("compare", *TINY[:-2], "--attentions", "flat", "hkt:heads=3", "--seeds", "1", "--folder", "cmp", code=2)
    assert "hkt:heads=3, seed 1 failed" in message and "multiple of heads" in message


def test_every_command_leaves_its_record(home):
    """Options, versions, machine, digests of the data, start and end: by `train`, by runs of `compare`, by `inspect` and `eval`."""
    rows = "".join(f"{'good' if i % 2 else 'bad'}\tfilm {i}\n" for i in range(60))
    (home / "t.tsv").write_text("label\ttext\n" + rows)
    task = ["--task", "table", "--data", "t.tsv", "--model-size", "8", "--heads", "2", "--epochs", "1", "--batch", "16"]
    strata("train", *task, "--folder", "run", "--quiet")
    strata("compare", "--attentions", "flat", "hsa", "--seeds", "2", "--seed", "5", *task, "--folder", "cmp", "--quiet")
    inspected = json.loads(strata("inspect", "run", "--samples", "2", "--json", "--quiet"))
    evaluated = json.loads(strata("eval", "run", "--json"))
    digest = hashlib.sha256((home / "t.tsv").read_bytes()).hexdigest()
    entry = {"path": str(home / "t.tsv"), "bytes": (home / "t.tsv").stat().st_size, "sha256": digest}
    info = json.loads(strata("info", "--json"))
    records = [json.load(open(home / "run/run.json")), json.load(open(home / "cmp/flat-seed5/run.json")), inspected["record"], evaluated["record"]]
    assert [record["command"] for record in records] == ["train", "train", "inspect", "eval"]
    for record in records:
        assert record["versions"] == {"strata": info["strata"], "torch": info["torch"], "instruction_set": info["instruction_set"]}
        assert record["machine"]["cpu"] == info["cpu"] and record["machine"]["device"] == "cpu"
        assert entry in record["data"] and record["started"] <= record["finished"] and record["started"].endswith("Z")
        assert record["options"]
    model = hashlib.sha256((home / "run/best.safetensors").read_bytes()).hexdigest()
    assert [file["sha256"] for file in evaluated["record"]["data"]] == [digest, model]
    compared = json.load(open(home / "cmp/results.json"))["record"]
    assert compared["command"] == "compare" and compared["data"] == [entry] and len(compared["computed_on"]) == 1
    assert compared["started"] <= compared["finished"]
    seeds = [line.split(",")[1] for line in open(home / "cmp/results.csv").readlines()[1:]]
    assert seeds == ["5", "6", "5", "6"]
