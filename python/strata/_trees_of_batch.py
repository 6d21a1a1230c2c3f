"""The trees of a padded batch of a Hugging Face model: built for its lengths, or checked against them. A compiled graph gets
them from operators, because lengths are known when it runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from strata._real_tokens import require
from strata.tree import Tree, trees_windows


def built_trees(lengths: Tensor, windows: Sequence[int], before: int = 0, behind: int = 0) -> list[Tensor]:
    """Tree.windows(length, windows) of every length, (B), with `before` and `behind` tokens beside the tree: one encoded
    tree per sequence or, in a compiled graph, all in one tensor."""
    if not torch.compiler.is_compiling():
        return [_tree(length, tuple(windows), before, behind).encoded for length in lengths.tolist()]
    return [trees_windows(lengths, windows, before=before, behind=behind)]


@functools.lru_cache(maxsize=512)
def _tree(length: int, windows: tuple[int, ...], before: int, behind: int) -> Tree:
    """Windows over the tokens between the ends; over all tokens if there are none between them."""
    if before + behind == 0 or before + behind >= length:
        return Tree.windows(length, windows)
    return Tree.windows(length - before - behind, windows).with_ends(before, behind)


def check_trees(name: str, trees: Sequence[Tensor], lengths: Tensor) -> None:
    """Each encoded tree must have as many tokens as its sequence."""
    for n, tree in enumerate(trees):
        if not isinstance(tree, torch.Tensor):
            raise ValueError(f"{name}: expected a Tree for sequence {n}, got {tree!r}")
    if len(trees) != lengths.shape[0]:
        raise ValueError(f"{name}: expected one per sequence of the batch, {lengths.shape[0]}, got {len(trees)}")
    tokens = torch.stack([tree[0] for tree in trees])
    right = tokens == lengths.to(tokens.device)
    if torch.compiler.is_compiling():
        require(right.all(), f"{name}: expected trees of as many tokens as their sequences have, without padding")
    elif not bool(right.all()):
        n = int((~right).nonzero()[0, 0])
        raise ValueError(
            f"{name}: expected a Tree of {int(lengths[n])} tokens for sequence {n}, got one of {int(tokens[n])}"
        )


def split_trees(forest: Tensor) -> list[Tensor]:
    """The trees that follow each other in one tensor. It reads values, so it cannot be part of a graph."""
    trees, begin = [], 0
    while begin < forest.numel():
        rest = forest[begin:]
        families = int(rest[1]) if rest.numel() > 2 else rest.numel()
        end = 3 + 2 * families + int(rest[2 + families]) if 0 <= families < rest.numel() - 2 else rest.numel() + 1
        if not 3 <= end <= rest.numel():
            raise ValueError("trees: the sizes in this tensor are inconsistent; create it with strata.Tree")
        trees.append(rest[:end])
        begin += end
    return trees
