"""The operators of libstrata_torch.so as typed functions; those of HSA are in strata.hsa_ops and strata.tree. They also stand under
torch.ops.strata. Wrong shapes and types give a RuntimeError, wrong values a ValueError; both name the argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strata._values import Integers, integer, lengths_tensor, require, sequence_ends, window


def hkt_attention(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    *,
    lengths: Integers | None = None,
    key_lengths: Integers | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_state: Tensor | None = None,
    cu_seqlens: Integers | None = None,
    key_cu_seqlens: Integers | None = None,
    max_seqlen: int = 0,
    key_max_seqlen: int = 0,
) -> tuple[Tensor, Tensor]:
    """Mixed attention over the levels of a pyramid: out (B, H, T, dv) and lse (B, H, T), the natural log of each row's sum.

    q        list of (B, H, ceil(T / 2^l), d), one per level, 1 to 8 levels; float32, float64 or bfloat16
    k        list of (B, Hk, ceil(Tk / 2^l), d); Hk divides H. Tk may differ from T (cross-attention)
    v        (B, Hk, Tk, dv)
    weights  (H, levels): how the scores of the levels are mixed; float64 with float64 inputs and float32 otherwise
    lengths  (B) real tokens, the rest is padding on the right
    key_lengths
             the same of the keys; unless given, `lengths` where T = Tk, and all tokens otherwise
    bias     broadcasts to (B, H, T, Tk), in the type of v; added to the scaled scores
    causal   row i sees keys 0 .. i only
    scale    of the scores; 1 / sqrt(d) unless given
    window_size
             (left, right): row i sees keys i - left .. i + right only; -1 is without end
    alibi_slopes
             (H), float32 (float64 with float64 inputs): - slope |i - j| is added to the scores. Not differentiated
    dropout_p
             probability with which an attention weight is dropped; in steps of 1 / 65536
    dropout_state
             (2) int64 on the device of v, seed and offset: they decide what is dropped, on the CPU and the GPU alike.
             Drawn from torch's generator unless given
    cu_seqlens
             packed sequences, as flash-attention has them: (N + 1) numbers, the first row of each sequence and the end
             of the last. B is 1, T are the rows of all sequences, and level l has packed_rows(T, N, l) rows: the pyramid
             of each sequence behind that of the one before it (packed_begins). Rows that belong to none may hold anything
    key_cu_seqlens
             the same of the keys, if it differs
    max_seqlen, key_max_seqlen
             at least the longest sequence; 0: it is looked up, which waits for the GPU

    Differentiable, once.
    """
    left, right = window(window_size)
    if dropout_p > 0 and dropout_state is None:
        dropout_state = torch.randint(2**62, (2,), device=v.device)
    out, lse = torch.ops.strata.hkt_attention(
        q,
        k,
        v,
        weights,
        lengths=None if lengths is None else lengths_tensor(lengths, v.shape[0], q[0].shape[2]).to(v.device),
        bias=bias,
        causal=causal,
        scale=scale,
        key_lengths=None if key_lengths is None else lengths_tensor(key_lengths, v.shape[0], v.shape[2]).to(v.device),
        cu_seqlens=sequence_ends("cu_seqlens", cu_seqlens, v),
        key_cu_seqlens=sequence_ends("key_cu_seqlens", key_cu_seqlens, v),
        max_seqlen=integer("max_seqlen", max_seqlen),
        key_max_seqlen=integer("key_max_seqlen", key_max_seqlen),
        window_left=left,
        window_right=right,
        slopes=alibi_slopes,
        dropout=float(dropout_p),
        dropout_state=dropout_state,
    )
    return out, lse


def packed_rows(rows: int, sequences: int, level: int) -> int:
    """Rows of a level of packed sequences that have `rows` rows together at level 0. They are enough for any lengths with
    this sum, so that no length need be known."""
    for _ in range(level):
        rows = (rows + sequences) // 2
    return rows


def packed_begins(cu_seqlens: Tensor, levels: int) -> Tensor:
    """(levels, N) int64: the first row of each packed sequence at each level, which has ceil(n / 2^l) rows there."""
    begins: Tensor = torch.ops.strata.packed_begins(cu_seqlens, integer("levels", levels))
    return begins


def hkt_decode(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor,
    weights: Tensor,
    lengths: Integers,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """One new token per sequence: (B, H, 1, dv). Not differentiable.

    q        list of (B, H, 1, d): the newest query of each level; or rings of more rows
    k        list of (B, Hk, slots, d): caches, with enough rows for the tokens that are seen. Row r has slot r mod slots
    v        (B, Hk, slots, dv)
    weights  (H, levels), as in hkt_attention
    lengths  (B): tokens of each sequence, the new one included. On a GPU their values are not checked
    window   how many tokens before the new one are seen; None: all
    """
    left = -1 if window is None else integer("window", window)
    require(window is None or left >= 0, f"window: expected 0 or more tokens before the newest, or None for all, got {left}")
    counts = lengths_tensor(lengths, v.shape[0], v.shape[2] if window is None else 2**30).to(v.device)
    out: Tensor = torch.ops.strata.hkt_decode(q, k, v, weights, counts, scale=scale, window=left)
    return out


def hkt_append(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor | None,
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Tensor | None,
    lengths: Tensor,
    *,
    current: bool = False,
) -> tuple[Tensor, Tensor]:
    """Writes the rows that a new token adds to the caches of hkt_decode, in place. Not differentiable.

    q, k, v  (B, H, 1, d) of every level, (B, Hk, 1, d), (B, Hk, 1, dv): rows lengths >> l. Those of level l are written
             where lengths is a multiple of 2^l; elsewhere such a row does not begin, and they are not read
    queries, keys, values
             rings (B, H, slots, d), (B, Hk, slots, d), (B, Hk, slots, dv); row r has slot r mod slots
    lengths  (B) int64, on the device of the others: tokens before the new one
    current  return rows lengths >> l of every level, new or not: (B, H, levels, d) of q and (B, Hk, levels, d) of k; empty
             tensors otherwise

    What is launched does not depend on lengths, so a captured CUDA graph serves every token.
    """
    rows: tuple[Tensor, Tensor] = torch.ops.strata.hkt_append(q, k, v, queries, keys, values, lengths, current=current)
    return rows


def pyramid_step(
    x: Tensor, filters: Sequence[Tensor], inputs: Tensor | None, states: Sequence[Tensor], lengths: Tensor
) -> Tensor:
    """The rows that a new token x, (B, C), adds to a pyramid: (B, levels, C), row lengths >> l of level l, zeros where none
    begins. Not differentiable.

    filters  (taps, C) of levels 1, 2, ..; with `inputs` the first is that of a filter in front of everything
    inputs   ring (B, slots, C) of the newest inputs of that filter, updated
    states   rings (B, slots, C) of the newest rows of all levels but the last, updated; row r has slot r mod slots, and there
             are `taps` or more
    lengths  (B) int64, on the device of the others: tokens before the new one
    """
    rows: Tensor = torch.ops.strata.pyramid_step(x, filters, inputs, states, lengths)
    return rows


def causal_filter(x: Tensor, weight: Tensor, stride: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """y_m = sum_r W_r x_{stride m - r}, (B, ceil(T / stride), C).

    x: (B, T, C); weight: (taps, C) depthwise or (taps, C, C) dense. Differentiable.

    cu_seqlens: x is (1, T, C) of packed sequences (hkt_attention), which the filter keeps apart; with stride 2 the result
    has packed_rows(T, N, 1) rows, zero where they belong to no sequence.
    """
    y: Tensor = torch.ops.strata.causal_filter(x, weight, stride, cu_seqlens)
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
