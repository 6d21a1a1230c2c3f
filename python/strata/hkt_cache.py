"""What a causal HKT module remembers of the tokens it has seen, so that one more token costs one row of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from strata._decoding import (
    DecodingCache,
    advance,
    ceil_div,
    check_history,
    has_same_launches,
    host_lengths,
    newest_rows,
    newest_states,
    ring_of,
)
from strata._values import Integers, integer, padding_mask, require
from strata.ops import hkt_append

if TYPE_CHECKING:
    from strata.hkt import HktAttention


class HktCache(DecodingCache):
    """Per level: keys (B, Hk, capacity_l, d), the newest queries (B, H, 1 + h_l, d) and states (B, taps + h_l, model), where
    h_l = ceil(history / 2^l); and values (B, Hk, capacity, d). Rows lie in rings: row r has slot r mod the number of slots.

    A coarse key is appended when its anchor, token m 2^l, arrives. The memory for keys and values is allocated for `capacity`
    tokens, and doubled when it is full. With a window it is fixed: left + 1 + history tokens, and
    floor((left + history) / 2^l) + 2 rows of level l, which are those that hold a visible token. Sequences of a batch may
    have different lengths. The tensors have the types that the module gave them when the cache was made; a step may be made
    under autocast, or not.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        """state: what state_dict() returned."""
        super().__init__(state, ("values", "level_0.keys", "window"))

    def _read_host(self) -> None:
        super()._read_host()
        left = int(self.state["window"])
        self._window = None if left < 0 else left

    @classmethod
    def from_prompt(
        cls,
        module: HktAttention,
        x: Tensor,
        lengths: Integers | None = None,
        *,
        capacity: int = 0,
        history: int = 0,
        window: int | None = None,
    ) -> HktCache:
        """The cache behind prompts x, (B, T, model), of which `lengths` (B) tokens are real. The other arguments are those of
        HktAttention.prefill."""
        counts, history = host_lengths(lengths, x), check_history(history)
        if window is not None:
            window = integer("window", window)
            require(window >= 0, f"window: expected 0 or more tokens before the newest, or None for all, got {window}")
        capacity = integer("capacity", capacity)
        require(capacity >= 0, f"capacity: expected 0 or more tokens, got {capacity}")
        cache = cls(_state_behind(module, x, counts, history, window))
        cache.reserve(capacity)
        return cache

    @property
    def window(self) -> int | None:
        """How many tokens before the newest are visible; None: all."""
        return self._window

    def _unlimited(self) -> bool:
        return self._window is None and "level_1.keys" not in self.state and "inputs" not in self.state

    def reserve(self, tokens: int) -> None:
        """Makes room for sequences of `tokens` tokens; what is there stays. A cache with a window has room for any number. Call
        it before a step is captured into a CUDA graph, for all tokens that replays will add."""
        held = self.state["values"].shape[2]
        if held >= tokens or self._window is not None:
            return
        capacity = max(tokens, 2 * held, 16)
        for name, tensor in self.state.items():
            if name == "values" or name.endswith(".keys"):
                level = 0 if name == "values" else int(name[len("level_") : -len(".keys")])
                self.state[name] = F.pad(tensor, (0, 0, 0, ceil_div(capacity, 2**level) - tensor.shape[2]))

    def step(self, module: HktAttention, x: Tensor) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model); module.step calls it."""
        expected = (self.lengths.shape[0], module.model_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x: expected shape {expected}, got {tuple(x.shape)}")
        if f"level_{module.levels - 1}.keys" not in self.state or f"level_{module.levels}.keys" in self.state:
            raise ValueError(f"cache: expected {module.levels} levels like the module; it was made by another one")
        if x.shape[0] == 0:
            return x
        self.reserve(max(self._counts) + 1)
        values, window = self.state["values"], -1 if self._window is None else self._window
        queries, keys = (
            [self.state[f"level_{level}.{name}"] for level in range(module.levels)] for name in ("queries", "keys")
        )
        if has_same_launches(module, x):
            q, k, v = newest_rows(module, self.state, x)
            new_q, new_k = ([row.to(values.dtype) for row in rows] for rows in (q, k))
            hkt_append(new_q, new_k, v.to(values.dtype), queries, keys, values, self.lengths)
        else:

            def take(level: int, sequences: Tensor, row: Tensor, query: Tensor, key: Tensor) -> None:
                for ring, new in ((queries[level], query), (keys[level], key)):
                    ring[sequences, :, row % ring.shape[2]] = new.squeeze(2).to(ring.dtype)

            v = advance(module, self.state, self._counts, x, take)
            sequences = torch.arange(x.shape[0], device=x.device)
            values[sequences, :, self.lengths % values.shape[2]] = v.squeeze(2).to(values.dtype)
        self.lengths.add_(1)
        self._count_one()
        weights = module.mixing_weights(values.dtype)
        mixed = torch.ops.strata.hkt_decode(queries, keys, values, weights, self.lengths, window=window)
        out: Tensor = module.out(mixed.to(v.dtype).reshape(x.shape[0], module.model_size))
        return out


def _state_behind(
    module: HktAttention, x: Tensor, counts: list[int], history: int, window: int | None
) -> dict[str, Tensor]:
    """The tensors of a cache behind prompts x, (B, T, model), of which `counts` tokens are real."""
    lengths = torch.tensor(counts, dtype=torch.int64).to(x.device)
    x = x.masked_fill(padding_mask(lengths, x).unsqueeze(-1), 0.0)
    if x.shape[1] == 0:  # a prompt of no tokens has no states to gather from; one row of zeros stands in
        x = x.new_zeros(x.shape[0], 1, x.shape[2])
    states = module.pyramid(x)
    state = newest_states(module, x, states, lengths, history)
    for level, rows in enumerate(states):
        q, k = module.project(rows, level)
        newest = (lengths - 1).div(2**level, rounding_mode="floor")
        if window is not None:
            k = ring_of(k, newest, (window + history) // 2**level + 2 if level > 0 else window + history + 1)
        state[f"level_{level}.keys"] = k.contiguous()
        state[f"level_{level}.queries"] = ring_of(q, newest, 1 + ceil_div(history, 2**level))
    v = module.split_heads(module.value(states[0]), module.key_heads)
    state["values"] = (v if window is None else ring_of(v, lengths - 1, window + history + 1)).contiguous()
    unlimited = window is None and module.levels == 1 and not module.input_filter
    state["floors"] = torch.tensor([0 if unlimited else max(0, count - history) for count in counts])
    state["history"], state["window"] = torch.tensor([history]), torch.tensor([-1 if window is None else window])
    state["lengths"] = lengths
    return state
