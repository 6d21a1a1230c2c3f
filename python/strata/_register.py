"""What PyTorch wants to know of an operator beside its kernels: the shapes of its results, for torch.compile, torch.export
and meta tensors; how torch.vmap treats it; what it costs, for the FLOP counter. Kernels, gradients and the remaining shapes
are registered in C++ (src/torch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Rule = Callable[..., Any]


def _compute(q: Tensor) -> torch.dtype:
    """The type of computation: float64 for float64, float32 for all others."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _empty_like(like: Tensor, heads: Any = None) -> Tensor:
    """An empty tensor (B, H, T, C), token-major in memory if `like` is: the kernels do the same. heads: as many as
    `like` has unless given."""
    batch, own_heads, tokens, channels = like.shape
    heads = own_heads if heads is None else heads
    if own_heads > 1 and like.stride(1) < like.stride(2):
        return like.new_empty(batch, tokens, heads, channels).transpose(1, 2)
    return like.new_empty(batch, heads, tokens, channels)


def _count(q: Tensor, trees: Sequence[Tensor]) -> Any:
    """How many trees there are: one tensor holds those of a whole batch."""
    return q.shape[0] if len(trees) == 1 else len(trees)


# ------------------------------------------------------------------------------------------------- shapes


def _fake_hsa_attention(
    q: Sequence[Tensor], k: Sequence[Tensor], v: Tensor, trees: Sequence[Tensor], *terms: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    heads = q[0].shape[1]
    return _empty_like(v, heads), v.new_empty(_count(v, trees), heads, dtype=_compute(v))


def _fake_hsa_attention_backward(
    dout: Tensor,
    dscore: Tensor | None,
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Tensor,
    trees: Sequence[Tensor],
    weights: Tensor | None,
    key_bias: Tensor | None,
    positions: Tensor | None,
    level_weights: Tensor | None,
    causal: bool,
    scale: float | None,
) -> list[Tensor]:
    terms = [
        v.new_empty((0,) if term is None else term.shape, dtype=_compute(v))
        for term in (weights, key_bias, positions, level_weights)
    ]
    return [*(_empty_like(level) for level in (*q, *k)), _empty_like(v), *terms]


def _fake_hierarchy_score(
    q: Sequence[Tensor], k: Sequence[Tensor], trees: Sequence[Tensor], *terms: Tensor | None, **options: Any
) -> Tensor:
    return q[0].new_empty(_count(q[0], trees), q[0].shape[1], dtype=_compute(q[0]))


def _open_size() -> Any:
    """A size that is known when the operator has run."""
    return torch.library.get_ctx().new_dynamic_size()


def _fake_tree(*arguments: Any, **options: Any) -> Tensor:
    return torch.empty(_open_size(), dtype=torch.int32)


def _fake_document(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return _fake_tree(), torch.empty(_open_size(), 5, dtype=torch.int64)


def _fake_spans(encoded: Tensor) -> Tensor:
    return torch.empty(_open_size(), 2, dtype=torch.int64)


def _fake_trees(batch: Sequence[Any], *arguments: Any) -> list[Tensor]:
    return [_fake_tree() for _ in batch]


def _fake_documents(texts: Sequence[str], characters: bool) -> tuple[list[Tensor], list[Tensor]]:
    made = [_fake_document() for _ in texts]
    return [tree for tree, _ in made], [leaves for _, leaves in made]


def _fake_order(height: int, width: int) -> Tensor:
    return torch.empty(height * width, dtype=torch.int64)


def _fake_text(encoded: Tensor) -> Tensor:
    return torch.empty(_open_size(), dtype=torch.uint8)


def _fake_cost(encoded: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.int64)


def _fake_positions(tables: int, places: int) -> Tensor:
    return torch.empty(tables, places, places)


_ATTENTION_SHAPES: dict[str, Rule] = {
    "hsa_attention": _fake_hsa_attention,
    "hsa_attention_backward": _fake_hsa_attention_backward,
    "hierarchy_score": _fake_hierarchy_score,
}
_TREE_SHAPES: dict[str, Rule] = {
    "tree_windows": _fake_tree,
    "tree_star": _fake_tree,
    "tree_with_ends": _fake_tree,
    "tree_quadtree": _fake_tree,
    "tree_quadtree_order": _fake_order,
    "tree_parents": _fake_tree,
    "tree_brackets": _fake_tree,
    "tree_from_text": _fake_document,
    "tree_from_markdown": _fake_document,
    "tree_from_json": _fake_document,
    "tree_from_spans": _fake_tree,
    "tree_from_offsets": _fake_tree,
    "tree_from_character_spans": _fake_tree,
    "tree_with_domain": _fake_tree,
    "tree_spans": _fake_spans,
    "tree_batch_windows": _fake_trees,
    "tree_batch_spans": _fake_trees,
    "tree_batch_text": _fake_documents,
    "tree_text": _fake_text,
    "tree_cost": _fake_cost,
    "trees_windows": _fake_tree,
    "sinusoidal_positions": _fake_positions,
}

# ------------------------------------------------------------------------------------------------- vmap

_MAPPED = (
    "hkt_attention",
    "hkt_attention_backward",
    "hkt_decode",
    "hsa_attention",
    "hsa_attention_backward",
    "hierarchy_score",
    "hsa_stream_attention",
    "hsa_stream_attention_backward",
    "hsa_stream_certificate",
    "depthwise_filter",
    "depthwise_filter_backward",
)


def _loop_over(op: Rule) -> Rule:
    """A rule for torch.vmap that calls the operator once per element and stacks the results."""

    def pick(argument: Any, dim: Any, index: int) -> Any:
        if isinstance(argument, (list, tuple)):
            return [pick(*pair, index) for pair in zip(argument, dim, strict=True)] if dim is not None else argument
        return argument if dim is None else argument.select(dim, index)

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any, **options: Any) -> tuple[Any, Any]:
        results = [
            op(*(pick(argument, dim, index) for argument, dim in zip(arguments, in_dims, strict=True)), **options)
            for index in range(info.batch_size)
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = type(results[0])(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, type(results[0])(0 for _ in stacked)

    return rule


# ------------------------------------------------------------------------------------------------- cost


def _pairs(q: Sequence[Any], k: Sequence[Any]) -> int:
    """Score products over all levels: shapes are those of q[l] and k[l], (B, H, rows, d)."""
    return sum(
        int(batch) * int(heads) * int(rows) * int(keys[2])
        for (batch, heads, rows, _), keys in zip(q, k, strict=True)
    )


def _hkt_flops(q: Sequence[Any], k: Sequence[Any], v: Any, *arguments: Any, **options: Any) -> int:
    """Two per multiply-add, as if nothing were masked: torch counts its own attention in this way."""
    return 2 * _pairs(q, k) * int(q[0][3]) + 2 * _pairs(q[:1], k[:1]) * int(v[3])


def _hkt_backward_flops(
    dout: Any, dlse: Any, q: Sequence[Any], k: Sequence[Any], v: Any, *arguments: Any, **options: Any
) -> int:
    """The scores again, their gradients to q and k, and two products with the values."""
    return 6 * _pairs(q, k) * int(q[0][3]) + 4 * _pairs(q[:1], k[:1]) * int(v[3])


def _stream_rows(shape: Any, branching: int, near: int, both_sides: bool) -> int:
    """Scores that all tokens compute, of one level: at each height those of the near - 1 families before its own and of
    half of its own, and as many ahead with both sides; one of the token itself."""
    batch, heads, tokens, _ = (int(size) for size in shape)
    digits, total = tokens, 0
    while digits > 0:
        total += 1
        digits //= branching
    entries = (2 * near - 1) * branching if both_sides else (branching - 1) // 2 + (near - 1) * branching
    return batch * heads * tokens * min(tokens, 1 + total * entries)


def _stream_flops(
    q: Any, k: Any, v: Any, branching: int, *arguments: Any, near: int = 1, both_sides: bool = False, **options: Any
) -> int:
    rows = _stream_rows(q[0], branching, near, both_sides)
    return 2 * rows * (len(q) * int(q[0][3]) + int(v[3]))


def _stream_backward_flops(
    dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, branching: int, *arguments: Any, **options: Any
) -> int:
    near, both_sides = arguments[6], arguments[7]
    return _stream_rows(q[0], branching, near, both_sides) * (6 * len(q) * int(q[0][3]) + 4 * int(v[3]))


def _filter_flops(x: Any, weight: Any, stride: int, *arguments: Any, **options: Any) -> int:
    batch, tokens, channels = (int(size) for size in x)
    return 2 * batch * -(-tokens // stride) * channels * int(weight[0])


def _tree_flops(trees: Sequence[Tensor], q: Sequence[Tensor], v: Tensor) -> int:
    """The cost of a tree is its number of score products, of each head; each level has its own."""
    products = sum(int(torch.ops.strata.tree_cost(tree)) for tree in trees)
    return int(2 * products * q[0].shape[1] * (len(q) * q[0].shape[3] + v.shape[3]))


def _hsa_flops(q: Sequence[Tensor], k: Any, v: Tensor, trees: Sequence[Tensor], *terms: Any, **options: Any) -> int:
    return _tree_flops(trees, q, v)


def _hsa_backward_flops(
    dout: Tensor,
    dscore: Any,
    q: Sequence[Tensor],
    k: Any,
    v: Tensor,
    trees: Sequence[Tensor],
    *terms: Any,
    **options: Any,
) -> int:
    """The products of the forward again, and two of each in the gradients."""
    return 3 * _tree_flops(trees, q, v)


# ------------------------------------------------------------------------------------------------- registration


_kept: list[Any] = []  # registrations end with the object that made them


def _register_shapes() -> None:
    if not hasattr(torch.library, "register_fake"):  # before PyTorch 2.4: meta tensors alone
        library: Any = torch.library
        _kept.append(library.Library("strata", "IMPL", "Meta"))
        for name, rule in _ATTENTION_SHAPES.items():
            _kept[-1].impl(name, rule)
        return
    for name, rule in {**_ATTENTION_SHAPES, **_TREE_SHAPES}.items():
        torch.library.register_fake(f"strata::{name}", rule)


def _register_vmap() -> None:
    if not hasattr(torch.library, "register_vmap"):
        return
    for name in _MAPPED:
        torch.library.register_vmap(f"strata::{name}", _loop_over(getattr(torch.ops.strata, name)))


def _register_flops() -> None:
    try:
        from torch.utils.flop_counter import register_flop_formula
    except ImportError:  # before PyTorch 2.2
        return
    ops = torch.ops.strata
    register_flop_formula(ops.hkt_attention)(_hkt_flops)
    register_flop_formula(ops.hkt_attention_backward)(_hkt_backward_flops)
    register_flop_formula(ops.hsa_stream_attention)(_stream_flops)
    register_flop_formula(ops.hsa_stream_attention_backward)(_stream_backward_flops)
    register_flop_formula(ops.depthwise_filter)(_filter_flops)
    register_flop_formula(ops.depthwise_filter_backward)(lambda dy, *rest, **options: 2 * _filter_flops(*rest))
    register_flop_formula(ops.hsa_attention, get_raw=True)(_hsa_flops)
    register_flop_formula(ops.hsa_attention_backward, get_raw=True)(_hsa_backward_flops)


def register() -> None:
    """Called once, when the operators have been loaded."""
    _register_shapes()
    _register_vmap()
    _register_flops()
