"""The operators of libstrata_torch.so as typed functions; those of HSA are in strata.hsa_ops and strata.tree. They also stand under
torch.ops.strata. Wrong shapes and types give a RuntimeError, wrong values a ValueError; both name the argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strata._values import Integers, integer, lengths_tensor


def hkt_attention(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    *,
    lengths: Integers | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Mixed attention over the levels of a pyramid: out (B, H, T, dv) and lse (B, H, T), the natural log of each row's sum.

    q        list of (B, H, ceil(T / 2^l), d), one per level, 1 to 8 levels; float32, float64 or bfloat16
    k        list of (B, Hk, ceil(T / 2^l), d); Hk divides H
    v        (B, Hk, T, dv)
    weights  (H, levels): how the scores of the levels are mixed; float64 with float64 inputs and float32 otherwise
    lengths  (B) real tokens, the rest is padding on the right
    bias     broadcasts to (B, H, T, T), in the type of v; added to the scaled scores
    causal   row i sees tokens 0 .. i only
    scale    of the scores; 1 / sqrt(d) unless given

    Differentiable, once.
    """
    if lengths is not None:
        lengths = lengths_tensor(lengths, v.shape[0], v.shape[2]).to(v.device)
    out, lse = torch.ops.strata.hkt_attention(q, k, v, weights, lengths=lengths, bias=bias, causal=causal, scale=scale)
    return out, lse


def hkt_decode(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    lengths: Integers,
    *,
    scale: float | None = None,
) -> Tensor:
    """One new token per sequence: (B, H, 1, dv). Not differentiable.

    q        list of (B, H, 1, d): the newest query of each level
    k        list of (B, Hk, capacity, d): caches, which may have more rows than `lengths` needs
    v        (B, Hk, capacity, dv)
    weights  (H, levels), as in hkt_attention
    lengths  (B): tokens of each sequence, the new one included
    """
    counts = lengths_tensor(lengths, v.shape[0], v.shape[2]).to(v.device)
    out: Tensor = torch.ops.strata.hkt_decode(q, k, v, weights, counts, scale=scale)
    return out


def causal_filter(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """y_m = sum_r W_r x_{stride m - r}, (B, ceil(T / stride), C).

    x: (B, T, C); weight: (taps, C) depthwise or (taps, C, C) dense. Differentiable.
    """
    y: Tensor = torch.ops.strata.causal_filter(x, weight, stride)
    return y


def depthwise_filter(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """causal_filter with one weight per channel, (taps, C), by one kernel. causal_filter calls it."""
    y: Tensor = torch.ops.strata.depthwise_filter(x, weight, stride)
    return y


def hsa_stream_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    kappas: Tensor,
    masses: Tensor,
    lengths: Tensor,
    *,
    weight: Tensor | None = None,
    key_bias: Tensor | None = None,
    positions: Tensor | None = None,
    level_weights: Tensor | None = None,
    near: int = 1,
    scale: float | None = None,
) -> Tensor:
    """One new token per sequence of the streaming form: (B, H, dv). Not differentiable.

    q, k, v    (B, H, d), (B, Hk, d), (B, Hk, dv); all tensors are float32 or all are float64. With several levels q and k
               hold the current rows of all levels one after the other, (B, H, levels d) and (B, Hk, levels d)
    keys, values, kappas, masses
               the cache, updated in place: (B, Hk, capacity, near b, d), (B, Hk, capacity, near b, dv),
               (B, Hk, capacity, near b) and (B, capacity, near b), dense. Node m of a height has slot m mod near b
    lengths    (B) int64, updated in place: tokens seen. They may differ
    weight     (B): of the new tokens; 0 hides a token from the others and keeps its place
    key_bias   (B, Hk): added to the scores of the new keys, averaged like k
    positions, level_weights, near
               as in hsa_stream_attention
    """
    out: Tensor = torch.ops.strata.hsa_stream_step(
        q,
        k,
        v,
        weight,
        key_bias,
        positions,
        keys,
        values,
        kappas,
        masses,
        lengths,
        level_weights,
        levels=1 if level_weights is None else level_weights.shape[1],
        near=near,
        scale=scale,
    )
    return out


def sinusoidal_positions(tables: int, places: int) -> Tensor:
    """(tables, places, places) float32: terms between siblings that fall with their distance. Table 0 is a sequence,
    table w a grid of width w."""
    terms: Tensor = torch.ops.strata.sinusoidal_positions(integer("tables", tables), integer("places", places))
    return terms
