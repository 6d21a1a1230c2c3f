"""Strata: hierarchical, multi-scale attention for PyTorch.

    import torch, strata
    attention = strata.HktAttention(model_size=64, heads=4, levels=3, causal=True)
    y = attention(torch.randn(2, 100, 64))
"""

from strata import _library
from strata.hkt import FlatAttention, HktAttention
from strata.hkt_cache import HktCache
from strata.ops import causal_filter, hkt_attention, hkt_decode
from strata.safetensors import load_safetensors, save_safetensors

__version__ = "0.1.0"
__all__ = [
    "FlatAttention",
    "HktAttention",
    "HktCache",
    "causal_filter",
    "hkt_attention",
    "hkt_decode",
    "load_safetensors",
    "save_safetensors",
]

_library.load()
