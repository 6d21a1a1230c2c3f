"""Nested signals: trees over tokens, built in C++ and passed to the operators as one int32 tensor each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from strata._values import (
    Integers,
    Pairs,
    described,
    integer,
    integer_tensor,
    integers,
    nested_spans,
    pairs,
    string,
    strings,
)

_TOKEN_ENDS = ("start", "end")  # attributes of a span of tokens, as spaCy names them
_CHARACTER_ENDS = ("start_char", "end_char")


class Tree:
    """An immutable tree over the tokens of one sequence. `encoded` is the tensor that the operators take.

    By rule:

    Tree.balanced(tokens, branching)       left-packed b-ary
    Tree.windows(tokens, [16, 8], shift=0) 16 tokens per family, 8 families above, 8 above those, ..
    Tree.star(tokens)                      one family: exactly softmax attention
    Tree.quadtree(height, width)           2 x 2 grids; permute the image by Tree.quadtree_order first

    From data. Lists of numbers may be lists, tuples, numpy arrays or tensors:

    Tree.nested([[a, b], [c, [d, e]]])     lists in lists; everything else is a token
    Tree.from_spans(tokens, [(0, 3), ..])  the tokens that each family covers
    Tree.from_offsets([[0, 3, 7], ..])     boundaries, level by level
    Tree.from_character_spans(offsets, ..) a tokenizer's offset mapping, and words or sentences as spans of characters
    Tree.parents([..])                     parent of every node, -1 for the root; nodes without children are tokens
    Tree.brackets("[MAX 2 [MIN 4 7 ] ]")   every word a token, every bracket pair a family

    From documents. Tree.text(text), Tree.markdown(text) and Tree.json(text) return (tree, leaves). leaves has one row
    (begin, end, image, row, column) per token, begin and end in bytes of the UTF-8 text.

    Batches, built in parallel: Tree.batch_balanced, batch_windows, batch_spans and batch_text.

    From trees: tree.with_ends(before, behind) adds tokens at both ends, tree.with_domain(domain) changes the domain.

    Every family has a domain. It says which position terms there are between its children:

    "set"       none
    "sequence"  those of table 0: by the places of two children
    "grid"      those of table w: the children are the rows of a grid of width w, one after the other. Tree.quadtree and
                the images of documents are grids, and tree.with_domain("grid", width) makes them; the other builders
                do not, because a grid needs a width
    """

    encoded: Tensor

    def __init__(self, encoded: Tensor) -> None:
        """encoded: int32 (n) on the CPU, as made by another tree or by an operator."""
        if not isinstance(encoded, Tensor) or encoded.dtype != torch.int32 or encoded.dim() != 1:
            raise ValueError(
                f"encoded: expected an int32 tensor of one dimension made by strata.Tree, got {described(encoded)}; "
                "use Tree.nested, Tree.from_spans or another builder to make a tree"
            )
        self.encoded = encoded

    # --------------------------------------------------------------------------------------------- properties

    @property
    def tokens(self) -> int:
        """How many tokens the tree covers; also len(tree)."""
        return int(self.encoded[0])

    @property
    def families(self) -> int:
        """How many inner nodes the tree has; 0 only without tokens."""
        return int(self.encoded[1])

    @property
    def cost(self) -> int:
        """Score products of attention on this tree, per head: the sum over families of children^2."""
        return int(torch.ops.strata.tree_cost(self.encoded))

    @property
    def depth(self) -> int:
        """Families on the longest path from the root to a token."""
        families = self.families
        if families == 0:
            return 0
        begins = self.encoded[2 : 3 + families].tolist()
        parents = [0] * families
        children = self.encoded[3 + families : 3 + families + begins[-1]].tolist()
        for family in range(families):
            for child in children[begins[family] : begins[family + 1]]:
                if child < 0:
                    parents[~child] = family
        depth, family = 1, families - 1  # families lie breadth first: none is deeper than the last
        while family > 0:
            depth, family = depth + 1, parents[family]
        return depth

    def spans(self) -> Tensor:
        """(families, 2) int64: the tokens [begin, end) that each family covers, the root first, breadth first."""
        spans: Tensor = torch.ops.strata.tree_spans(self.encoded)
        return spans

    def __len__(self) -> int:
        return self.tokens

    def __eq__(self, other: object) -> bool:
        """Whether both have the same families, with the same domains."""
        if not isinstance(other, Tree):
            return NotImplemented
        return bool(torch.equal(self.encoded, other.encoded))

    def __hash__(self) -> int:
        return hash(tuple(self.encoded.tolist()))

    def __repr__(self) -> str:
        return bytes(torch.ops.strata.tree_text(self.encoded).tolist()).decode().rstrip()

    # --------------------------------------------------------------------------------------------- by rule

    @classmethod
    def balanced(cls, tokens: int, branching: int, domain: str = "sequence") -> Tree:
        """Left-packed b-ary: a family of height h ends at the multiples of branching^(h + 1)."""
        return cls.windows(tokens, [integer("branching", branching)], 0, domain)

    @classmethod
    def windows(cls, tokens: int, windows: Integers, shift: int = 0, domain: str = "sequence") -> Tree:
        """windows[h] children per family of height h, the last entry repeated up to the root. The first boundary lies at
        `shift` tokens, 0 <= shift < windows[0]."""
        return cls(
            torch.ops.strata.tree_windows(
                integer("tokens", tokens),
                integers("windows", windows),
                integer("shift", shift),
                string("domain", domain),
            )
        )

    @classmethod
    def star(cls, tokens: int, domain: str = "set") -> Tree:
        """One family of all tokens: exactly softmax attention."""
        return cls(torch.ops.strata.tree_star(integer("tokens", tokens), string("domain", domain)))

    @classmethod
    def quadtree(cls, height: int, width: int) -> Tree:
        """An image of height x width tokens in the order of quadtree_order(): families are 2 x 2 grids, cut at the
        border."""
        return cls(torch.ops.strata.tree_quadtree(integer("height", height), integer("width", width)))

    @staticmethod
    def quadtree_order(height: int, width: int) -> Tensor:
        """(height * width) int64: order[t] = row * width + column of token t."""
        order: Tensor = torch.ops.strata.tree_quadtree_order(integer("height", height), integer("width", width))
        return order

    # --------------------------------------------------------------------------------------------- from data

    @classmethod
    def nested(cls, data: Sequence[Any], domain: str = "sequence") -> Tree:
        """Lists and tuples are families; everything else, strings too, is a token. The tokens are numbered from left to
        right. Any depth is allowed. A list of one item adds no family. Empty lists are refused."""
        if not isinstance(data, (list, tuple)):
            raise ValueError(f"data: expected a list or tuple, got {described(data)}")
        tokens, spans = nested_spans(data)
        return cls.from_spans(tokens, spans, domain)

    @classmethod
    def from_spans(cls, tokens: int, spans: Pairs, domain: str = "sequence") -> Tree:
        """spans: the tokens [begin, end) of each family, as (n, 2) numbers, pairs, or objects with `start` and `end`
        (spaCy's spans). They come in any order and must be nested: of two, one contains the other or they share nothing.
        The root needs no span. Spans of fewer than two tokens and repeated ones add no family."""
        return cls(
            torch.ops.strata.tree_from_spans(
                integer("tokens", tokens), pairs("spans", spans, _TOKEN_ENDS), string("domain", domain)
            )
        )

    @classmethod
    def from_offsets(cls, levels: Sequence[Integers], domain: str = "sequence") -> Tree:
        """levels: boundaries, the lowest level first, as in ragged tensors. Item n of a level holds the items
        levels[h][n] .. levels[h][n + 1] - 1 of the level below; the lowest level holds tokens. Each level begins at 0 and
        ends at the number of items below. Items may be empty. [[0, 3, 7]] is two families of 3 and 4 tokens."""
        if not isinstance(levels, (list, tuple)):
            raise ValueError(
                "levels: expected a list with one list of boundaries per level, as [[0, 3, 7]], got "
                + described(levels)
            )
        tensors = [integer_tensor(f"levels[{n}]", level) for n, level in enumerate(levels)]
        return cls(torch.ops.strata.tree_from_offsets(tensors, string("domain", domain)))

    @classmethod
    def from_character_spans(cls, offsets: Pairs, spans: Pairs, domain: str = "sequence") -> Tree:
        """Words, sentences and other spans of characters over the tokens of a tokenizer.

        offsets  (tokens, 2): the characters [begin, end) of each token, as a tokenizer's offset mapping
        spans    (n, 2) characters [begin, end), pairs, or objects with `start_char` and `end_char` (spaCy's spans), nested
                 and in any order

        A token belongs to every span that contains its last character: some tokenizers put the space before a word into
        the word's token. Special tokens have an empty range, usually (0, 0); those at both ends become siblings of the
        rest, one in the middle belongs to the spans around it."""
        tokens = pairs("offsets", offsets, _CHARACTER_ENDS)
        return cls(
            torch.ops.strata.tree_from_character_spans(
                tokens, pairs("spans", spans, _CHARACTER_ENDS), string("domain", domain)
            )
        )

    @classmethod
    def parents(cls, parents: Integers, domain: str = "sequence") -> Tree:
        """parents[n] is the parent of node n, -1 for the root. Nodes without children are tokens, in the order of their
        numbers."""
        return cls(torch.ops.strata.tree_parents(integers("parents", parents), string("domain", domain)))

    @classmethod
    def brackets(cls, text: str) -> Tree:
        """Every word that white space separates is a token. A word that begins with '[' opens a family and is its first
        child; the word "]" closes the family and is its last child."""
        return cls(torch.ops.strata.tree_brackets(string("text", text)))

    # --------------------------------------------------------------------------------------------- from documents

    @classmethod
    def text(cls, text: str, characters: bool = False) -> tuple[Tree, Tensor]:
        """Paragraphs, sentences, words and, with characters=True, characters. Returns (tree, leaves), leaves (tokens, 5)
        int64 as the class describes them."""
        encoded, leaves = torch.ops.strata.tree_from_text(string("text", text), characters)
        return cls(encoded), leaves

    @classmethod
    def markdown(cls, text: str, patch_rows: int = 2, patch_columns: int = 2) -> tuple[Tree, Tensor]:
        """Sections, blocks, sentences and words; an image is a grid of patches. Returns (tree, leaves (tokens, 5))."""
        rows, columns = integer("patch_rows", patch_rows), integer("patch_columns", patch_columns)
        encoded, leaves = torch.ops.strata.tree_from_markdown(string("text", text), rows, columns)
        return cls(encoded), leaves

    @classmethod
    def json(cls, text: str, patch_rows: int = 2, patch_columns: int = 2) -> tuple[Tree, Tensor]:
        """Arrays are sequences, objects sets of members; {"image": ..} is a grid of patches. Returns (tree, leaves
        (tokens, 5))."""
        rows, columns = integer("patch_rows", patch_rows), integer("patch_columns", patch_columns)
        encoded, leaves = torch.ops.strata.tree_from_json(string("text", text), rows, columns)
        return cls(encoded), leaves

    # --------------------------------------------------------------------------------------------- batches

    @classmethod
    def batch_balanced(cls, lengths: Integers, branching: int, domain: str = "sequence") -> list[Tree]:
        """One balanced tree per length."""
        return cls.batch_windows(lengths, [integer("branching", branching)], 0, domain)

    @classmethod
    def batch_windows(
        cls, lengths: Integers, windows: Integers, shift: int = 0, domain: str = "sequence"
    ) -> list[Tree]:
        """Tree.windows for every length, in parallel. An error names the place in the batch."""
        encoded = torch.ops.strata.tree_batch_windows(
            integers("lengths", lengths),
            integers("windows", windows),
            integer("shift", shift),
            string("domain", domain),
        )
        return [cls(tree) for tree in encoded]

    @classmethod
    def batch_spans(cls, lengths: Integers, spans: Sequence[Pairs], domain: str = "sequence") -> list[Tree]:
        """Tree.from_spans for every sequence, in parallel: lengths[n] tokens and the spans spans[n]."""
        if not isinstance(spans, Iterable) or isinstance(spans, (str, bytes, dict)):
            raise ValueError(f"spans: expected one list of spans per sequence, got {described(spans)}")
        made = [pairs(f"spans[{n}]", each, _TOKEN_ENDS) for n, each in enumerate(spans)]
        encoded = torch.ops.strata.tree_batch_spans(integers("lengths", lengths), made, string("domain", domain))
        return [cls(tree) for tree in encoded]

    @classmethod
    def batch_text(cls, texts: Iterable[str], characters: bool = False) -> tuple[list[Tree], list[Tensor]]:
        """Tree.text for every text, in parallel. Returns (trees, leaves), one of each per text."""
        encoded, leaves = torch.ops.strata.tree_batch_text(strings("texts", texts), bool(characters))
        return [cls(tree) for tree in encoded], list(leaves)

    # --------------------------------------------------------------------------------------------- from trees

    def with_ends(self, before: int, behind: int) -> Tree:
        """This tree with tokens in front of it and after it, as siblings under a new root: special tokens, which inside a
        family would be averaged with words."""
        ends = integer("before", before), integer("behind", behind)
        return type(self)(torch.ops.strata.tree_with_ends(self.encoded, *ends))

    def with_domain(self, domain: str, width: int = 0) -> Tree:
        """This tree with another domain in every family: "set", "sequence" or "grid". width: of grids, at least 1
        and at most the children of the smallest family; 0 for the other domains."""
        return type(self)(
            torch.ops.strata.tree_with_domain(self.encoded, string("domain", domain), integer("width", width))
        )


Trees: TypeAlias = Tree | Tensor | Sequence[Tree | Tensor]  # one tree, or a list of trees or encoded trees


def _encoded(trees: Trees) -> list[Tensor]:
    """The tensors that the operators take."""
    if isinstance(trees, (Tree, Tensor)):
        trees = [trees]
    if not isinstance(trees, (list, tuple)):
        raise ValueError(f"trees: expected a strata.Tree or a list of them, got {described(trees)}")
    for n, tree in enumerate(trees):
        if not isinstance(tree, (Tree, Tensor)):
            raise ValueError(f"trees[{n}]: expected a strata.Tree or its encoded tensor, got {described(tree)}")
    return [tree.encoded if isinstance(tree, Tree) else tree for tree in trees]


def trees_windows(
    lengths: Tensor,
    windows: Sequence[int],
    shift: int = 0,
    domain: str = "sequence",
    *,
    before: int = 0,
    behind: int = 0,
) -> Tensor:
    """Tree.windows for every length of a batch, (B) integers, one behind the other in one int32 tensor: a compiled graph
    can make the trees of any batch and pass [tensor] as `trees`. Tree.batch_windows returns trees instead.

    before, behind: so many tokens at the ends stand beside the tree of the others, as by Tree.with_ends. A sequence that
    has no others gets the tree of all its tokens.
    """
    encoded: Tensor = torch.ops.strata.trees_windows(lengths, windows, shift, domain, before, behind)
    return encoded
