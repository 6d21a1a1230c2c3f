"""Strata attention: HKT's levels on HSA's trees (docs/MATH.md, section 3)."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from strata._masks import lengths_or_mask
from strata._values import Integers, compute_type, require, sequence_ends
from strata.hkt import HktAttention
from strata.hsa import MAX_BRANCHING, hide_padding
from strata.hsa_ops import hsa_attention, hsa_stream_attention
from strata.strata_cache import StrataCache
from strata.tree import Trees, _encoded

FORMS = ("tree", "streaming", "both sides")


class StrataAttention(HktAttention):
    """The same module as strata::StrataAttention in C++, parameter for parameter: those of HktAttention, and sibling_bias.

    form        "tree": on any tree, for encoders; the attention closest to HKT's on it. It looks ahead inside a node
                "streaming": strictly causal, for language models, with a cache that grows with the logarithm of the text
                "both sides": for encoders without a tree
    branching   b of the forms without a tree, 2 to 64; children per family of the trees that the tree form makes itself
    near        families of each height that a token sees, its own included, in the forms without a tree
    positions   "none", or "bias": a learned table of terms between nodes
    tables      position tables: of the tree form 1 for sequences, 1 + w for grids up to w wide; otherwise heights
    places      tree form: children that a family with positions may have
    options     those of HktAttention: key_heads, levels, taps, dense_filters, input_filter, per_level_projections,
                level_weights, projection_bias, attention_dropout, rotary, rotary_base, rotary_interleaved, device, dtype
    """

    def __init__(
        self,
        model_size: int | None = None,
        heads: int | None = None,
        *,
        form: str = "tree",
        branching: int = 16,
        near: int = 2,
        positions: str = "none",
        tables: int = 1,
        places: int = 16,
        **options: Any,
    ) -> None:
        for refused in ("psd", "causal"):
            require(not options.get(refused), f"{refused}: expected False; a tree ties the scores of its nodes")
        require(
            not options.get("alibi") and tuple(options.get("window_size", (-1, -1))) == (-1, -1),
            "alibi, window_size: expected none; the keys of a node share scores, and near is a window of exact ones",
        )
        super().__init__(model_size, heads, **options)
        require(
            form != "tree" or self.attention_dropout == 0,
            "attention_dropout: expected 0 with trees, whose tokens share weights; use dropout on the output",
        )
        require(form in FORMS, f'form: expected one of {", ".join(FORMS)}, got "{form}"')
        require(positions in ("none", "bias"), f'positions: expected none or bias, got "{positions}"')
        most = 2**31 - 1 if form == "tree" else MAX_BRANCHING
        require(2 <= branching <= most, f"branching: expected 2 to {most}, got {branching}")
        require(1 <= near <= 2**20, f"near: expected 1 to 2^20 families, got {near}")
        require(
            tables >= 1 and places >= 1, f"tables, places: expected 1 or more, got tables = {tables}, places = {places}"
        )
        self.form, self.branching, self.near, self.positions = form, branching, near, positions
        if positions == "bias":
            distances = 2 * near - 1 if form == "both sides" else near
            shape = (self.heads, tables, places, places)
            if form != "tree":
                shape = (self.heads, tables, distances, branching, branching)  # type: ignore[assignment]
            self.sibling_bias = nn.Parameter(self.level_logits.new_zeros(shape))

    def extra_repr(self) -> str:
        shape = "" if self.form == "tree" else f", branching={self.branching}, near={self.near}"
        return (
            f"model_size={self.model_size}, heads={self.heads}, levels={self.levels}, {self.form}{shape}, "
            f"positions={self.positions}"
        )

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        trees: Trees | None = None,
        weights: Tensor | None = None,
        lengths: Integers | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Integers | None = None,
        max_seqlen: int = 0,
    ) -> Tensor:
        """x: (B, T, model) to (B, T, model).

        trees    tree form: one per sequence (padded) or several over B = 1 (packed). Without trees but with `lengths` each
                 sequence gets the balanced tree of its length and of `branching` children. The other forms take none
        weights  (B, T), 0 or more: how much each token counts; 0 is padding
        lengths  (B) real tokens of each sequence, as a list, numpy array or tensor; the rest is padding on the right. Its
                 rows are zero before the output projection. Not for packed sequences
        key_padding_mask
                 (B, T), True at padding on the right, as in nn.MultiheadAttention; says what lengths says
        cu_seqlens, max_seqlen
                 packed sequences of the forms without a tree, as in hkt_attention: x is (1, rows of all, model)
        """
        if x.dim() != 3 or x.shape[2] != self.model_size:
            raise ValueError(f"x: expected shape (batch, tokens, {self.model_size}), got {tuple(x.shape)}")
        lengths = lengths_or_mask(lengths, key_padding_mask, x)
        ends = sequence_ends("cu_seqlens", cu_seqlens, x)
        require(
            ends is None or (self.form != "tree" and lengths is None),
            "cu_seqlens: expected none with trees, which pack by themselves, and none with lengths",
        )
        real, trees, weights, hidden = hide_padding(x, trees, weights, lengths, self.form, self.branching)
        mixed = self._attend(real, trees, weights, ends, max_seqlen).transpose(1, 2).reshape(x.shape)
        out: Tensor = self.out(mixed if hidden is None else mixed.masked_fill(hidden.unsqueeze(-1), 0.0))
        return out

    def _project_sequences(self, x: Tensor, trees: list[Tensor] | None) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """project_all; packed sequences have a pyramid, and positions, each."""
        packed = trees is not None and x.shape[0] == 1 and len(trees) > 1
        if not packed or (self.levels == 1 and self.rotary == 0 and not self.input_filter):
            return self.project_all(x)
        assert trees is not None
        sizes = [int(tree[0]) if tree.numel() > 0 else 0 for tree in trees]
        require(sum(sizes) == x.shape[1], f"trees: cover {sum(sizes)} tokens together, x has {x.shape[1]}")
        ends = list(itertools.accumulate(sizes))
        parts = [self.project_all(x[:, end - size : end]) for end, size in zip(ends, sizes, strict=True)]
        q = [torch.cat([part[0][level] for part in parts], 2) for level in range(self.levels)]
        k = [torch.cat([part[1][level] for part in parts], 2) for level in range(self.levels)]
        return q, k, torch.cat([part[2] for part in parts], 2)

    def _attend(
        self, x: Tensor, trees: Trees | None, weights: Tensor | None, ends: Tensor | None, max_seqlen: int
    ) -> Tensor:
        """(B, H, T, d)."""
        encoded = None if trees is None else _encoded(trees)
        q, k, v = self.project_all(x, ends) if ends is not None else self._project_sequences(x, encoded)
        compute = compute_type(v.dtype)
        options: dict[str, Any] = {"level_weights": self.mixing_weights(v.dtype)}
        if self.positions == "bias":
            options["positions"] = self.sibling_bias.to(compute)
        if weights is not None:
            options["weights"] = weights.to(compute)
        if encoded is not None:
            return hsa_attention(q, k, v, encoded, **options)[0]
        out, _ = hsa_stream_attention(
            q,
            k,
            v,
            self.branching,
            near=self.near,
            both_sides=self.form == "both sides",
            dropout_p=self.attention_dropout if self.training else 0.0,
            cu_seqlens=ends,
            max_seqlen=max_seqlen,
            **options,
        )
        return out

    def start_stream(self, batch: int, capacity: int = 10, history: int = 0) -> StrataCache:
        """An empty cache for step(); capacity and history as in prefill(). Streaming form only."""
        none = self.level_logits.new_zeros(batch, 0, self.model_size)
        cache: StrataCache = self.prefill(none, capacity=capacity, history=history)[1]
        return cache

    @torch.no_grad()
    def prefill(  # type: ignore[override,unused-ignore]
        self, x: Tensor, lengths: Integers | None = None, capacity: int = 10, history: int = 0
    ) -> tuple[Tensor, StrataCache]:
        """Runs prompts, x: (B, T, model) with `lengths` (B) real tokens, and fills a cache from which step() goes on.
        Returns (B, T, model) and the cache. Streaming form only.

        capacity  heights to allocate memory for, enough for fewer than b^capacity tokens; a longer stream adds some
        history   how many of the newest tokens cache.crop() may forget
        """
        require(
            self.form == "streaming", 'prefill: expected the streaming form; create the module with form="streaming"'
        )
        cache = StrataCache.from_prompt(self, x, lengths, capacity, history)
        return (self.forward(x, lengths=lengths) if x.shape[1] > 0 else x), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: StrataCache) -> Tensor:  # type: ignore[override,unused-ignore]
        """One new token per sequence, x: (B, model) to (B, model). Equals the parallel form, to rounding; costs
        O(near b log T)."""
        require(self.form == "streaming", 'step: expected the streaming form; create the module with form="streaming"')
        return cache.step(self, x)
