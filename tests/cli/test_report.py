"""The HTML reports as files: what is in them, what is named when parts are missing, and what cannot break them."""
import json
import re
import shutil

import pytest

from support import TINY, strata


def bench_figures():
    """A file as `strata bench --json` writes it, of made-up kernels."""
    flops, rate = 2.0e11, 2.5e10
    kernels = {}
    for n in range(9):
        seconds, work, moved = 0.01 * (n + 1), 1.0e8 * 4**n, 2.0e7 * (n + 1)
        floor = max(work / flops, moved / rate)
        kernels[f"{'hkt' if n % 2 else 'hsa'}_cpu_kernel_{n}"] = {
            "milliseconds": 1e3 * seconds, "flops": work, "bytes": moved, "floor_milliseconds": 1e3 * floor, "share": floor / seconds,
            "flops_per_byte": work / moved, "teraflops": 1e-12 * work / seconds}
    roof = [{"flops_per_byte": x, "teraflops": 1e-12 * min(flops, x * rate)} for x in (1.0, flops / rate, 1000.0)]
    return {**{name: 1.5 + n for n, name in enumerate(kernels)}, "bars": {"hsa_cpu_kernel_0": "<= 1.20"},
            "roofline": {"kernels": kernels, "flops_per_second": flops, "bytes_per_second": rate, "roof": roof},
            "record": {"command": "bench", "options": {"threads": 2, "rounds": 7}, "versions": {"torch": "1.13.0", "instruction_set": "avx512"},
                       "machine": {"cpu": "AMD EPYC", "device": "cpu"}, "finished": "2026-11-17T14:51:44Z"}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run that was tracked and inspected, a comparison, and an injection; not to be changed."""
    root = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        strata("train", *TINY, "--attention", "hkt", "--every-epoch", "--folder", root / "run")
        strata("inspect", root / "run", "--samples", 8, "--quiet")
        strata("eval", root / "run", "--output", root / "eval.json")
        (root / "bench.json").write_text(json.dumps(bench_figures()))
        strata("report", root)
        strata("compare", *TINY, "--attentions", "flat", "hsa", "--seeds", 2, "--steps", 8, "--log-every", 2, "--folder", root / "compare",
               "--quiet")
        # Inspection wants the data, so that it is made while the cache is still known.
        strata("inspect", root / "compare/hsa-seed1", "--samples", 4, "--quiet")
        (root / "test.tsv").write_text("label\ttext\n7\t[MAX 2 7 [MIN 4 1 ] 0 ]\n2\t[MIN 2 [MAX 9 3 ] 5 6 ]\n3\t[MED 1 3 5 ]\n")
        strata("inject", root / "compare/flat-seed1", "--test", root / "test.tsv", "--budget", 1, "--cut", 0.1, "--lengths", "8,16", "--folder",
               root / "inject", "--quiet")
    return root


def page(path):
    """The data inside a page."""
    html = path.read_text()
    assert len(html) < 3e6
    found = re.search(r'<script type="application/json" id="page">(.*?)</script>', html, re.DOTALL)
    return json.loads(found[1])


def lines(path):
    return [json.loads(line) for line in open(path)]


def test_pages_hold_what_the_files_hold(folders):
    inspect = page(folders / "run/inspect.html")
    assert inspect["kind"] == "inspect" and inspect["problems"] == []
    assert inspect["inspect"] == json.load(open(folders / "run/inspect.json"))
    assert inspect["metrics"] == lines(folders / "run/metrics.jsonl")
    run = page(folders / "run/report.html")
    assert run["kind"] == "train" and run["problems"] == []
    assert run["result"] == json.load(open(folders / "run/result.json"))
    assert run["options"] == json.load(open(folders / "run/run.json"))["options"]
    measured = page(folders / "bench.html")
    assert measured["kind"] == "bench" and measured["bench"] == bench_figures()
    tested = page(folders / "eval.html")
    assert tested["kind"] == "eval" and tested["eval"] == json.load(open(folders / "eval.json"))
    inject = page(folders / "inject/inject.html")
    assert inject["kind"] == "inject" and inject["inject"] == json.load(open(folders / "inject/inject.json"))
    compare = page(folders / "compare/report.html")
    assert compare["kind"] == "compare" and compare["problems"] == []
    assert compare["results"] == json.load(open(folders / "compare/results.json"))
    assert [one["name"] for one in compare["runs"]] == ["flat-seed1", "flat-seed2", "hsa-seed1", "hsa-seed2"]
    for one in compare["runs"]:
        result = json.load(open(folders / "compare" / one["name"] / "result.json"))
        for part in ("classes", "confusion", "worst"):  # which the page of the run shows
            del result["test"][part]
        assert one["result"] == result
        assert one["metrics"] == lines(folders / "compare" / one["name"] / "metrics.jsonl")


def test_pages_use_no_network(folders):
    for path in folders.glob("**/*.html"):
        assert not re.search(r'(src|href)="(https?:)?//', path.read_text())


def test_tracking_during_training(folders):
    course = lines(folders / "run/metrics.jsonl")
    weights = [line for line in course if line["kind"] == "weights"]
    tests = [line for line in course if line["kind"] == "gaussianity"]
    assert [line["epoch"] for line in weights] == [line["epoch"] for line in tests] == [0, 1, 2]
    for line in weights:
        for layer in line["layers"]:
            assert len(layer) == 2 and all(sum(head) == pytest.approx(1, abs=1e-6) and len(head) == 3 for head in layer)
    assert weights[0]["layers"][0][0] == pytest.approx([1 / 3] * 3) and weights[2]["layers"] != weights[0]["layers"]
    fine = tests[2]["layers"][0][0][0]
    assert fine["tested"] > 0 and 0 < fine["kurtosis"] <= fine["ceiling"] and "quantiles" not in fine


def test_examples_are_attention(folders):
    for folder, levels in [("run", 3), ("compare/hsa-seed1", 0)]:
        for example in json.load(open(folders / folder / "inspect.json"))["examples"]:
            tokens = len(example["tokens"])
            assert example["block"] == 1 and tokens <= 64 and example["tokens"][0].startswith("[")
            for layer in example["layers"]:
                for head in layer:
                    assert len(head["attention"]) == tokens
                    assert all(sum(row) == pytest.approx(1, abs=1e-2) and min(row) >= 0 for row in head["attention"])
                    assert [len(level) for level in head["levels"]] == [(tokens + 2**l - 1) // 2**l for l in range(levels)]
    assert example["tree"]["child_begin"][-1] == len(example["tree"]["children"])


def test_rebuilding_gives_the_same_page(folders, tmp_path):
    shutil.copytree(folders / "run", tmp_path / "run")
    before = [(tmp_path / "run" / name).read_bytes() for name in ("inspect.html", "report.html")]
    (tmp_path / "run/inspect.html").unlink()
    assert "inspect.html" in strata("report", tmp_path / "run")
    assert [(tmp_path / "run" / name).read_bytes() for name in ("inspect.html", "report.html")] == before


def test_a_comparison_writes_the_missing_page_of_a_run(folders, tmp_path):
    shutil.copytree(folders / "compare", tmp_path / "compare")
    (tmp_path / "compare/flat-seed1/report.html").unlink()
    strata("report", tmp_path / "compare")
    assert page(tmp_path / "compare/flat-seed1/report.html")["kind"] == "train"


def test_missing_and_damaged_parts_are_named(folders, tmp_path):
    shutil.copytree(folders / "compare", tmp_path / "compare")
    (tmp_path / "compare/flat-seed1/result.json").unlink()
    (tmp_path / "compare/flat-seed2/metrics.jsonl").unlink()
    with open(tmp_path / "compare/hsa-seed1/metrics.jsonl", "a") as file:
        file.write('{"kind": 7, "step": "x"}\n{"kind": "tra')
    (tmp_path / "compare/results.json").write_text('{"attentions": [')
    out = strata("report", tmp_path / "compare")
    for part in ("flat-seed1/result.json is missing", "flat-seed2/metrics.jsonl is missing", "hsa-seed1/metrics.jsonl: 1 damaged",
                 "compare/results.json is damaged"):
        assert part in out and any(part in problem for problem in page(tmp_path / "compare/report.html")["problems"])
    (tmp_path / "compare/compare.json").write_text("[]")
    strata("report", tmp_path / "compare")
    assert len(page(tmp_path / "compare/report.html")["runs"]) == 4  # as found


def test_an_unfinished_run_has_a_report(folders, tmp_path):
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    assert "the run is not finished" in strata("report", tmp_path / "run")


def test_text_cannot_leave_its_place(folders, tmp_path):
    (tmp_path / "run").mkdir()
    data = json.load(open(folders / "run/inspect.json"))
    data["problems"] = [7, "of words alone"]
    data["model"] = "</script><script>alert(1)</script><!-- <script>"
    data["examples"][0]["tokens"][0] = "\\x</SCRIPT>"
    (tmp_path / "run/inspect.json").write_text(json.dumps(data))
    strata("report", tmp_path / "run")
    assert page(tmp_path / "run/inspect.html")["inspect"] == data
    html = (tmp_path / "run/inspect.html").read_text()
    assert html.count("<script") == html.count("</script>") == 3 and "alert(1)</script>" not in html


@pytest.mark.parametrize("plan", [
    {"attentions": ["x" * 300], "seeds": 1, "options": {"seed": 1}},
    {"attentions": ["flat"], "seeds": 2**63 - 1, "options": {"seed": 2**63 - 1}},
    {"attentions": ["flat"] * 20_000, "seeds": 1000, "options": {"seed": 1}},
    {"attentions": ["flat"], "seeds": 1e300, "options": {"seed": -1e300}},
])
def test_plans_that_no_comparison_has(tmp_path, plan):
    (tmp_path / "compare.json").write_text(json.dumps(plan))
    strata("report", tmp_path)
    assert len(page(tmp_path / "report.html")["runs"]) <= 1


def test_metrics_that_cannot_be_unpacked(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_bytes(b"\x1f\x8b\x08 no gzip")
    assert "metrics.jsonl: could not unpack" in strata("report", tmp_path)


def test_wrong_folders(tmp_path):
    assert "expected the folder of a run" in strata("report", tmp_path, code=4)
    assert "expected the folder of a run" in strata("report", tmp_path / "nowhere", code=4)
    assert "folder is required" in strata("report", code=2)
