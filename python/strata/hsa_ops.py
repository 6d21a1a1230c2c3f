"""HSA and Strata attention as typed functions, and the choice of a tree by its score. The trees are in strata.tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strata._values import Integers, Levels, integer, integers, levels_list, require, sequence_ends
from strata.tree import Tree, Trees, _encoded


def hsa_attention(
    q: Levels,
    k: Levels,
    v: Tensor,
    trees: Trees,
    *,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    positions: Tensor | None = None,
    level_weights: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention closest in KL to softmax that respects the trees: out (B, H, T, dv) and score (trees, H) = f(root).
    With several levels, the closest to HKT's attention.

    q, k, v    (B, H, T, d), (B, Hk, T, d), (B, Hk, T, dv), Hk a divisor of H; float32, float64 or bfloat16. For several
               levels q and k are lists, level l of ceil(T / 2^l) rows
    trees      one per sequence (padded batch: tree n covers the first tokens of sequence n, the other rows are zero), or
               several over B = 1 (packed: they follow each other and cover all T tokens). One tensor may hold all trees
               of a padded batch, see trees_windows
    weights    (B, T), 0 or more, 0 is padding; float64 with float64 inputs and float32 otherwise, like the next two
    key_bias   (B, Hk, T): added to the scores of a key, averaged like k
    positions  (H, tables, places, places): terms between siblings; Tree says which table a family uses
    level_weights
               (H, levels): how the levels are mixed, convex; needed for several levels. In a packed batch the rows of a
               level follow each other, ceil(T_n / 2^l) of sequence n
    causal     only earlier siblings count
    scale      of the scores; 1 / sqrt(d) unless given

    The rows of a node are tied to its mean query, so even causal=True looks ahead inside a node: use
    hsa_stream_attention for autoregressive models. Differentiable, once. Wrong shapes and types give a RuntimeError,
    wrong values a ValueError; both name the argument.
    """
    out, score = torch.ops.strata.hsa_attention(
        levels_list(q),
        levels_list(k),
        v,
        _encoded(trees),
        weights=weights,
        key_bias=key_bias,
        positions=positions,
        level_weights=level_weights,
        causal=causal,
        scale=scale,
    )
    return out, score


def hsa_stream_attention(
    q: Levels,
    k: Levels,
    v: Tensor,
    branching: int = 16,
    *,
    near: int = 1,
    both_sides: bool = False,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    positions: Tensor | None = None,
    level_weights: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_state: Tensor | None = None,
    cu_seqlens: Integers | None = None,
    max_seqlen: int = 0,
) -> tuple[Tensor, Tensor]:
    """The strictly causal form over the left-packed b-ary tree: out (B, H, T, dv) and lse (B, H, T).

    q, k, v    (B, H, T, d), (B, Hk, T, d), (B, Hk, T, dv), Hk a divisor of H; float32, float64 or bfloat16. For several
               levels q and k are lists, level l of ceil(T / 2^l) rows
    branching  b, 2 to 64
    near       families of each height that a token sees, its own included; 1 is streaming HSA, without end it is HKT
    both_sides a token also sees what comes after it: for encoders without a tree
    weights    (B, T): 0 hides a token from the others and keeps its place
    key_bias   (B, Hk, T): added to the scores of a key, averaged like k
    positions  (H, heights, near, b, b): terms of each height, by how many families the node is back, the place of the
               token's ancestor and that of the node; none above. (H, heights, b, b) with near = 1;
               (H, heights, 2 near - 1, b, b) with both sides, from near - 1 ahead to near - 1 back
    level_weights
               (H, levels): how the levels are mixed, convex; needed for several levels
    scale      of the scores; 1 / sqrt(d) unless given
    dropout_p, dropout_state
               as in hkt_attention; the weight of a node is dropped as one
    cu_seqlens, max_seqlen
               packed sequences, as in hkt_attention; each has its own tree

    Differentiable, once. Wrong shapes and types give a RuntimeError, wrong values a ValueError.
    """
    if dropout_p > 0 and dropout_state is None:
        dropout_state = torch.randint(2**62, (2,), device=v.device)
    out, lse = torch.ops.strata.hsa_stream_attention(
        levels_list(q),
        levels_list(k),
        v,
        branching,
        weights=weights,
        key_bias=key_bias,
        positions=positions,
        level_weights=level_weights,
        near=near,
        both_sides=both_sides,
        scale=scale,
        cu_seqlens=sequence_ends("cu_seqlens", cu_seqlens, v),
        max_seqlen=integer("max_seqlen", max_seqlen),
        dropout=float(dropout_p),
        dropout_state=dropout_state,
    )
    return out, lse


def hsa_stream_certificate(
    q: Levels,
    k: Levels,
    branching: int = 16,
    *,
    near: int = 1,
    both_sides: bool = False,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    level_weights: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """A bound of every row's KL divergence from HKT's attention on the same scores, (B, H, T), at less than the cost of the
    attention itself (docs/MATH.md, section 3). The arguments are those of hsa_stream_attention. Not differentiable."""
    bound: Tensor = torch.ops.strata.hsa_stream_certificate(
        levels_list(q),
        levels_list(k),
        branching,
        weights=weights,
        key_bias=key_bias,
        level_weights=level_weights,
        near=near,
        both_sides=both_sides,
        scale=scale,
    )
    return bound


def hierarchy_score(
    q: Levels,
    k: Levels,
    trees: Trees,
    *,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    positions: Tensor | None = None,
    level_weights: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """f(root) per tree and head, (trees, H), in O(T) and without values; the arguments are those of hsa_attention. Of two
    trees over the same tokens, the one with the larger score is closer to softmax, with several levels to HKT.
    Differentiable, once."""
    score: Tensor = torch.ops.strata.hierarchy_score(
        levels_list(q),
        levels_list(k),
        _encoded(trees),
        weights=weights,
        key_bias=key_bias,
        positions=positions,
        level_weights=level_weights,
        causal=causal,
        scale=scale,
    )
    return score


def kl_gap(lse: Tensor, score: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum_i w_i KL(HSA_i || softmax_i), (B, H), exactly, from the lse (B, H, T) of flat attention, or of HKT where the
    score has several levels, and the score (B, H) of one tree per sequence. weights: (B, T), as in hsa_attention."""
    if weights is None:
        return lse.sum(-1) - lse.shape[-1] * score
    w = weights.unsqueeze(1)
    return torch.where(w > 0, w * lse, torch.zeros_like(lse)).sum(-1) - weights.sum(-1, keepdim=True) * score


def window_family(
    tokens: int, windows: Integers = (2, 4, 8, 16, 32), shifts: int = 1, domain: str = "set"
) -> list[Tree]:
    """Candidates for best_tree: for each window size, `shifts` trees whose first boundaries are evenly spaced."""
    require(integer("shifts", shifts) >= 1, f"shifts: expected 1 or more, got {shifts}")
    trees: list[Tree] = []
    for window in integers("windows", windows):
        starts = sorted({window * part // shifts for part in range(min(shifts, window))})
        trees += [Tree.windows(tokens, [window], start, domain) for start in starts]
    return trees


def best_tree(
    q: Levels,
    k: Levels,
    candidates: Sequence[Tree],
    *,
    max_cost: int | None = None,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    positions: Tensor | None = None,
    level_weights: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tree, Tensor]:
    """The candidate with the largest score, summed over heads, and so with the smallest KL gap to full attention.

    q, k: (1, H, T, d); the other arguments are those of hsa_attention. Returns (tree, scores); scores has one number per
    candidate. Flattening never lowers a score, so compare trees of similar cost, or pass max_cost, the largest allowed
    number of score products (sum over families of children^2).
    """
    if not candidates:
        raise ValueError("candidates: expected at least one tree, got none")
    options = {"weights": weights, "key_bias": key_bias, "positions": positions, "level_weights": level_weights}
    scores = torch.stack(
        [hierarchy_score(q, k, [tree], causal=causal, scale=scale, **options).sum() for tree in candidates]
    )
    allowed = scores.clone()
    if max_cost is not None:
        costs = torch.tensor([tree.cost for tree in candidates], device=scores.device)
        if not bool((costs <= max_cost).any()):
            cheapest = f"{int(costs.min())}, the cost of the cheapest candidate"
            raise ValueError(f"max_cost: expected at least {cheapest}, got {max_cost}")
        allowed[costs > max_cost] = -float("inf")
    return candidates[int(allowed.argmax())], scores
