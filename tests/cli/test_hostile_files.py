"""Files that are damaged, deeply nested, planted or gone: clear messages, no crash, nothing overwritten elsewhere."""

import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import time

import pytest

from support import STRATA, TINY, home, strata  # noqa: F401 (home is a fixture)
from tiny_models import write_gpt2

DEEP = "[" * 300_000


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run([STRATA, "train", *TINY, "--steps", "2", "--folder", "run", "--quiet"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def run(home, trained):
    shutil.copytree(trained, home / "run")
    return home / "run"


# ------------------------------------------------------------------------------------------------ deep nesting


def test_deep_configs(home):
    (home / "deep.json").write_text('{"batch": ' + DEEP)
    (home / "deep.toml").write_text("batch = " + DEEP)
    (home / "dots.toml").write_text("a." * 300_000 + "a = 1")
    assert "nested deeper than 100 levels" in strata("train", "--config", "deep.json", code=2)
    for name in ("deep.toml", "dots.toml"):
        assert f"{name}: expected at most 100 levels" in strata("train", "--config", name, code=2)


@pytest.mark.parametrize("name", ["run.json", "result.json", "metrics.jsonl"])
def test_deep_files_of_a_run(run, name):
    (run / name).write_text('{"options": ' + DEEP)
    page = strata("report", "run")
    if name != "metrics.jsonl":
        assert "nested deeper than 100 levels" in page
        assert name in strata("train", "--resume", "run", code=4)
    (run / "compare.json").write_text('{"options": ' + DEEP)
    (run / "results.json").write_text('{"options": ' + DEEP)
    assert "compare.json is damaged" in strata("report", "run") and (run / "report.html").exists()


def test_deep_files_of_a_downloaded_model(home):
    if "embed" not in strata("--help"):
        pytest.skip("this build has no embed")
    (home / "model").mkdir()
    write_gpt2(home / "model")
    strata("generate", "model", "a", "--tokens", "1")
    for name in ("vocab.json", "config.json"):
        kept = (home / "model" / name).read_text()
        (home / "model" / name).write_text('{"a": ' + DEEP)
        assert f"{name}: expected a JSON object, got JSON that is nested deeper" in strata("generate", "model", "a", code=3)
        (home / "model" / name).write_text(kept)
    (home / "model/tokenizer.json").write_text('{"a": ' + DEEP)
    assert "tokenizer.json: expected a JSON object, got JSON that is nested deeper" in strata("generate", "model", "a", code=3)


# ------------------------------------------------------------------------------------------------ weights


def test_no_flipped_byte_changes_an_answer(run):
    """A changed byte is refused, or the answer is the same (the digest's own name may change). C++ tests try every byte."""
    path, words = run / "best.safetensors", ["[MAX 2 [MIN 4 7 ] 0 ]"]
    whole, answer = path.read_bytes(), strata("predict", "run", *words)
    random.seed(1)
    refused = 0
    for _ in range(10):
        at = random.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << random.randrange(8))]) + whole[at + 1:])
        done = subprocess.run([STRATA, "predict", "run", *words], capture_output=True, text=True)
        assert done.returncode == 4 or done.stdout == answer, at
        refused += done.returncode == 4
    assert refused >= 9


def test_the_check_of_weights_can_be_turned_off(run):
    path = run / "best.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for command in (["predict", "run", "1"], ["eval", "run"], ["inspect", "run", "--samples", "1"]):
        assert "expected SHA-256" in strata(*command, code=4)
        strata(*command, "--no-check-digest")
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:8 + size])
    assert len(header["__metadata__"].pop("strata.sha256")) == 64
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + size:])  # as from elsewhere: without a digest
    strata("eval", "run")


# ------------------------------------------------------------------------------------------------ damage and links


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"task": 3}', '{"task": "listops", "attention": "hkt", "seed": "x"}'])
def test_damaged_results(run, content):
    (run / "result.json").write_text(content)
    message = strata("train", "--resume", "run", code=4)
    assert "result.json: expected the result of a finished run" in message and "[json.exception" not in message.split("got")[0]
    (run / "result.json").unlink()
    strata("train", "--resume", "run", "--quiet")


def test_link_loops(home):
    (home / "loop").symlink_to("loop")
    for args in (["train", "--folder", "loop/run", *TINY], ["train", "--resume", "loop"], ["eval", "loop"], ["report", "loop"], ["predict", "loop", "1"],
                 ["train", "--task", "table", "--data", "loop"], ["compare", "--folder", "loop", *TINY[:-2]]):
        done = subprocess.run([STRATA, *args], capture_output=True, text=True)
        assert done.returncode in (3, 4) and "loop" in done.stderr and "levels of symbolic links" in done.stderr, (args, done.stderr)
        assert "filesystem error" not in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_planted_links_are_not_followed(home):
    victim = home / "victim"
    victim.write_text("precious")
    (home / "run").mkdir()
    (home / "run/.lock").symlink_to(victim)
    assert "run/.lock" in strata("train", *TINY, "--steps", "1", "--folder", "run", code=4)
    (home / "run/.lock").unlink()
    for name in ("run.json", "last.safetensors", "metrics.jsonl"):
        for pid in range(os.getpid(), os.getpid() + 200):
            (home / f"run/{name}.part{pid}").symlink_to(victim)
    strata("train", *TINY, "--steps", "1", "--folder", "run", "--quiet")
    assert victim.read_text() == "precious"


def test_stray_parts_are_removed(run):
    for name in ("result.json", "last.safetensors"):
        (run / f"{name}.part00c0ffee").write_text("stray")
        (run / f"{name}.part12345").write_text("stray, of an older version")
    (run / "best.safetensors.writing").write_text("stray")
    (run / "my.parts").write_text("not one of ours")
    strata("train", "--resume", "run", "--quiet")
    assert [path.name for path in run.iterdir() if "part" in path.name or "writing" in path.name] == ["my.parts"]
    cache = pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "strata/listops"
    (cache / "some_set.part0badcafe").mkdir(parents=True)
    (cache / "some_set.part0badcafe/train.tsv").write_text("stray")
    strata("data", "make", "listops", *TINY[:6], "--again")
    assert not list(cache.glob("*.part*"))


# ------------------------------------------------------------------------------------------------ while it runs


def going_run(home, *options):
    args = ["train", *TINY, "--epochs", "1000", "--log-every", "1", "--folder", "run", *options]
    running = subprocess.Popen([STRATA, *args], stderr=subprocess.PIPE, text=True)
    while not (home / "run/metrics.jsonl").exists() or len((home / "run/metrics.jsonl").read_bytes()) < 500:
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.01)
    return running


@pytest.mark.parametrize("keep_folder", [False, True])
def test_removing_the_folder_of_a_run_is_an_error(home, keep_folder):
    running = going_run(home)
    for _ in range(100):  # a file may appear while they are removed
        shutil.rmtree(home / "run", ignore_errors=True)
        if not (home / "run").exists():
            break
    if keep_folder:
        (home / "run").mkdir(exist_ok=True)
    message = running.communicate(timeout=60)[1]
    assert running.returncode == 4 and "run/" in message, (running.returncode, message)


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM])
def test_signals_that_save(home, how):
    running = going_run(home, "--save-seconds", "1000")
    running.send_signal(how)
    message = running.communicate(timeout=60)[1]
    assert running.returncode == 130 and "state saved" in message and (home / "run/last.safetensors").exists()


def test_nohup_still_ignores_a_hangup(home):
    running = subprocess.Popen(["nohup", STRATA, "train", *TINY, "--epochs", "1000", "--folder", "run"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not (home / "run/metrics.jsonl").exists():
        time.sleep(0.01)
    running.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert running.poll() is None
    running.kill()
    running.communicate()
