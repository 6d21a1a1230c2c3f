"""Help, and what the command says when things are wrong: command lines, configs, folders, checkpoints, disks."""

import json
import os
import struct
import subprocess
import time

import pytest

from support import STRATA, TINY, home, strata  # noqa: F401 (home is a fixture)


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
    (["trian"], 2, ["trian", "did you mean train?"]),
    (["eval", "nowhere", "--batch", "0"], 2, ["--batch: expected 1 to 1048576, got 0"]),
    (["eval", "nowhere", "--threads", "-1"], 2, ["--threads: expected 0 to 4096, got -1"]),
    (["predict", "nowhere", "--top", "1" * 309], 2, ["--top: expected 1 to 256, got 1111", "(309 characters)"]),
    (["inspect", "nowhere", "--samples", "nan"], 2, ["--samples: expected a whole number, got nan"]),
    (["bench", "--rounds", "0"], 2, ["--rounds: expected 1 to"]),
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
