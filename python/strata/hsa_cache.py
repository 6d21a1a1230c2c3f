"""What the streaming form of HSA remembers of the tokens it has seen: O(b log T) entries for a stream of any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata._decoding import DecodingCache, check_history
from strata._stream_nodes import (
    check_capacity,
    empty_nodes,
    fill_nodes,
    heights_of,
    log_overwritten,
    reserve_heights,
    restore_overwritten,
)
from strata._values import compute_type, require
from strata.ops import hsa_stream_step

if TYPE_CHECKING:
    from strata.hsa import HsaAttention


class HsaStreamCache(DecodingCache):
    """At height h the complete siblings of the newest token's ancestor: at most b - 1 entries per height, for a stream
    of any length. The sequences of a batch may have different lengths.

    state holds keys and values (B, Hk, capacity, b, d), kappas (B, Hk, capacity, b), masses (B, capacity, b) and lengths
    (B). It is float64 for a float64 module and float32 otherwise: entries are means over many tokens. The memory is allocated
    for `capacity` heights; a stream of b^capacity tokens adds one. A node forgets its children, so crop() needs a log of what
    the newest `history` tokens have overwritten: about history b / (b - 1) entries more.
    """

    def __init__(self, module: HsaAttention, batch: int, capacity: int, history: int = 0) -> None:
        weight, history = module.value.weight, check_history(history)
        require(batch >= 0, f"batch: expected 0 or more, got {batch}")
        shape = (batch, module.key_heads, check_capacity(capacity), module.branching)
        size, dtype = module.head_size, compute_type(weight.dtype)
        state = empty_nodes(weight.detach(), dtype, shape, size, size, module.branching, history)
        state["lengths"] = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        state["floors"], state["history"] = torch.zeros(batch, dtype=torch.int64), torch.tensor([history])
        super().__init__(state, ())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes what state_dict() of a cache of the same batch and history returned."""
        if "masses" in state and state["masses"].dim() == 3:
            reserve_heights(self.state, state["masses"].shape[1], self.state["masses"].shape[2], self._history)
        for name, held in self.state.items():
            if name not in state or state[name].shape != held.shape:
                got = f"shape {tuple(state[name].shape)}" if name in state else "none"
                raise ValueError(f'HsaStreamCache: expected "{name}" of shape {tuple(held.shape)}, got {got}')
        for name, held in self.state.items():
            self.state[name] = state[name].to(held.device, held.dtype, copy=True).contiguous()
        self._read_host()

    def entries(self, branching: int) -> Tensor:
        """(B): how many entries each sequence holds, the sum of the digits of its length in base b."""
        sums = []
        for rest in self._counts:
            sums.append(0)
            while rest > 0:
                sums[-1] += rest % branching
                rest //= branching
        return torch.tensor(sums, dtype=torch.int64, device=self.lengths.device)

    def fill(self, k: Tensor, v: Tensor, key_bias: Tensor | None, counts: list[int]) -> None:
        """Replaces the contents by what the first `counts` tokens of k and v, (B, H, T, d), leave behind, and key_bias,
        (B, H, T). What lies beyond them must be finite."""
        branching = self.state["masses"].shape[2]
        reserve_heights(self.state, heights_of(max(counts, default=0), branching), branching, self._history)
        for name, tensor in self.state.items():
            if name not in ("floors", "history"):
                tensor.zero_()
        self.lengths.copy_(torch.tensor(counts, dtype=torch.int64))
        fill_nodes(self.state, k, v, key_bias, counts, branching, self._history)
        self._counts, self._floors = list(counts), [max(0, count - self._history) for count in counts]

    def _forget(self, targets: list[int]) -> None:
        restore_overwritten(self.state, self._counts, targets, self.state["masses"].shape[2], self._history)

    def step(self, module: HsaAttention, x: Tensor) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model); module.step calls it."""
        expected = (self.lengths.shape[0], module.model_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x: expected shape {expected}, got {tuple(x.shape)}")
        dtype = self.state["keys"].dtype
        if dtype != compute_type(module.value.weight.dtype):
            raise ValueError(
                f"cache: expected {compute_type(module.value.weight.dtype)} like the module, got {dtype}; start the stream "
                "after the module has its type"
            )
        branching = self.state["masses"].shape[2]
        reserve_heights(self.state, heights_of(max(self._counts, default=0) + 1, branching), branching, self._history)
        log_overwritten(self.state, self._counts, branching, self._history)
        q, k, v = (t.squeeze(2) for t in module.project(x.unsqueeze(1), self.lengths.unsqueeze(1)))
        key_bias = module.key_bias(k)
        table = module.position_table()
        s = self.state
        mixed = hsa_stream_step(
            q.to(dtype),
            k.to(dtype),
            v.to(dtype),
            s["keys"],
            s["values"],
            s["kappas"],
            s["masses"],
            s["lengths"],
            key_bias=key_bias,
            positions=None if table is None else table.to(dtype),
        )
        self._count_one()
        out: Tensor = module.out(mixed.to(v.dtype).reshape(x.shape))
        return out
