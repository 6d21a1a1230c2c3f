"""strata embed on a tiny model: JSON lines, matrices, injection, and what it says when things are wrong."""
import json
import os
import subprocess

import numpy
import pytest

from tiny_models import write_bert

STRATA = os.environ["STRATA_COMMAND"]
TEXTS = "ab cd. ef gh!\nabc\n\nthe quick brown fox jumps over the lazy dog\n"


def strata(*args, code=0, stdin=TEXTS):
    done = subprocess.run([STRATA, *map(str, args)], capture_output=True, text=True, input=stdin, timeout=100)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_bert(tmp_path)
    return tmp_path


def test_lines_and_matrix_agree_and_batches_do_not_matter(model):
    rows = [json.loads(line) for line in strata("embed", model, "--quiet").splitlines()]
    assert [row["tokens"] for row in rows] == [9, 5, 2, 11]  # [CLS] a ##b [UNK] . [UNK] [UNK] ! [SEP], and so on
    assert len(rows) == 4 and all(len(row["embedding"]) == 16 for row in rows)
    for batch in (1, 3):
        strata("embed", model, "--output", "e.npy", "--batch", batch)
        matrix = numpy.load("e.npy")
        assert matrix.shape == (4, 16) and matrix.dtype == numpy.float32
        assert numpy.allclose(matrix, [row["embedding"] for row in rows], atol=1e-5)
    record = json.load(open("e.npy.json"))["record"]
    assert record["command"] == "embed" and record["options"]["batch"] == 3 and record["options"]["layers"] == "none"
    assert record["started"] <= record["finished"] and len(record["data"][0]["sha256"]) == 64
    strata("embed", model, "--output", "n.npy", "--normalize")
    assert numpy.allclose(numpy.linalg.norm(numpy.load("n.npy"), axis=1), 1, atol=1e-5)


def test_injection_changes_long_texts_alone(model):
    strata("embed", model, "--output", "flat.npy")
    strata("embed", model, "--output", "hsa.npy", "--layers", "late", "--tree", "balanced", "--branching", "2")
    flat, hsa = numpy.load("flat.npy"), numpy.load("hsa.npy")
    assert numpy.allclose(flat[2], hsa[2], atol=1e-5), "two tokens are one family: softmax"
    assert numpy.abs(flat[0] - hsa[0]).max() > 1e-4
    strata("embed", model, "--output", "same.npy", "--layers", "none")
    assert (numpy.load("same.npy") == flat).all()


def test_mistakes_are_named(model):
    assert "numbers from 0 to 1" in strata("embed", model, "--layers", "1,2", code=2)
    assert "--tree" in strata("embed", model, "--tree", "none", code=2)
    assert ".npy" in strata("embed", model, "--output", "x.txt", code=2)
    assert "expected one per line" in strata("embed", model, stdin="", code=3)
    assert "2 of 4 texts were longer than 6 tokens" in subprocess.run([STRATA, "embed", model, "--length", "6"], capture_output=True, text=True,
                                                                    input=TEXTS).stderr
    with open(model / "vocab.txt", "a") as vocabulary:
        vocabulary.write("extra\n")
    assert "the tokenizer has 33 tokens and the model 32" in strata("embed", model, code=3)
    (model / "vocab.txt").unlink()
    assert "expected tokenizer.json" in strata("embed", model, code=3)
    (model / "model.safetensors").write_bytes(b"12345678")
    assert "not a safetensors file" in strata("embed", model, code=3)
