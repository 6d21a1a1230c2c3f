"""Strata: hierarchical, multi-scale attention for PyTorch.

    import torch, strata
    attention = strata.HktAttention(model_size=64, heads=4, levels=3, causal=True)
    y = attention(torch.randn(2, 100, 64))

strata.huggingface registers attentions by name in transformers; `python -m strata.info` describes this machine.
"""

from strata import _library

_library.load()  # before the other imports, because it must set environment variables before torch is loaded

from strata import _register

_register.register()

from strata.attention import attention
from strata.hkt import FlatAttention, HktAttention
from strata.hkt_cache import HktCache
from strata.hsa import HsaAttention, HsaStreamCache
from strata.hsa_ops import (
    best_tree,
    hierarchy_score,
    hsa_attention,
    hsa_stream_attention,
    hsa_stream_certificate,
    kl_gap,
    window_family,
)
from strata.inject import inject
from strata.ops import causal_filter, hkt_attention, hkt_decode, packed_begins, packed_rows
from strata.rotary import rotate
from strata.safetensors import load_safetensors, save_safetensors
from strata.strata_attention import StrataAttention
from strata.strata_cache import StrataCache
from strata.tree import Tree, trees_windows

__version__ = "0.1.0"
__all__ = [
    "FlatAttention",
    "HktAttention",
    "HktCache",
    "HsaAttention",
    "HsaStreamCache",
    "StrataAttention",
    "StrataCache",
    "Tree",
    "attention",
    "best_tree",
    "causal_filter",
    "hierarchy_score",
    "hkt_attention",
    "hkt_decode",
    "hsa_attention",
    "hsa_stream_attention",
    "hsa_stream_certificate",
    "inject",
    "kl_gap",
    "load_safetensors",
    "packed_begins",
    "packed_rows",
    "rotate",
    "save_safetensors",
    "trees_windows",
    "window_family",
]
