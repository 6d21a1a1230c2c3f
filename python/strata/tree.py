"""Nested signals: trees over tokens, made in C++ and carried to the operators as one int32 tensor each."""

import torch


class Tree:
    """An immutable tree over the tokens of one sequence. `encoded` is what the operators take; it is made once.

    Tree.balanced(tokens, branching)       left-packed b-ary
    Tree.windows(tokens, [16, 8], shift=0) 16 tokens per family, 8 families above, 8 above those, ..
    Tree.star(tokens)                      one family: exactly softmax attention
    Tree.quadtree(height, width)           2 x 2 grids; permute the image by Tree.quadtree_order first
    Tree.parents([..])                     parent of every node, -1 for the root; nodes without children are tokens
    Tree.brackets("[MAX 2 [MIN 4 7 ] ]")   every word a token, every bracket pair a family

    Tree.text(text), Tree.markdown(text), Tree.json(text) read documents and return (tree, leaves): one row (begin, end, image, row,
    column) per token, begin and end in bytes of the UTF-8 text.

    Families have a domain: "set" (no positions), "sequence" or "grid".
    """

    def __init__(self, encoded):
        self.encoded = encoded

    @property
    def tokens(self):
        return int(self.encoded[0])

    @property
    def families(self):
        return int(self.encoded[1])

    def __repr__(self):
        return torch.ops.strata.tree_text(self.encoded).rstrip()

    @classmethod
    def balanced(cls, tokens, branching, domain="sequence"):
        return cls.windows(tokens, [branching], 0, domain)

    @classmethod
    def windows(cls, tokens, windows, shift=0, domain="sequence"):
        return cls(torch.ops.strata.tree_windows(tokens, windows, shift, domain))

    @classmethod
    def star(cls, tokens, domain="set"):
        return cls(torch.ops.strata.tree_star(tokens, domain))

    @classmethod
    def quadtree(cls, height, width):
        return cls(torch.ops.strata.tree_quadtree(height, width))

    @staticmethod
    def quadtree_order(height, width):
        """order[t] = row * width + column of token t."""
        return torch.ops.strata.tree_quadtree_order(height, width)

    @classmethod
    def parents(cls, parents, domain="sequence"):
        return cls(torch.ops.strata.tree_parents(parents, domain))

    @classmethod
    def brackets(cls, text):
        return cls(torch.ops.strata.tree_brackets(text))

    @classmethod
    def text(cls, text, characters=False):
        """Paragraphs, sentences, words and, if asked, characters."""
        encoded, leaves = torch.ops.strata.tree_from_text(text, characters)
        return cls(encoded), leaves

    @classmethod
    def markdown(cls, text, patch_rows=2, patch_columns=2):
        """Sections, blocks, sentences and words; an image is a grid of patches."""
        encoded, leaves = torch.ops.strata.tree_from_markdown(text, patch_rows, patch_columns)
        return cls(encoded), leaves

    @classmethod
    def json(cls, text, patch_rows=2, patch_columns=2):
        """Arrays are sequences, objects sets of members; {"image": ..} is a grid of patches."""
        encoded, leaves = torch.ops.strata.tree_from_json(text, patch_rows, patch_columns)
        return cls(encoded), leaves


def _encoded(trees):
    return [tree.encoded if isinstance(tree, Tree) else tree for tree in ([trees] if isinstance(trees, Tree) else trees)]


def hsa_attention(q, k, v, trees, *, weights=None, key_bias=None, positions=None, causal=False, scale=None):
    """The attention closest in KL to softmax that respects the trees: out (B, H, T, dv) and score (trees, H) = f(root).

    q, k: (B, H, T, d), v: (B, H, T, dv). One tree per sequence (padded batch), or several over B = 1 (packed). The rows of a node are
    tied to its mean query, so even causal=True looks ahead inside a node: use hsa_stream_attention for autoregressive models.
    """
    return torch.ops.strata.hsa_attention(
        q, k, v, _encoded(trees), weights=weights, key_bias=key_bias, positions=positions, causal=causal, scale=scale
    )


def hsa_stream_attention(q, k, v, branching=16, *, weights=None, key_bias=None, positions=None, scale=None):
    """The strictly causal form over the left-packed b-ary tree: out (B, H, T, dv) and lse (B, H, T)."""
    return torch.ops.strata.hsa_stream_attention(
        q, k, v, branching, weights=weights, key_bias=key_bias, positions=positions, scale=scale
    )


def hierarchy_score(q, k, trees, *, weights=None, key_bias=None, causal=False, scale=None):
    """f(root) per tree and head, in O(T): of two trees over the same tokens the larger is closer to softmax."""
    return torch.ops.strata.hierarchy_score(
        q, k, _encoded(trees), weights=weights, key_bias=key_bias, causal=causal, scale=scale
    )


def kl_gap(lse, score, weights=None):
    """sum_i w_i KL(HSA_i || softmax_i), exactly, from flat attention's lse (B, H, T) and the score (B, H)."""
    if weights is None:
        return lse.sum(-1) - lse.shape[-1] * score
    w = weights.unsqueeze(1)
    return torch.where(w > 0, w * lse, torch.zeros_like(lse)).sum(-1) - weights.sum(-1, keepdim=True) * score


def window_family(tokens, windows=(2, 4, 8, 16, 32), shifts=1, domain="set"):
    """Candidates for best_tree: for each window size the trees whose first boundary lies at `shifts` evenly spaced places."""
    trees = []
    for window in windows:
        starts = sorted({window * part // shifts for part in range(min(shifts, window))})
        trees += [Tree.windows(tokens, [window], start, domain) for start in starts]
    return trees


def best_tree(q, k, candidates, *, max_cost=None, **options):
    """The candidate whose score, summed over heads, is largest: the one with the smallest KL gap, without full attention.

    q, k: (1, H, T, d). Returns (tree, scores); scores has one number per candidate. Flattening never lowers a score, so compare
    trees of like cost, or give max_cost, the most score products (sum over families of children^2) allowed.
    """
    if not candidates:
        raise ValueError("candidates: expected at least one tree, got none")
    scores = torch.stack([hierarchy_score(q, k, [tree], **options).sum() for tree in candidates])
    allowed = scores.clone()
    if max_cost is not None:
        costs = torch.tensor([torch.ops.strata.tree_cost(tree.encoded) for tree in candidates])
        if not bool((costs <= max_cost).any()):
            raise ValueError(f"max_cost: the cheapest candidate costs {int(costs.min())}, more than {max_cost}")
        allowed[costs > max_cost] = -float("inf")
    return candidates[int(allowed.argmax())], scores
