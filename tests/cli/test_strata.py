"""The strata command as a user meets it: whole runs, interruptions, resumption, and what it says when things are wrong."""
import functools
import hashlib
import http.server
import json
import os
import signal
import struct
import subprocess
import threading
import time

import pytest

STRATA = os.environ["STRATA_COMMAND"]
TINY = ["--train-rows", "512", "--valid-rows", "64", "--test-rows", "64", "--model-size", "16", "--heads", "2", "--batch", "32",
        "--threads", "1"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def strata(*args, code=0, stdin=None, **kwargs):
    done = subprocess.run([STRATA, *map(str, args)], capture_output=True, text=True, input=stdin, timeout=300, **kwargs)
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def tensors(path):
    """The raw bytes of every tensor of a safetensors file."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


def metrics(folder):
    """metrics.jsonl without what a clock measured."""
    lines = [json.loads(line) for line in open(folder / "metrics.jsonl")]
    return [{k: v for k, v in line.items() if k not in ("tokens_per_second", "train_seconds")} for line in lines]


def same_run(a, b):
    assert tensors(a / "last.safetensors") == tensors(b / "last.safetensors")
    assert tensors(a / "best.safetensors") == tensors(b / "best.safetensors")
    assert metrics(a) == metrics(b)
    results = [json.load(open(folder / "result.json")) for folder in (a, b)]
    for result in results:
        del result["train_seconds"], result["step_milliseconds"]
    assert results[0] == results[1]


# ------------------------------------------------------------------------------------------------- help and info

def test_help_is_there_for_everything():
    top = strata("--help")
    for command in ("data", "train", "compare", "eval", "predict", "inspect", "report", "info", "bench"):
        assert command in top
        assert "Examples:" in strata(command, "--help") or command == "info"
    assert "Exit codes" in top
    assert strata() == top


def test_info_and_version():
    info = json.loads(strata("info", "--json"))
    assert info["strata"] in strata("--version") and "portable" in info["instruction_sets"] and info["cores"] >= 1


# ------------------------------------------------------------------------------------------------- runs

@pytest.mark.parametrize("attention", ["flat", "hkt", "hsa"])
def test_train_eval_predict(home, attention):
    result = json.loads(strata("train", "--attention", attention, *TINY, "--folder", "run", "--json", "--tensorboard"))
    assert result["steps"] == 32 and result["test"]["rows"] == 64
    assert result["score_ratio"] == {"flat": 1.0, "hkt": 1.3125}.get(attention, result["score_ratio"])
    for name in ("run.json", "metrics.jsonl", "best.safetensors", "last.safetensors", "result.json"):
        assert (home / "run" / name).exists()
    assert len(list((home / "run" / "tensorboard").iterdir())) == 1
    evaluated = json.loads(strata("eval", "run", "--json"))
    assert evaluated["accuracy"] == result["test"]["accuracy"]
    assert evaluated["loss"] == pytest.approx(result["test"]["loss"], rel=1e-6)
    line = json.loads(strata("predict", "run", "[MAX 2 [MIN 4 7 ] 0 ]"))
    assert line["input"] == "[MAX 2 [MIN 4 7 ] 0 ]" and line["label"] in "0123456789"
    assert sum(line["probabilities"].values()) == pytest.approx(1)
    many = strata("predict", "run/best.safetensors", stdin="[SM 1 2 ]\n3\n").splitlines()
    assert [json.loads(answer)["input"] for answer in many] == ["[SM 1 2 ]", "3"]


def test_one_bad_input_does_not_stop_the_others(home):
    strata("train", *TINY, "--steps", 2, "--folder", "run")
    done = subprocess.run([STRATA, "predict", "run", "[MAX 2", "[MIN 1 2 ]"], capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 3 and "error" in answers[0] and "label" in answers[1]


def test_same_seed_same_bits_and_other_seed_others(home):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        strata("train", *TINY, "--folder", folder, "--seed", seed)
    same_run(home / "a", home / "b")
    assert tensors(home / "a/last.safetensors") != tensors(home / "c/last.safetensors")


def test_starts_anew_with_its_arguments(home):
    """Where nobody set the count of spins, the command sets it and starts itself again (cli/main.cc)."""
    environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([STRATA, "predict", "a run", "two words"], env=environment, capture_output=True, text=True)
    assert done.returncode == 4 and "a run: there is no such file" in done.stderr, done.stderr


def stopped_and_resumed(home, how, args):
    """A whole run, and one that is stopped by a signal and resumed, in the folders whole and parts."""
    strata("train", *args, "--folder", "whole")
    running = subprocess.Popen([STRATA, "train", *args, "--folder", "parts"], stderr=subprocess.PIPE, text=True)
    while not (home / "parts/metrics.jsonl").exists() or len(open(home / "parts/metrics.jsonl").readlines()) < 6:
        assert running.poll() is None, "finished before it could be interrupted"
        time.sleep(0.01)
    running.send_signal(how)
    message = running.communicate(timeout=60)[1]
    assert not (home / "parts/result.json").exists(), "finished before it could be interrupted"
    if how == signal.SIGINT:
        assert running.returncode == 130 and "strata train --resume parts" in message
    strata("train", "--resume", "parts")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("attention", ["hkt", "hsa"])
def test_resume_goes_on_to_the_same_bits(home, attention, how):
    stopped_and_resumed(home, how, ["--attention", attention, *TINY, "--epochs", "10", "--eval-every", "20", "--log-every", "7", "--save-seconds", "0",
                                    "--hide", "0.1"])
    same_run(home / "whole", home / "parts")


@pytest.mark.parametrize("attention", ["flat", "hkt", "hkt --filters dense", "hsa"])
def test_runs_on_a_gpu_repeat_and_resume_to_the_same_bits(home, attention):
    if "cuda" not in json.loads(strata("info", "--json"))["devices"]:
        pytest.skip("there is no GPU here, or this build has no CUDA kernels")
    # Batches of the size of real ones: with few tokens, torch's atomics come in order by themselves.
    args = ["--attention", *attention.split(), "--device", "cuda", "--precision", "bf16", "--batch", "256", "--train-rows", "4096", "--valid-rows", "256",
            "--test-rows", "256", "--model-size", "128", "--epochs", "12", "--eval-every", "40", "--log-every", "7", "--save-seconds", "0"]
    stopped_and_resumed(home, signal.SIGKILL, args)
    strata("train", *args, "--folder", "again")
    same_run(home / "whole", home / "again")
    same_run(home / "whole", home / "parts")


def test_language_model(home):
    (home / "book.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
    for attention in ("flat", "hkt", "hsa"):
        result = json.loads(strata("train", "--task", "text", "--data", "book.txt", "--length", "32", "--attention", attention, "--model-size",
                                   "32", "--heads", "2", "--batch", "16", "--epochs", "6", "--threads", "1", "--dropout", "0", "--folder", attention, "--json"))
        assert result["test"]["loss"] < 1.0, attention  # a uniform guess over 28 characters is 3.3
    answer = json.loads(strata("predict", "hkt", "the quick brown fox jumps ove"))
    assert answer["next"][0]["text"] == "r" and answer["bits_per_byte"] < 2


def test_own_table_with_bad_rows(home):
    rows = ["label,text"] + [f"{'good' if i % 2 else 'bad'},{'wonderful film' if i % 2 else 'terrible film'} number {i}" for i in range(200)]
    rows.insert(50, "good")  # no text
    (home / "reviews.csv").write_text("\n".join(rows))
    done = subprocess.run([STRATA, "train", "--task", "table", "--data", "reviews.csv", "--attention", "hsa", "--length", "32", *TINY[6:],
                           "--epochs", "8", "--folder", "run", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 unusable training rows" in done.stderr and "line 51" in done.stderr
    assert json.loads(done.stdout)["test"]["accuracy"] > 0.9
    assert json.loads(strata("predict", "run", "a wonderful film"))["label"] == "good"


# ------------------------------------------------------------------------------------------------- compare

def test_compare_resumes_and_reports(home):
    args = ["compare", "--attentions", "flat", "hkt:levels=2", "--seeds", "2", *TINY[:-2], "--epochs", "6", "--folder", "cmp", "--jobs", "2"]
    running = subprocess.Popen([STRATA, *args], stderr=subprocess.PIPE, text=True)
    while not (home / "cmp/flat-seed1/metrics.jsonl").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    assert "the same command goes on" in running.communicate(timeout=60)[1] and running.returncode == 130
    table = strata(*args)
    assert "hkt:levels=2" in table and "1.2500x" in table
    results = json.load(open(home / "cmp/results.json"))
    first = json.load(open(home / "cmp/flat-seed1/result.json"))
    assert results["attentions"][0]["scores"][0] == pytest.approx(100 * first["test"]["accuracy"])
    assert len(results["pairs"]) == 1 and (home / "cmp/results.md").exists()
    assert len(open(home / "cmp/results.csv").readlines()) == 5
    assert json.loads(strata(*args, "--json")) == results  # nothing is run again
    assert "seeds is 2 there and 3 here" in strata(*[{"2": "3"}.get(a, a) if args[i - 1] == "--seeds" else a for i, a in enumerate(args)], code=4)


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


def test_resuming_is_recorded(home):
    running = subprocess.Popen([STRATA, "train", *TINY, "--epochs", "20", "--folder", "run"], stderr=subprocess.PIPE, text=True)
    while not (home / "run/metrics.jsonl").exists():
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    before = json.load(open(home / "run/run.json"))
    assert "finished" not in before and "resumed" not in before
    strata("train", "--resume", "run", "--quiet")
    after = json.load(open(home / "run/run.json"))
    assert after["started"] == before["started"] and len(after["resumed"]) == 1 and after["resumed"][0]["versions"] == before["versions"]
    assert after["finished"] >= after["resumed"][0]["at"]


def test_flat_attention_takes_the_input_filter(home):
    parameters = []
    for extra in ([], ["--input-filter"]):
        folder = f"run{len(parameters)}"
        parameters.append(json.loads(strata("train", "--attention", "flat", *extra, *TINY, "--steps", "2", "--json", "--quiet", "--folder", folder))["parameters"])
    layers, taps, size = 2, 3, 16
    assert parameters[1] - parameters[0] == layers * taps * size


def test_compare_stops_when_its_minutes_are_over(home):
    args = ["compare", "--attentions", "flat", "hkt", "--seeds", "1", *TINY[:-2], "--epochs", "6", "--folder", "cmp", "--jobs", "1"]
    message = strata(*args, "--minutes", "0.001", code=130)
    assert "0.001 minutes are over" in message and "the same command goes on" in message
    plan = json.load(open(home / "cmp/compare.json"))
    del plan["options"]["tokens"]  # as if it came from before there was this option
    (home / "cmp/compare.json").write_text(json.dumps(plan))
    assert "validation" in strata(*args)
    assert "holds another comparison (/options/batch" in strata(*args, "--batch", "33", code=4)


def test_texts_as_words(home):
    rows = [("good", "a fine film, truly fine.") if i % 2 else ("bad", "a dull film. Dull!") for i in range(60)]
    (home / "t.csv").write_text("label,text\n" + "".join(f'{label},"{text}"\n' for label, text in rows))
    strata("train", "--task", "table", "--data", "t.csv", "--tokens", "words", "--words", "6", "--length", "8", "--attention", "hsa", "--model-size",
           "16", "--heads", "2", "--batch", "8", "--epochs", "8", "--threads", "1", "--dropout", "0", "--folder", "run")
    answer = json.loads(strata("predict", "run", "Dull, dull, DULL film"))
    assert answer["label"] == "bad" and answer["tokens"] == 6 and "cut_at" not in answer
    assert json.loads(strata("predict", "run", "fine " * 9))["cut_at"] == 8
    whole = json.loads(strata("eval", "run", "--json"))
    moved = json.loads(strata("eval", "run/best.safetensors", "--data", "t.csv", "--json"))  # the words are the model's own
    assert whole["accuracy"] == moved["accuracy"] == 1.0
    assert "only the texts of imdb and table" in strata("train", *TINY, "--tokens", "words", "--folder", "no", code=2)


def test_compare_says_which_run_failed(home):
    message = strata("compare", *TINY[:-2], "--attentions", "flat", "hkt:heads=3", "--seeds", "1", "--folder", "cmp", code=2)
    assert "hkt:heads=3, seed 1 failed" in message and "multiple of heads" in message


# ------------------------------------------------------------------------------------------------- wrong input

@pytest.mark.parametrize("args, code, words", [
    (["train", "--bacth", "3"], 2, ["--bacth", "did you mean --batch?"]),
    (["train", "--batch", "three"], 2, ["--batch", "whole number", "three"]),
    (["train", "--batch", "0"], 2, ["--batch", "1 to"]),
    (["train", "--attention", "hkl"], 2, ["flat, hkt, hsa", "did you mean hkt?"]),
    (["train", "--task", "imdb"], 3, ["strata data get imdb", "--data"]),
    (["train", "--task", "imdb", "--max-depth", "3"], 2, ["max_depth", "listops"]),
    (["train", "--task", "text"], 2, ["--data"]),
    (["train", "--task", "table", "--data", "nowhere.csv"], 3, ["nowhere.csv"]),
    (["train", "--device", "cuda"], 2, ["CUDA"]),
    (["train", "--config", "nowhere.toml"], 3, ["nowhere.toml"]),
    (["train", "--resume", "nowhere"], 4, ["nowhere"]),
    (["train", "--resume", "nowhere", "--batch", "3"], 2, ["keeps its options"]),
    (["eval", "nowhere"], 4, ["nowhere"]),
    (["predict", "nowhere", "x"], 4, ["nowhere"]),
    (["compare", "--attention", "hkt"], 2, ["--attentions"]),
    (["data", "get", "listops"], 2, ["imdb or cifar10"]),
    (["data", "make", "listops", "--min-length", "70"], 2, ["min_length"]),
    (["data", "check", "nothing"], 2, ["listops, imdb, cifar10"]),
    (["trian"], 2, ["trian"]),
])
def test_wrong_command_lines(home, args, code, words):
    message = strata(*args, code=code)
    for word in words:
        assert word in message, message
    assert not (home / "runs").exists() or not list((home / "runs").glob("*/last.safetensors"))


def test_configs(home):
    (home / "good.toml").write_text('attention = "flat"  # a comment\n[training]\nbatch = 32\nsteps = 2\n[data]\ntrain_rows = 64\nvalid-rows = 8\ntest_rows = 8\n')
    strata("train", "--config", "good.toml", "--folder", "run", "--batch", "16")
    options = json.load(open(home / "run/run.json"))["options"]
    assert (options["attention"], options["batch"], options["steps"], options["valid_rows"]) == ("flat", 16, 2, 8)
    (home / "bad.json").write_text('{"levles": 3}')
    assert "did you mean levels?" in strata("train", "--config", "bad.json", code=2)
    (home / "broken.toml").write_text("batch = = 3\n")
    assert "line 1" in strata("train", "--config", "broken.toml", code=2)
    (home / "other.toml").write_text('task = "imdb"\nmax_args = 5\n')
    assert "max_args" in strata("train", "--config", "other.toml", code=2)


def test_shipped_configs_are_understood(home):
    folder = os.path.join(os.path.dirname(__file__), "../../configs")
    names = sorted(os.listdir(folder))
    assert "demo.toml" in names and len(names) >= 4
    for name in names:
        plan = strata("compare", "--config", os.path.join(folder, name), "--dry-run")
        assert "hkt" in plan and ", seeds 1 to" in plan, name


def test_two_runs_in_one_folder(home):
    running = subprocess.Popen([STRATA, "train", *TINY, "--epochs", "200", "--folder", "run"], stderr=subprocess.DEVNULL)
    while not (home / "run/metrics.jsonl").exists():
        time.sleep(0.01)
    try:
        assert "another strata process" in strata("train", "--resume", "run", code=4)
    finally:
        running.kill()
        running.wait()
    assert "--resume run" in strata("train", "--folder", "run", code=4)


def test_damaged_checkpoints(home):
    strata("train", *TINY, "--steps", 2, "--folder", "run")
    whole = (home / "run/best.safetensors").read_bytes()
    (home / "run/best.safetensors").write_bytes(whole[:-10])
    assert "best.safetensors" in strata("eval", "run", code=4)
    (home / "run/result.json").unlink()
    state = (home / "run/last.safetensors").read_bytes()
    (home / "run/last.safetensors").write_bytes(state[:200])
    assert "last.safetensors" in strata("train", "--resume", "run", code=4)
    (home / "plain.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    assert "strata train" in strata("predict", "plain.safetensors", "1", code=4)


@pytest.mark.skipif(not os.path.exists("/dev/full") or os.geteuid() != 0, reason="a full disk is made with a small tmpfs, as root")
def test_full_disk_loses_nothing(home):
    disk = home / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=660k", "tmpfs", str(disk)], capture_output=True).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        strata("train", *TINY, "--steps", 2, "--folder", disk / "run")
        (disk / "filler").write_bytes(b"x" * 100_000)
        message = strata("train", *TINY, "--steps", 40, "--model-size", 32, "--folder", disk / "more", code=4)
        assert "disk" in message
        strata("eval", disk / "run")  # what was there is whole
    finally:
        subprocess.run(["umount", str(disk)], check=False)


# ------------------------------------------------------------------------------------------------- data

def test_data_list_make_check(home):
    assert "listops" in strata("data", "list")
    folder = strata("data", "make", "listops", "--train-rows", 100, "--valid-rows", 10, "--test-rows", 10).strip()
    manifest = json.load(open(os.path.join(folder, "manifest.json")))
    assert set(manifest["files"]) == {"train.tsv", "valid.tsv", "test.tsv"}
    checked = json.loads(strata("data", "check", "listops", "--train-rows", 100, "--valid-rows", 10, "--test-rows", 10, "--json"))
    assert checked["train"]["rows"] == 100 and checked["train"]["unusable"] == 0
    with open(os.path.join(folder, "train.tsv"), "a") as file:
        file.write("3\t[MAX 1 2 ]\n")
    assert "train.tsv" in strata("data", "check", "listops", "--train-rows", 100, "--valid-rows", 10, "--test-rows", 10, code=3)
    wrong = home / "wrong.tsv"
    wrong.write_text("2\t[MAX 1 2 ]\n3\t[MIN 1 2 ]\n" + "".join(f"{i % 10}\t{i % 10}\n" for i in range(40)))
    assert "1 unusable rows" in strata("data", "check", "listops", "--data", wrong, code=3)


def test_data_get_from_a_server(home):
    """An archive laid out like the official one, from a server of our own."""
    source = home / "www/aclImdb"
    for split in ("train", "test"):
        for side in ("pos", "neg"):
            (source / split / side).mkdir(parents=True)
            for i in range(20):
                (source / split / side / f"{i}_{9 if side == 'pos' else 2}.txt").write_text(f"a {side} review, number {i}")
    subprocess.run(["tar", "czf", "a.tar.gz", "aclImdb"], cwd=home / "www", check=True)
    digest = hashlib.sha256((home / "www/a.tar.gz").read_bytes()).hexdigest()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=home / "www"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/a.tar.gz"
    try:
        assert "expected sha256" in strata("data", "get", "imdb", "--url", url, "--digest", "sha256:" + "0" * 64, code=3)
        assert "404" in strata("data", "get", "imdb", "--url", url + "x", "--digest", "none", code=3)
        folder = strata("data", "get", "imdb", "--url", url, "--digest", "sha256:" + digest).strip()
        assert sorted(os.listdir(folder)) == ["manifest.json", "test.tsv", "train.tsv"]
        assert "in the cache" in strata("data", "list")
        assert "binary version of CIFAR-10" in strata("data", "get", "cifar10", "--url", url, "--digest", "none", code=3)
    finally:
        server.shutdown()
    checked = json.loads(strata("data", "check", "imdb", "--json"))
    assert checked["train"]["rows"] + checked["valid"]["rows"] == 40 and checked["test"]["labels"] == {"negative": 20, "positive": 20}
