"""HKT attention: scores at several resolutions, mixed by convex weights under one softmax (docs/MATH.md, section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from strata._level_weights import level_logits
from strata._masks import as_bias, lengths_of_mask, places_in_sequences, without_padding
from strata._values import Integers, compute_type, given_once, lengths_tensor, sequence_ends, window
from strata._values import require as _check
from strata.hkt_cache import HktCache
from strata.ops import causal_filter, hkt_attention, packed_begins
from strata.rotary import check_rotary, rotate

MAX_LEVELS = 8
MAX_HEAD_SIZE = 256
FILTER_NOISE = 0.02


class HktAttention(nn.Module):
    """The same module as strata::HktAttention in C++, parameter for parameter. It also takes the names that
    nn.MultiheadAttention has for the same things: embed_dim, num_heads, dropout and bias.

    model_size, heads      width of the input, and query heads; embed_dim, num_heads
    key_heads              fewer key heads than heads (a divisor); default: as many
    levels                 resolutions, 1 (flat attention) to 8
    taps                   of every causal filter
    dense_filters          full matrices instead of one weight per channel
    input_filter           a stride-1 causal filter in front of everything, values included
    per_level_projections  one W_Q, W_K pair per level instead of one for all
    level_weights          of the levels: "learned" per head, or fixed for all heads: "uniform", one level alone ("level-0",
                           "level-1", ..), or a list of weights with the sum 1
    psd                    k = q (I + Omega)^T: the symmetrised kernel is positive semi-definite by construction
    projection_bias        biases in the projections; bias
    causal                 token i sees tokens 0 .. i only
    window_size            (left, right): token i sees tokens i - left .. i + right only; -1 is without end
    alibi                  scores fall with the distance, by the slopes 2^(-8/H), 2^(-16/H), .. of the H heads
    attention_dropout      probability with which attention weights are dropped in training; dropout
    rotary, rotary_base    channels of each head that are rotated by their position, and the base of the angles; 0: none
    rotary_interleaved     pairs of neighbouring channels are rotated, as in GPT-J, instead of halves, as in GPT-NeoX
    device, dtype          of the parameters, as in nn.Linear
    """

    filter_0: nn.Parameter  # with input_filter; filter_1, .. lie below the levels 1, ..
    value: nn.Linear
    out: nn.Linear

    def __init__(
        self,
        model_size: int | None = None,
        heads: int | None = None,
        *,
        key_heads: int | None = None,
        levels: int = 3,
        taps: int = 3,
        dense_filters: bool = False,
        input_filter: bool = False,
        per_level_projections: bool = False,
        level_weights: str | Sequence[float] = "learned",
        psd: bool = False,
        projection_bias: bool = False,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi: bool = False,
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
        if key_heads is None:
            key_heads = heads
        _check(
            model_size >= 1 and heads >= 1 and model_size % heads == 0,
            f"model_size: expected a positive multiple of heads, got model_size = {model_size} and heads = {heads}",
        )
        _check(
            key_heads >= 1 and heads % key_heads == 0,
            f"key_heads: expected a divisor of heads = {heads}, or None for as many, got {key_heads}",
        )
        _check(
            model_size // heads <= MAX_HEAD_SIZE,
            f"heads: expected a head size of at most {MAX_HEAD_SIZE}, got {model_size // heads}; use more heads",
        )
        _check(1 <= levels <= MAX_LEVELS, f"levels: expected 1 to {MAX_LEVELS}, got {levels}")
        logits, learned = level_logits(level_weights, levels)
        _check(taps >= 1, f"taps: expected 1 or more, got {taps}")
        _check(
            not psd or key_heads == heads,
            f"psd: expected key_heads = heads = {heads}, because the keys are made from the queries; got {key_heads}",
        )
        _check(
            0 <= attention_dropout < 1,
            f"attention_dropout: expected a probability from 0 to less than 1, got {attention_dropout}",
        )
        check_rotary(rotary, rotary_base, model_size // heads)
        _check(
            not psd or rotary == 0,
            "psd: expected rotary = 0, because the kernel of rotated queries and keys is not positive semi-definite; got "
            f"{rotary}",
        )
        self.rotary, self.rotary_base, self.rotary_interleaved = rotary, rotary_base, rotary_interleaved
        self.window_size, self.alibi, self.attention_dropout = window(window_size), alibi, attention_dropout
        self.model_size, self.heads, self.key_heads, self.levels, self.taps = model_size, heads, key_heads, levels, taps
        self.head_size = model_size // heads
        self.dense_filters, self.input_filter, self.psd, self.causal = dense_filters, input_filter, psd, causal
        self.per_level_projections = per_level_projections

        factory: dict[str, Any] = {"device": device, "dtype": dtype}

        def linear(size: int) -> nn.Linear:
            return nn.Linear(model_size, size, bias=projection_bias, **factory)

        for level in range(levels if per_level_projections else 1):
            self.add_module(self._named("query", level), linear(model_size))
            if psd:
                noise = FILTER_NOISE * torch.randn(heads, self.head_size, self.head_size, **factory)
                self.register_parameter(self._named("direction", level), nn.Parameter(noise))
            else:
                self.add_module(self._named("key", level), linear(key_heads * self.head_size))
        self.value = linear(key_heads * self.head_size)
        self.out = linear(model_size)
        for level in range(0 if input_filter else 1, levels):
            self.register_parameter(f"filter_{level}", nn.Parameter(self._initial_filter(level, factory)))
        self.level_logits = nn.Parameter(torch.tensor(logits, **factory).repeat(heads, 1), learned)

    def _named(self, name: str, level: int) -> str:
        """The name of a projection of one level."""
        return f"{name}_{level}" if self.per_level_projections else name

    def _initial_filter(self, level: int, factory: dict[str, Any]) -> Tensor:
        """The mean of the taps (or, in front of everything, the newest token) plus a little noise: (taps, model), or
        (taps, model, model) with dense filters."""
        weight = torch.full((self.taps, self.model_size), 1.0 / self.taps, **factory)
        if level == 0:
            weight = torch.zeros(self.taps, self.model_size, **factory)
            weight[0] = 1.0
        if self.dense_filters:
            weight = torch.diag_embed(weight)
        return weight + FILTER_NOISE * torch.randn_like(weight)

    def extra_repr(self) -> str:
        return (
            f"model_size={self.model_size}, heads={self.heads}, levels={self.levels}, taps={self.taps}, "
            f"filters={'dense' if self.dense_filters else 'depthwise'}, psd={self.psd}, causal={self.causal}"
        )

    def level_weights(self) -> Tensor:
        """(heads, levels): the convex weights; each row sums to one."""
        # In bfloat16 a row would not sum to one.
        return torch.softmax(self.level_logits, -1, dtype=compute_type(self.level_logits.dtype))

    def alibi_slopes(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """(heads), or None without alibi."""
        if not self.alibi:
            return None
        steps = torch.arange(1, self.heads + 1, device=device)
        return torch.exp2(-8.0 * steps / self.heads).to(compute_type(dtype))

    def pyramid(self, x: Tensor, cu_seqlens: Tensor | None = None) -> list[Tensor]:
        """x^(l), (B, ceil(T / 2^l), model), for each level; x: (B, T, model). With cu_seqlens those of packed sequences,
        (1, packed_rows(T, N, l), model)."""
        states = [causal_filter(x, self.filter_0, 1, cu_seqlens) if self.input_filter else x]
        for level in range(1, self.levels):
            states.append(causal_filter(states[-1], getattr(self, f"filter_{level}"), 2, cu_seqlens))
            if cu_seqlens is not None:
                cu_seqlens = torch.nn.functional.pad(((cu_seqlens.diff() + 1) >> 1).cumsum(0), (1, 0))
        return states

    def project_all(self, x: Tensor, cu_seqlens: Tensor | None = None) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """q and k of every level, and v, of sequences x (B, T, model), or of packed ones (1, T, model)."""
        states = self.pyramid(x, cu_seqlens)
        places: list[Tensor | None] = [None] * self.levels
        if cu_seqlens is not None and self.rotary > 0:
            places = [
                places_in_sequences(state.shape[1], begins)
                for state, begins in zip(states, packed_begins(cu_seqlens, self.levels), strict=True)
            ]
        pairs = [self.project(state, level, places[level]) for level, state in enumerate(states)]
        v = self.split_heads(self.value(states[0]), self.key_heads)
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs], v

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        """(B, n, heads * d) as (B, heads, n, d)."""
        return x.view(x.shape[0], x.shape[1], heads, self.head_size).transpose(1, 2)

    def project(self, states: Tensor, level: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States of one level, (B, n, model), to q (B, H, n, d) and k (B, Hk, n, d). rows: (n) or (B, n), which rows of the
        level they are, for rotary positions; 0 .. n - 1 unless given."""
        places = None
        if self.rotary > 0:  # row m of level l stands at token m 2^l
            places = (torch.arange(states.shape[1], device=states.device) if rows is None else rows) * 2**level
        return self.project_at(states, level, places)

    def project_at(self, states: Tensor, level: int, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """q and k of states (B, n, model), by the projections of a level, at tokens `places`, (n) or (B, n)."""
        q = self.split_heads(getattr(self, self._named("query", level))(states), self.heads)
        if self.psd:
            direction = getattr(self, self._named("direction", level))
            return q, q + torch.matmul(q, direction.transpose(-1, -2) - direction)
        k = self.split_heads(getattr(self, self._named("key", level))(states), self.key_heads)
        if places is None:
            return q, k
        options = (places, self.rotary, self.rotary_base, self.rotary_interleaved)
        return rotate(q, *options), rotate(k, *options)

    def mixing_weights(self, dtype: torch.dtype) -> Tensor:
        """The level weights in the type in which values of this type are mixed."""
        return self.level_weights().to(torch.float64 if dtype == torch.float64 else torch.float32)

    def forward(
        self,
        x: Tensor,
        lengths: Integers | None = None,
        bias: Tensor | None = None,
        *,
        key: Tensor | None = None,
        key_lengths: Integers | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool | None = None,
        window_size: tuple[int, int] | None = None,
        cu_seqlens: Integers | None = None,
        key_cu_seqlens: Integers | None = None,
        max_seqlen: int = 0,
        key_max_seqlen: int = 0,
    ) -> Tensor:
        """x: (B, T, model) to (B, T, model).

        lengths  (B) real tokens of each sequence, as a list, numpy array or tensor; the rest is padding on the right. What
                 it holds has no effect; its rows are zero before the output projection
        bias     broadcasts to (B, H, T, Tk); added to the scaled scores
        key      (B, Tk, model): what keys and values are made of, for cross-attention; x unless given
        key_lengths
                 like lengths, of `key`
        key_padding_mask
                 (B, Tk), True where a key is padding, as in nn.MultiheadAttention; it must be on the right
        attn_mask
                 broadcasts to (B, H, T, Tk), as in nn.MultiheadAttention: True hides a key, numbers are added to the scores
        is_causal, window_size
                 in place of the module's
        cu_seqlens, key_cu_seqlens, max_seqlen, key_max_seqlen
                 packed sequences, as in hkt_attention: x is (1, rows of all, model); each has its own pyramid
        """
        source = x if key is None else key
        for name, tensor in (("x", x), ("key", source)):
            if tensor.dim() != 3 or tensor.shape[2] != self.model_size:
                raise ValueError(f"{name}: expected shape (batch, tokens, {self.model_size}), got {tuple(tensor.shape)}")
        if key_padding_mask is not None:
            _check(key_lengths is None, "key_lengths: expected none with key_padding_mask, which says the same")
            key_lengths = lengths_of_mask(key_padding_mask, source)
            lengths = key_lengths if key is None and lengths is None else lengths
        if attn_mask is not None:
            _check(bias is None, "bias: expected none with attn_mask; add both up")
            bias = as_bias(attn_mask, x.dtype)
        counts, key_counts = (
            None if given is None else lengths_tensor(given, of.shape[0], of.shape[1]).to(x.device)
            for given, of in ((lengths, x), (key_lengths, source))
        )
        ends = sequence_ends("cu_seqlens", cu_seqlens, x)
        key_ends = sequence_ends("key_cu_seqlens", key_cu_seqlens, x)
        # What padding holds must not reach the gradients of the projections either (0 * NaN).
        q, k, v = self.project_all(without_padding(x, counts), ends)
        if key is not None:
            _check(not self.psd, "key: expected none with psd, whose keys are made from the queries")
            _, k, v = self.project_all(without_padding(key, key_counts), ends if key_ends is None else key_ends)
        mixed, _ = hkt_attention(
            q,
            k,
            v,
            self.mixing_weights(v.dtype),
            lengths=counts,
            key_lengths=key_counts,
            bias=bias,
            causal=self.causal if is_causal is None else is_causal,
            window_size=self.window_size if window_size is None else window_size,
            alibi_slopes=self.alibi_slopes(v.dtype, v.device),
            dropout_p=self.attention_dropout if self.training else 0.0,
            cu_seqlens=ends,
            key_cu_seqlens=key_ends,
            max_seqlen=max_seqlen,
            key_max_seqlen=key_max_seqlen,
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape[0], x.shape[1], self.model_size))
        return out

    @torch.no_grad()
    def prefill(
        self,
        x: Tensor,
        lengths: Integers | None = None,
        *,
        capacity: int = 0,
        history: int = 0,
        window: int | None = None,
    ) -> tuple[Tensor, HktCache]:
        """Runs prompts, x: (B, T, model) with `lengths` (B) real tokens, and fills a cache from which step() goes on.
        Returns (B, T, model) and the cache. Causal modules only.

        capacity  tokens to allocate memory for; it grows by doubling where that is not enough
        history   how many of the newest tokens cache.crop() may forget; with one level, and neither an input filter nor a
                  window, it may forget any number
        window    a token sees itself and at most this many tokens before it; the cache drops those that no token will see
        """
        _check(self.causal, "prefill: expected a causal module; make it with causal=True")
        _check(not self.alibi, "prefill: expected a module without alibi, whose scores no cache has; use rotary positions")
        if window is None and self.window_size[0] >= 0:
            window = self.window_size[0]
        cache = HktCache.from_prompt(self, x, lengths, capacity=capacity, history=history, window=window)
        return self.forward(x, lengths, window_size=None if window is None else (window, -1)), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: HktCache) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model). Equals the last row of the parallel forward, to
        rounding."""
        _check(self.causal, "step: expected a causal module; make it with causal=True")
        return cache.step(self, x)


class FlatAttention(HktAttention):
    """Ordinary attention: the same operator with one level. `options` are those of HktAttention, except `levels`."""

    def __init__(self, model_size: int | None = None, heads: int | None = None, **options: Any) -> None:
        super().__init__(model_size, heads, levels=1, **options)
