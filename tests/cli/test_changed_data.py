"""Data that changes under a run: refused where it is read again, unless the user accepts it."""

import hashlib
import json
import signal
import subprocess
import time

import pytest

from support import STRATA, home, strata  # noqa: F401 (home is a fixture)

SMALL = ["--task", "table", "--data", "t.csv", "--length", "16", "--model-size", "8", "--heads", "2", "--batch", "8", "--threads", "1"]


def table(rows, word="film"):
    return "label,text\n" + "".join(f"{'good' if i % 2 else 'bad'},{word} {i}\n" for i in range(rows))


def stopped_run(home, *options):
    running = subprocess.Popen([STRATA, "train", *SMALL, "--epochs", "1000", "--folder", "run", *options], stderr=subprocess.PIPE, text=True)
    while not (home / "run/metrics.jsonl").exists():
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == 130


def stop_when_resumed(home, running):
    while "resumed" not in json.load(open(home / "run/run.json")):
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_resume_refuses_changed_data(home):
    data = home / "t.csv"
    data.write_text(table(60))
    stopped_run(home)
    before, record = digest(data), json.load(open(home / "run/run.json"))
    assert record["options"]["data"] == str(data), "a relative path would mean another file elsewhere"
    assert record["data"] == [{"path": str(data), "bytes": data.stat().st_size, "sha256": before}]
    data.write_text(table(60, "filn"))
    state = (home / "run/last.safetensors").read_bytes()
    message = strata("train", "--resume", "run", code=3)
    for words in (str(data), before, digest(data), f"{data.stat().st_size} bytes", "--allow-changed-data"):
        assert words in message, message
    assert json.load(open(home / "run/run.json")) == record and (home / "run/last.safetensors").read_bytes() == state

    running = subprocess.Popen([STRATA, "train", "--resume", "run", "--allow-changed-data"], stderr=subprocess.PIPE, text=True)
    stop_when_resumed(home, running)
    assert "warning: the data has changed" in running.communicate(timeout=60)[1] and running.returncode == 130
    accepted = json.load(open(home / "run/run.json"))
    assert accepted["data"][0]["sha256"] == digest(data) and accepted["resumed"][0]["data_before"] == record["data"]
    assert "a new run" in strata("train", *SMALL, "--folder", "other", "--allow-changed-data", code=2)


def test_resume_from_another_folder_reads_the_same_file(home):
    (home / "t.csv").write_text(table(60))
    stopped_run(home)
    (home / "elsewhere").mkdir()
    (home / "elsewhere/t.csv").write_text(table(60, "trap"))
    running = subprocess.Popen([STRATA, "train", "--resume", "../run"], cwd=home / "elsewhere", stderr=subprocess.PIPE, text=True)
    stop_when_resumed(home, running)
    message = running.communicate(timeout=60)[1]
    assert running.returncode == 130, message
    assert [file["path"] for file in json.load(open(home / "run/run.json"))["data"]] == [str(home / "t.csv")]


@pytest.fixture
def finished(home):
    (home / "t.csv").write_text(table(60))
    strata("train", *SMALL, "--epochs", "1", "--folder", "run", "--quiet")
    return home


@pytest.mark.parametrize("command", [["eval", "run"], ["inspect", "run", "--samples", "2"]])
def test_commands_on_a_run_refuse_changed_data(finished, command):
    data = finished / "t.csv"
    before = digest(data)
    strata(*command)
    data.write_text(table(61))
    message = strata(*command, code=3)
    assert str(data) in message and before in message and digest(data) in message
    strata(*command, "--allow-changed-data")
    (finished / "u.csv").write_text(table(20, "movie"))
    strata(*command, "--data", "u.csv")  # other data was asked for
    assert "--allow-changed-data" in strata(*command, "--data", "t.csv", code=3)  # the file of the record, but not its content


def test_a_file_that_only_moved_is_the_same_data(finished):
    record = json.load(open(finished / "run/run.json"))
    (finished / "t.csv").rename(finished / "moved.csv")
    record["options"]["data"] = str(finished / "moved.csv")
    (finished / "run/run.json").write_text(json.dumps(record))
    strata("eval", "run")


def test_compare_refuses_changed_data(home):
    (home / "t.csv").write_text(table(60))
    args = ["compare", "--attentions", "flat", "hsa", "--seeds", "1", "--epochs", "1", *SMALL[:-2], "--folder", "cmp", "--quiet"]
    strata(*args)
    (home / "cmp/hsa-seed1/result.json").unlink()  # as if it had been stopped before its end
    (home / "t.csv").write_text(table(60, "filn"))
    assert "--allow-changed-data" in strata(*args, code=3)
    strata(*args, "--allow-changed-data")
