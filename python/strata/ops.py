"""The operators of libstrata_torch.so, also available as torch.ops.strata.*"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def hkt_attention(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Mixed attention over the levels of a pyramid.

    q: list of (B, H, ceil(T / 2^l), d), k: list of (B, Hk, ceil(T / 2^l), d), v: (B, Hk, T, dv), weights: (H, levels).
    Returns out (B, H, T, dv) and lse (B, H, T), the natural log of each row's sum.
    """
    return torch.ops.strata.hkt_attention(q, k, v, weights, lengths=lengths, bias=bias, causal=causal, scale=scale)


def hkt_decode(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """One new token per sequence: q is a list of (B, H, 1, d); the caches k and v may be longer than lengths."""
    return torch.ops.strata.hkt_decode(q, k, v, weights, lengths, scale=scale)


def causal_filter(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """y_m = sum_r W_r x_{stride m - r}; x: (B, T, C), weight: (taps, C) depthwise or (taps, C, C) dense."""
    return torch.ops.strata.causal_filter(x, weight, stride)
