"""HKT attention: scores at several resolutions, mixed by convex weights under one softmax (docs/MATH.md, section 1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from strata._values import Integers, compute_type, lengths_tensor, padding_mask
from strata._values import require as _check
from strata.hkt_cache import HktCache, window_bias
from strata.ops import causal_filter, hkt_attention
from strata.rotary import check_rotary, rotate

MAX_LEVELS = 8
MAX_HEAD_SIZE = 256
FILTER_NOISE = 0.02


class HktAttention(nn.Module):
    """The same module as strata::HktAttention in C++, parameter for parameter.

    model_size, heads      width of the input, and query heads
    key_heads              fewer key heads than heads (a divisor); default: as many
    levels                 resolutions, 1 (flat attention) to 8
    taps                   of every causal filter
    dense_filters          full matrices instead of one weight per channel
    input_filter           a stride-1 causal filter in front of everything, values included
    per_level_projections  one W_Q, W_K pair per level instead of one for all
    psd                    k = q (I + Omega)^T: the symmetrised kernel is positive semi-definite by construction
    projection_bias        biases in the projections
    causal                 token i sees tokens 0 .. i only
    rotary, rotary_base    channels of each head that are rotated by their position, and the base of the angles; 0: none
    device, dtype          of the parameters, as in nn.Linear
    """

    filter_0: nn.Parameter  # with input_filter; filter_1, .. lie below the levels 1, ..
    value: nn.Linear
    out: nn.Linear

    def __init__(
        self,
        model_size: int,
        heads: int,
        *,
        key_heads: int | None = None,
        levels: int = 3,
        taps: int = 3,
        dense_filters: bool = False,
        input_filter: bool = False,
        per_level_projections: bool = False,
        psd: bool = False,
        projection_bias: bool = False,
        causal: bool = False,
        attention_dropout: float = 0.0,
        rotary: int = 0,
        rotary_base: float = 10000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
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
        _check(taps >= 1, f"taps: expected 1 or more, got {taps}")
        _check(
            not psd or key_heads == heads,
            f"psd: expected key_heads = heads = {heads}, because the keys are made from the queries; got {key_heads}",
        )
        _check(
            attention_dropout == 0.0,
            f"attention_dropout: expected 0, got {attention_dropout}; dropout inside the attention is not supported, "
            "apply it to the module's output instead",
        )
        check_rotary(rotary, rotary_base, model_size // heads)
        _check(
            not psd or rotary == 0,
            "psd: expected rotary = 0, because the kernel of rotated queries and keys is not positive semi-definite; got "
            f"{rotary}",
        )
        self.rotary, self.rotary_base = rotary, rotary_base
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
        self.level_logits = nn.Parameter(torch.zeros(heads, levels, **factory))

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

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """x^(l), (B, ceil(T / 2^l), model), for each level; x: (B, T, model)."""
        states = [causal_filter(x, self.filter_0, 1) if self.input_filter else x]
        for level in range(1, self.levels):
            states.append(causal_filter(states[-1], getattr(self, f"filter_{level}"), 2))
        return states

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        """(B, n, heads * d) as (B, heads, n, d)."""
        return x.view(x.shape[0], x.shape[1], heads, self.head_size).transpose(1, 2)

    def project(self, states: Tensor, level: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States of one level, (B, n, model), to q (B, H, n, d) and k (B, Hk, n, d). rows: (n) or (B, n), which rows of the
        level they are, for rotary positions; 0 .. n - 1 unless given."""
        q = self.split_heads(getattr(self, self._named("query", level))(states), self.heads)
        if self.psd:
            direction = getattr(self, self._named("direction", level))
            return q, q + torch.matmul(q, direction.transpose(-1, -2) - direction)
        k = self.split_heads(getattr(self, self._named("key", level))(states), self.key_heads)
        if self.rotary == 0:
            return q, k
        # Row m of level l stands at token m 2^l.
        places = (torch.arange(states.shape[1], device=states.device) if rows is None else rows) * 2**level
        return rotate(q, places, self.rotary, self.rotary_base), rotate(k, places, self.rotary, self.rotary_base)

    def mixing_weights(self, dtype: torch.dtype) -> Tensor:
        """The level weights in the type in which values of this type are mixed."""
        return self.level_weights().to(torch.float64 if dtype == torch.float64 else torch.float32)

    def forward(self, x: Tensor, lengths: Integers | None = None, bias: Tensor | None = None) -> Tensor:
        """x: (B, T, model) to (B, T, model).

        lengths  (B) real tokens of each sequence, as a list, numpy array or tensor; the rest is padding on the right. What
                 it holds has no effect; its rows are zero before the output projection
        bias     broadcasts to (B, H, T, T); added to the scaled scores
        """
        if x.dim() != 3 or x.shape[2] != self.model_size:
            raise ValueError(f"x: expected shape (batch, tokens, {self.model_size}), got {tuple(x.shape)}")
        real, counts = x, None
        if lengths is not None:
            counts = lengths_tensor(lengths, x.shape[0], x.shape[1]).to(x.device)
            # What padding holds must not reach the gradients of the projections either (0 * NaN).
            real = x.masked_fill(padding_mask(counts, x).unsqueeze(-1), 0.0)
        states = self.pyramid(real)
        pairs = [self.project(state, level) for level, state in enumerate(states)]
        q, k = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        v = self.split_heads(self.value(states[0]), self.key_heads)
        weights = self.mixing_weights(v.dtype)
        mixed, _ = hkt_attention(q, k, v, weights, lengths=counts, bias=bias, causal=self.causal)
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
        cache = HktCache.from_prompt(self, x, lengths, capacity=capacity, history=history, window=window)
        bias = None
        if window is not None and window + 1 < x.shape[1]:
            bias = window_bias(x.shape[1], window, cache.state["values"])
        return self.forward(x, lengths, bias), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: HktCache) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model). Equals the last row of the parallel forward, to
        rounding."""
        _check(self.causal, "step: expected a causal module; make it with causal=True")
        return cache.step(self, x)


class FlatAttention(HktAttention):
    """Ordinary attention: the same operator with one level. `options` are those of HktAttention, except `levels`."""

    def __init__(self, model_size: int, heads: int, **options: Any) -> None:
        super().__init__(model_size, heads, levels=1, **options)
