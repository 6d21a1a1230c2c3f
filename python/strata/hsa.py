"""HSA attention as a module, with the same parameters as strata::HsaAttention in C++."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from strata._decoding import host_lengths
from strata._masks import lengths_or_mask, places_in_sequences
from strata._values import (
    Integers,
    check_lengths,
    compute_type,
    given_once,
    lengths_tensor,
    padding_mask,
    require,
    sequence_ends,
)
from strata.hsa_cache import HsaStreamCache
from strata.hsa_ops import hsa_attention, hsa_stream_attention
from strata.ops import sinusoidal_positions
from strata.rotary import check_rotary, rotate
from strata.tree import Trees, _encoded, trees_windows

__all__ = ["HsaAttention", "HsaStreamCache"]

VECTOR_SIZE = 8  # of learned position vectors
MAX_BRANCHING = 64  # of the streaming form


def hide_padding(
    x: Tensor, trees: Trees | None, weights: Tensor | None, lengths: Integers | None, form: str, branching: int
) -> tuple[Tensor, Trees | None, Tensor | None, Tensor | None]:
    """The arguments of a module's forward, checked: x with zeros for hidden tokens, which must reach neither a pyramid nor the
    gradients of the projections; the trees, balanced ones if there are only lengths; the weights, 0 for padding where a
    real token could see it; and which tokens are padding, (B, T), or None."""
    if form != "tree" and trees is not None:
        raise ValueError(f"trees: expected none in the {form} form")
    if form == "tree" and trees is None and lengths is None:
        raise ValueError("trees: expected one per sequence, got none; or pass lengths= for balanced trees")
    hidden = None
    if lengths is not None:
        counts = lengths_tensor(lengths, x.shape[0], x.shape[1])
        check_lengths(counts, x.shape[1])
        hidden = padding_mask(counts, x)
        x = x.masked_fill(hidden.unsqueeze(-1), 0.0)
        if form == "tree" and trees is None:
            trees = [trees_windows(counts, [branching])]
        elif form != "streaming":  # given trees may cover the padding
            weights = (~hidden).to(x.dtype) if weights is None else weights.masked_fill(hidden, 0.0)
    if weights is not None:
        x = x.masked_fill((weights == 0).unsqueeze(-1), 0.0)
    return x, trees, weights, hidden


class HsaAttention(nn.Module):
    """Attention over a tree, or the streaming form.

    streaming        False: the tree form, for encoders (it looks ahead inside a node, even with causal=True);
                     True: strictly causal over the left-packed b-ary tree, safe for autoregressive use
    branching        b of the streaming form, 2 to 64; children per family of the trees that the tree form makes itself
    causal           tree form: only earlier siblings count
    l2_energy        -s |q - k|^2 / 2 instead of s <q, k>
    normalize        LayerNorm without affine part on q and k
    positions        "none", "sinusoidal", "learned" (vectors) or "bias" (a learned table)
    tables           position tables: 1 for sequences, 1 + w for grids up to w wide; streaming: heights
    places           size of each position table
    projection_bias  biases in the projections
    key_heads        fewer key heads than heads (a divisor); default: as many
    attention_dropout
                     streaming: probability with which attention weights are dropped in training
    rotary, rotary_base
                     channels of each head that are rotated by their position, and the base of the angles; 0: none
    rotary_interleaved
                     pairs of neighbouring channels are rotated, as in GPT-J, instead of halves, as in GPT-NeoX
    device, dtype    of the parameters, as in nn.Linear
    """

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear

    def __init__(
        self,
        model_size: int | None = None,
        heads: int | None = None,
        *,
        key_heads: int | None = None,
        streaming: bool = False,
        branching: int = 16,
        causal: bool = False,
        l2_energy: bool = False,
        normalize: bool = False,
        positions: str = "none",
        tables: int = 1,
        places: int = 16,
        projection_bias: bool = False,
        attention_dropout: float = 0.0,
        rotary: int = 0,
        rotary_base: float = 10000.0,
        rotary_interleaved: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        embed_dim: int | None = None,
        num_heads: int | None = None,
        dropout: float | None = None,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        model_size = given_once("model_size", model_size, "embed_dim", embed_dim)
        heads = given_once("heads", heads, "num_heads", num_heads)
        attention_dropout = attention_dropout if dropout is None else dropout
        projection_bias = projection_bias if bias is None else bias
        key_heads = heads if key_heads is None else key_heads
        require(
            key_heads >= 1 and heads % key_heads == 0,
            f"key_heads: expected a divisor of heads = {heads}, or None for as many, got {key_heads}",
        )
        require(
            0 <= attention_dropout < 1 and (streaming or attention_dropout == 0),
            "attention_dropout: expected a probability from 0 to less than 1 in the streaming form, and 0 with trees, whose "
            f"tokens share weights; got {attention_dropout}",
        )
        require(
            model_size >= 1 and heads >= 1 and model_size % heads == 0,
            f"model_size: expected a positive multiple of heads, got model_size = {model_size} and heads = {heads}",
        )
        require(
            positions in ("none", "sinusoidal", "learned", "bias"),
            f'positions: expected none, sinusoidal, learned or bias, got "{positions}"',
        )
        most = MAX_BRANCHING if streaming else 2**31 - 1
        require(2 <= branching <= most, f"branching: expected 2 to {most}, got {branching}")
        require(
            tables >= 1 and places >= 1, f"tables, places: expected 1 or more, got tables = {tables}, places = {places}"
        )
        require(
            not streaming or positions == "none" or places == branching,
            f"places: expected {branching} like branching in the streaming form, got {places}",
        )
        check_rotary(rotary, rotary_base, model_size // heads)
        self.rotary, self.rotary_base, self.rotary_interleaved = rotary, rotary_base, rotary_interleaved
        self.key_heads, self.attention_dropout = key_heads, attention_dropout
        self.model_size, self.heads, self.head_size = model_size, heads, model_size // heads
        self.streaming, self.branching, self.causal = streaming, branching, causal
        self.l2_energy, self.normalize, self.positions = l2_energy, normalize, positions
        self.tables, self.places = tables, places
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        for name, count in (("query", heads), ("key", key_heads), ("value", key_heads), ("out", heads)):
            self.add_module(name, nn.Linear(model_size, count * self.head_size, bias=projection_bias, **factory))
        if positions == "bias":
            self.sibling_bias = nn.Parameter(torch.zeros(heads, tables, places, places, **factory))
        if positions == "learned":
            vectors = 0.02 * torch.randn(heads, tables, places, VECTOR_SIZE, **factory)
            self.position_vectors = nn.Parameter(vectors)

    def extra_repr(self) -> str:
        form = f"streaming, branching={self.branching}" if self.streaming else "tree"
        energy = "l2" if self.l2_energy else "dot"
        return f"model_size={self.model_size}, heads={self.heads}, {form}, energy={energy}, positions={self.positions}"

    def position_table(self) -> Tensor | None:
        """E: (H, tables, places, places), or None."""
        if self.positions == "bias":
            return self.sibling_bias
        if self.positions == "learned":
            return self.position_vectors @ self.position_vectors.transpose(-1, -2)
        if self.positions == "none":
            return None
        table = sinusoidal_positions(1 if self.streaming else self.tables, self.places)
        if self.streaming:
            table = table.expand(self.tables, -1, -1)
        return table.to(self.query.weight).unsqueeze(0).expand(self.heads, -1, -1, -1)

    def project(self, x: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of x: (B, H, T, d), and (B, Hk, T, d) for k and v, normalised and rotated if the module is made so: the inputs of hierarchy_score.
        places: (T) or (B, T), where the tokens stand; 0 .. T - 1 unless given."""
        q, k, v = (
            layer(x).view(x.shape[0], x.shape[1], heads, self.head_size)
            for layer, heads in ((self.query, self.heads), (self.key, self.key_heads), (self.value, self.key_heads))
        )
        if self.normalize:  # in float under autocast; then back to the type of the values
            q, k = (nn.functional.layer_norm(t, (self.head_size,)).to(t.dtype) for t in (q, k))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.rotary == 0:
            return q, k, v
        at = torch.arange(x.shape[1], device=x.device) if places is None else places
        options = (at, self.rotary, self.rotary_base, self.rotary_interleaved)
        return rotate(q, *options), rotate(k, *options), v

    def key_bias(self, k: Tensor) -> Tensor | None:
        """-s |k|^2 / 2 in the type of computation, (..) for k: (.., d), with the L2 energy; else None."""
        if not self.l2_energy:
            return None
        bias: Tensor = k.to(compute_type(k.dtype)).square().sum(-1) * (-0.5 / math.sqrt(self.head_size))
        return bias

    def forward(
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
                 sequence gets the balanced tree of its length and of `branching` children. The streaming form takes none
        weights  (B, T), 0 or more: how much each token counts; 0 is padding
        lengths  (B) real tokens of each sequence, as a list, numpy array or tensor; the rest is padding on the right. What
                 it holds has no effect; its rows are zero before the output projection. Not for packed sequences
        key_padding_mask
                 (B, T), True at padding on the right, as in nn.MultiheadAttention; says what lengths says
        cu_seqlens, max_seqlen
                 packed sequences of the streaming form, as in hkt_attention: x is (1, rows of all, model)
        """
        if x.dim() != 3 or x.shape[2] != self.model_size:
            raise ValueError(f"x: expected shape (batch, tokens, {self.model_size}), got {tuple(x.shape)}")
        form = "streaming" if self.streaming else "tree"
        lengths = lengths_or_mask(lengths, key_padding_mask, x)
        ends = sequence_ends("cu_seqlens", cu_seqlens, x)
        require(
            ends is None or (self.streaming and lengths is None),
            "cu_seqlens: expected none with trees, which pack by themselves, and none with lengths",
        )
        real, trees, weights, hidden = hide_padding(x, trees, weights, lengths, form, self.branching)
        mixed = self._attend(real, trees, weights, ends, max_seqlen).transpose(1, 2).reshape(x.shape)
        out: Tensor = self.out(mixed if hidden is None else mixed.masked_fill(hidden.unsqueeze(-1), 0.0))
        return out

    def _packed_places(self, x: Tensor, trees: Trees | None) -> Tensor | None:
        """Where the tokens of packed sequences stand: each begins at 0. None where that is as without."""
        if self.rotary == 0 or trees is None or x.shape[0] != 1:
            return None
        sizes = [int(tree[0]) for tree in _encoded(trees)]
        return torch.cat([torch.arange(size, device=x.device) for size in sizes]) if len(sizes) > 1 else None

    def _attend(
        self, x: Tensor, trees: Trees | None, weights: Tensor | None, ends: Tensor | None, max_seqlen: int
    ) -> Tensor:
        """(B, H, T, d)."""
        places = self._packed_places(x, trees) if ends is None else places_in_sequences(x.shape[1], ends[:-1])
        q, k, v = self.project(x, places)
        compute = compute_type(x.dtype)
        options: dict[str, Any] = {"key_bias": self.key_bias(k)}
        table = self.position_table()
        if table is not None:
            options["positions"] = table.to(compute)
        if weights is not None:
            options["weights"] = weights.to(compute)
        if trees is None:
            dropout = self.attention_dropout if self.training else 0.0
            options.update(dropout_p=dropout, cu_seqlens=ends, max_seqlen=max_seqlen)
            return hsa_stream_attention(q, k, v, self.branching, **options)[0]
        return hsa_attention(q, k, v, trees, causal=self.causal, **options)[0]

    def start_stream(self, batch: int, capacity: int = 10, history: int = 0) -> HsaStreamCache:
        """An empty cache for step(); capacity and history as in prefill()."""
        if not self.streaming:
            raise ValueError("start_stream: expected the streaming form; create the module with streaming=True")
        return HsaStreamCache(self, batch, capacity, history)

    @torch.no_grad()
    def prefill(
        self, x: Tensor, lengths: Integers | None = None, capacity: int = 10, history: int = 0
    ) -> tuple[Tensor, HsaStreamCache]:
        """Runs prompts, x: (B, T, model) with `lengths` (B) real tokens, and fills a cache from which step() goes on.
        Returns (B, T, model) and the cache. Streaming form only.

        capacity  heights to allocate memory for, enough for fewer than b^capacity tokens; a longer stream adds some
        history   how many of the newest tokens cache.crop() may forget
        """
        cache = self.start_stream(x.shape[0], capacity, history)
        out = self.forward(x, lengths=lengths)
        counts = host_lengths(lengths, x)
        hidden = padding_mask(torch.tensor(counts, dtype=torch.int64), x).unsqueeze(-1)
        _, k, v = self.project(x.masked_fill(hidden, 0.0))
        cache.fill(k, v, self.key_bias(k), counts)
        return out, cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: HsaStreamCache) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model). Equals the parallel form, to rounding; costs
        O(b log T). The cache computes in float32, or in float64 for a float64 module."""
        return cache.step(self, x)
