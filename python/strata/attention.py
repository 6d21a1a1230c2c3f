"""One function for all attentions, with the layout and the argument names of torch's scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strata._values import Integers, compute_type, described, integer, require, window
from strata.hsa_ops import hsa_attention, hsa_stream_attention
from strata.ops import hkt_attention
from strata.tree import Trees


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    levels: Sequence[tuple[Tensor, Tensor]] = (),
    level_weights: Tensor | None = None,
    tree: Trees | None = None,
    near: int | None = None,
    branching: int = 16,
    window_size: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    cu_seqlens: Integers | None = None,
    key_cu_seqlens: Integers | None = None,
    max_seqlen: int = 0,
    key_max_seqlen: int = 0,
) -> Tensor:
    """Attention as torch.nn.functional.scaled_dot_product_attention has it, (.., H, T, dv), and with its two knobs more:
    `levels`, how many scales a score has, and `tree` or `near`, which keys share a score. Differentiable, once.

    query, key, value
               (.., H, T, d), (.., H, Tk, d), (.., H, Tk, dv); any number of dimensions before the heads. Tk differs from
               T in cross-attention, which goes neither with a tree nor with near
    attn_mask  broadcasts to (.., H, T, Tk): boolean, True where a query may see a key, or a number that is added to the
               scores. Not with a tree or near, whose keys share scores. A row that may see nothing is zero, not NaN
    dropout_p  probability with which an attention weight is dropped, and the others are divided by 1 - p. It is always
               applied, as in torch: pass 0 when you evaluate. Not with a tree, whose tokens share weights
    is_causal  a query sees the keys up to its own. Not with a mask, as in torch, nor with a tree, whose queries are means
               that look ahead: use near
    scale      of the scores; 1 / sqrt(d) unless given
    enable_gqa key and value may have fewer heads than query; their number divides that of query
    levels     of HKT: for each level above the first the pair of its queries and keys, ceil(T / 2^l) rows each
    level_weights
               (H, 1 + len(levels)): how the levels are mixed, convex; all alike unless given
    tree       a Tree, or one for each sequence: keys in other families are seen as means (HSA, Strata attention)
    near       without a tree: the families of each height that are seen one by one (streaming HSA, Strata attention);
               is_causal chooses the causal form or the one of both sides
    branching  of near: 2 to 64 children of a node
    window_size
               (left, right): query i sees keys i - left .. i + right only; -1 is without end. Without tree and near
    alibi_slopes
               (H): - slope |i - j| is added to the scores. Without tree and near
    cu_seqlens, key_cu_seqlens, max_seqlen, key_max_seqlen
               packed sequences, (1, H, rows of all, d), as in hkt_attention. Not with a tree, which packs by itself
    """
    _check(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, tree, near)
    _check_flat_only(tree, near, {"window_size": window(window_size) != (-1, -1), "alibi_slopes": alibi_slopes is not None})
    require(
        cu_seqlens is None or tree is None,
        "cu_seqlens: expected none with a tree; Tree.forest of the sequences' trees keeps them apart",
    )
    front = value.shape[:-3]  # dimensions before the heads

    def batched(x: Tensor) -> Tensor:
        return x.reshape(-1, *x.shape[-3:])

    q = [batched(query), *(batched(pair[0]) for pair in levels)]
    k = [batched(key), *(batched(pair[1]) for pair in levels)]
    v = batched(value)
    if level_weights is None:
        level_weights = torch.full(
            (q[0].shape[1], len(q)), 1.0 / len(q), dtype=compute_type(v.dtype), device=v.device
        )
    if tree is not None:
        out, _ = hsa_attention(q, k, v, tree, level_weights=level_weights, scale=scale)
    elif near is not None:
        out, _ = hsa_stream_attention(
            q,
            k,
            v,
            branching,
            near=integer("near", near),
            both_sides=not is_causal,
            level_weights=level_weights,
            scale=scale,
            dropout_p=dropout_p,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
        )
    else:
        out, _ = hkt_attention(
            q,
            k,
            v,
            level_weights,
            bias=None if attn_mask is None else _bias(attn_mask, query, v),
            causal=is_causal,
            scale=scale,
            window_size=window_size,
            alibi_slopes=None if alibi_slopes is None else alibi_slopes.to(level_weights.dtype),
            dropout_p=dropout_p,
            cu_seqlens=cu_seqlens,
            key_cu_seqlens=key_cu_seqlens,
            max_seqlen=max_seqlen,
            key_max_seqlen=key_max_seqlen,
        )
    return out.reshape(*front, *out.shape[-3:])


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
    tree: Trees | None,
    near: int | None,
) -> None:
    """What torch's function would accept, or refuse, and these kernels do not."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        require(tensor.dim() >= 3, f"{name}: expected (.., heads, tokens, channels), got {described(tensor)}")
    shared = "tree" if tree is not None else "near"
    require(
        key.shape[-2] == query.shape[-2] or (tree is None and near is None),
        f"key: expected as many tokens as query with {shared}, {query.shape[-2]}, got {key.shape[-2]}; cross-attention "
        "goes with levels alone",
    )
    require(
        enable_gqa or key.shape[-3] == query.shape[-3],
        f"key: expected as many heads as query, {query.shape[-3]}, got {key.shape[-3]}; pass enable_gqa=True to share keys",
    )
    require(0 <= dropout_p < 1, f"dropout_p: expected a probability from 0 to less than 1, got {dropout_p}")
    require(
        dropout_p == 0 or tree is None,
        "dropout_p: expected 0 with a tree, whose tokens share weights, so that dropping one would drop a whole block; "
        "use dropout on the output",
    )
    require(tree is None or near is None, "tree, near: expected one of them, got both; near goes without a tree")
    require(
        not (is_causal and attn_mask is not None),
        "attn_mask: expected none with is_causal=True; put the causal mask into attn_mask",
    )
    require(
        attn_mask is None or (tree is None and near is None),
        f"attn_mask: expected none with {shared}, whose keys share scores; hide keys by the weights of "
        f"{'hsa_attention' if tree is not None else 'hsa_stream_attention'}",
    )
    require(
        not (is_causal and tree is not None),
        "is_causal: expected False with a tree, whose queries are means that look ahead; use near for causal attention",
    )


def _check_flat_only(tree: Trees | None, near: int | None, given: dict[str, bool]) -> None:
    """Refuses what is about single pairs of tokens where tokens share scores."""
    shared = "tree" if tree is not None else "near"
    for name, is_given in given.items():
        require(
            not is_given or (tree is None and near is None),
            f"{name}: expected none with {shared}, whose keys share scores; near itself is a window of exact scores",
        )


def _bias(attn_mask: Tensor, query: Tensor, v: Tensor) -> Tensor:
    """The mask as a bias of the scores, with one dimension before the heads."""
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=v.dtype).masked_fill(~attn_mask, -float("inf"))
    bias = attn_mask.to(v.dtype)
    if bias.dim() > 4 or query.dim() > 4:
        keys = v.shape[-2]
        bias = bias.expand(*query.shape[:-1], keys).reshape(-1, *query.shape[-3:-1], keys)
    return bias
