"""What the tests of the command share."""

import json
import os
import struct
import subprocess

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
