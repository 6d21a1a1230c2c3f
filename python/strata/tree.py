"""Nested signals: trees over tokens, built in C++ and passed to the operators as one int32 tensor each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Tree:
    """An immutable tree over the tokens of one sequence. `encoded` is the tensor that the operators take.

    Tree.balanced(tokens, branching)       left-packed b-ary
    Tree.windows(tokens, [16, 8], shift=0) 16 tokens per family, 8 families above, 8 above those, ..
    Tree.star(tokens)                      one family: exactly softmax attention
    Tree.quadtree(height, width)           2 x 2 grids; permute the image by Tree.quadtree_order first
    Tree.parents([..])                     parent of every node, -1 for the root; nodes without children are tokens
    Tree.brackets("[MAX 2 [MIN 4 7 ] ]")   every word a token, every bracket pair a family
    tree.with_ends(before, behind)         tokens at both ends as siblings of the whole tree

    Tree.text(text), Tree.markdown(text) and Tree.json(text) read documents and return (tree, leaves). leaves has one
    row (begin, end, image, row, column) per token, begin and end in bytes of the UTF-8 text.

    Families have a domain: "set" (no positions), "sequence" or "grid".
    """

    def __init__(self, encoded: Tensor) -> None:
        self.encoded = encoded

    @property
    def tokens(self) -> int:
        return int(self.encoded[0])

    @property
    def families(self) -> int:
        return int(self.encoded[1])

    def __repr__(self) -> str:
        return bytes(torch.ops.strata.tree_text(self.encoded).tolist()).decode().rstrip()

    @classmethod
    def balanced(cls, tokens: int, branching: int, domain: str = "sequence") -> Tree:
        return cls.windows(tokens, [branching], 0, domain)

    @classmethod
    def windows(cls, tokens: int, windows: Sequence[int], shift: int = 0, domain: str = "sequence") -> Tree:
        return cls(torch.ops.strata.tree_windows(tokens, windows, shift, domain))

    @classmethod
    def star(cls, tokens: int, domain: str = "set") -> Tree:
        return cls(torch.ops.strata.tree_star(tokens, domain))

    def with_ends(self, before: int, behind: int) -> Tree:
        """This tree with tokens in front of it and after it, as siblings under a new root: special tokens, which inside a
        family would be averaged with words."""
        return type(self)(torch.ops.strata.tree_with_ends(self.encoded, before, behind))

    @classmethod
    def quadtree(cls, height: int, width: int) -> Tree:
        return cls(torch.ops.strata.tree_quadtree(height, width))

    @staticmethod
    def quadtree_order(height: int, width: int) -> Tensor:
        """order[t] = row * width + column of token t."""
        return torch.ops.strata.tree_quadtree_order(height, width)

    @classmethod
    def parents(cls, parents: Sequence[int], domain: str = "sequence") -> Tree:
        return cls(torch.ops.strata.tree_parents(parents, domain))

    @classmethod
    def brackets(cls, text: str) -> Tree:
        return cls(torch.ops.strata.tree_brackets(text))

    @classmethod
    def text(cls, text: str, characters: bool = False) -> tuple[Tree, Tensor]:
        """Paragraphs, sentences, words and, with characters=True, characters."""
        encoded, leaves = torch.ops.strata.tree_from_text(text, characters)
        return cls(encoded), leaves

    @classmethod
    def markdown(cls, text: str, patch_rows: int = 2, patch_columns: int = 2) -> tuple[Tree, Tensor]:
        """Sections, blocks, sentences and words; an image is a grid of patches."""
        encoded, leaves = torch.ops.strata.tree_from_markdown(text, patch_rows, patch_columns)
        return cls(encoded), leaves

    @classmethod
    def json(cls, text: str, patch_rows: int = 2, patch_columns: int = 2) -> tuple[Tree, Tensor]:
        """Arrays are sequences, objects sets of members; {"image": ..} is a grid of patches."""
        encoded, leaves = torch.ops.strata.tree_from_json(text, patch_rows, patch_columns)
        return cls(encoded), leaves


Trees = Tree | Sequence[Tree | Tensor]  # one tree, or a list of trees or encoded trees


def _encoded(trees: Trees) -> list[Tensor]:
    listed = [trees] if isinstance(trees, Tree) else trees
    return [tree.encoded if isinstance(tree, Tree) else tree for tree in listed]


def hsa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    trees: Trees,
    *,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    positions: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention closest in KL to softmax that respects the trees: out (B, H, T, dv) and score (trees, H) = f(root).

    q, k: (B, H, T, d), v: (B, H, T, dv). One tree per sequence (padded batch), or several over B = 1 (packed). The rows
    of a node are tied to its mean query, so even causal=True looks ahead inside a node: use hsa_stream_attention for
    autoregressive models.
    """
    return torch.ops.strata.hsa_attention(
        q, k, v, _encoded(trees), weights=weights, key_bias=key_bias, positions=positions, causal=causal, scale=scale
    )


def hsa_stream_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branching: int = 16,
    *,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    positions: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The strictly causal form over the left-packed b-ary tree: out (B, H, T, dv) and lse (B, H, T)."""
    return torch.ops.strata.hsa_stream_attention(
        q, k, v, branching, weights=weights, key_bias=key_bias, positions=positions, scale=scale
    )


def hierarchy_score(
    q: Tensor,
    k: Tensor,
    trees: Trees,
    *,
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """f(root) per tree and head, in O(T). Of two trees over the same tokens, the one with the larger score is closer to
    softmax."""
    return torch.ops.strata.hierarchy_score(
        q, k, _encoded(trees), weights=weights, key_bias=key_bias, causal=causal, scale=scale
    )


def kl_gap(lse: Tensor, score: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum_i w_i KL(HSA_i || softmax_i), exactly, from flat attention's lse (B, H, T) and the score (B, H)."""
    if weights is None:
        return lse.sum(-1) - lse.shape[-1] * score
    w = weights.unsqueeze(1)
    return torch.where(w > 0, w * lse, torch.zeros_like(lse)).sum(-1) - weights.sum(-1, keepdim=True) * score


def window_family(
    tokens: int, windows: Sequence[int] = (2, 4, 8, 16, 32), shifts: int = 1, domain: str = "set"
) -> list[Tree]:
    """Candidates for best_tree: for each window size, `shifts` trees whose first boundaries are evenly spaced."""
    trees: list[Tree] = []
    for window in windows:
        starts = sorted({window * part // shifts for part in range(min(shifts, window))})
        trees += [Tree.windows(tokens, [window], start, domain) for start in starts]
    return trees


def best_tree(
    q: Tensor, k: Tensor, candidates: Sequence[Tree], *, max_cost: int | None = None, **options: Any
) -> tuple[Tree, Tensor]:
    """The candidate with the largest score, summed over heads, and so with the smallest KL gap to full attention.

    q, k: (1, H, T, d). Returns (tree, scores); scores has one number per candidate. Flattening never lowers a score, so
    compare trees of similar cost, or pass max_cost, the largest allowed number of score products (sum over families of
    children^2).
    """
    if not candidates:
        raise ValueError("candidates: expected at least one tree, got none")
    scores = torch.stack([hierarchy_score(q, k, [tree], **options).sum() for tree in candidates])
    allowed = scores.clone()
    if max_cost is not None:
        costs = torch.tensor([torch.ops.strata.tree_cost(tree.encoded) for tree in candidates])
        if not bool((costs <= max_cost).any()):
            cheapest = f"{int(costs.min())}, the cost of the cheapest candidate"
            raise ValueError(f"max_cost: expected at least {cheapest}, got {max_cost}")
        allowed[costs > max_cost] = -float("inf")
    return candidates[int(allowed.argmax())], scores
