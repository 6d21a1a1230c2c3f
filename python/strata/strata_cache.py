"""What the streaming form of Strata attention remembers of the tokens it has seen: O(near b log T) nodes, and of each level
the newest rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata._decoding import (
    DecodingCache,
    advance,
    ceil_div,
    check_history,
    has_same_launches,
    host_lengths,
    newest_of,
    newest_rows,
    newest_states,
    ring_of,
)
from strata._stream_nodes import (
    KINDS,
    check_capacity,
    empty_nodes,
    fill_nodes,
    heights_of,
    log_overwritten,
    reserve_heights,
    restore_overwritten,
)
from strata._values import Integers, compute_type, padding_mask
from strata.ops import hkt_append, hsa_stream_step

if TYPE_CHECKING:
    from strata.strata_attention import StrataAttention


class StrataCache(DecodingCache):
    """The nodes of the newest `near` families of each height, for a stream of any length. The sequences of a batch may have
    different lengths.

    state holds keys (B, Hk, capacity, near b, levels d), values (B, Hk, capacity, near b, d), kappas, masses, lengths (B),
    near, and of each level its newest queries (B, H, 1 + h_l, d), keys (B, Hk, 1 + h_l, d) and states (B, taps + h_l, model),
    where h_l = ceil(history / 2^l). The memory is allocated for `capacity` heights; a stream of b^capacity tokens adds one. A
    node forgets its children, so crop() needs a log of what the newest `history` tokens have overwritten: about
    history b / (b - 1) nodes more.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        """state: what state_dict() returned."""
        super().__init__(state, (*KINDS, "near", "level_0.key_rows"))

    def _read_host(self) -> None:
        super()._read_host()
        self._near = int(self.state["near"])

    @property
    def _branching(self) -> int:
        return int(self.state["masses"].shape[2]) // self._near

    @classmethod
    def from_prompt(
        cls, module: StrataAttention, x: Tensor, lengths: Integers | None, capacity: int, history: int = 0
    ) -> StrataCache:
        """The cache behind prompts x, (B, T, model), of which `lengths` (B) tokens are real."""
        return cls(_state_behind(module, x, host_lengths(lengths, x), check_capacity(capacity), check_history(history)))

    def _check(self, module: StrataAttention, x: Tensor) -> None:
        expected = (self.lengths.shape[0], module.model_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x: expected shape {expected}, got {tuple(x.shape)}")
        near, ring = self._near, self.state["keys"].shape[3]
        fits = near == module.near and ring == module.near * module.branching
        if (
            not fits
            or f"level_{module.levels - 1}.key_rows" not in self.state
            or f"level_{module.levels}.key_rows" in self.state
        ):
            raise ValueError(
                f"cache: expected {module.levels} levels, near = {module.near} and branching = {module.branching} like the "
                f"module, got near = {near} and {ring} slots of a height; it was made by another one"
            )

    def _forget(self, targets: list[int]) -> None:
        restore_overwritten(self.state, self._counts, targets, self._branching, self._history)

    def _newest_rows(self, module: StrataAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of all levels that a new token has, in their rings and side by side: (B, H, levels d), (B, Hk, levels d);
        and v, (B, Hk, 1, d)."""
        s, dtype = self.state, self.state["keys"].dtype
        queries, keys = (
            [s[f"level_{level}.{name}"] for level in range(module.levels)] for name in ("query_rows", "key_rows")
        )
        if has_same_launches(module, x):
            new_q, new_k, v = newest_rows(module, s, x)
            cast_q, cast_k = ([row.to(dtype) for row in rows] for rows in (new_q, new_k))
            q, k = hkt_append(cast_q, cast_k, None, queries, keys, None, self.lengths, current=True)
            return q.flatten(2), k.flatten(2), v

        def take(level: int, sequences: Tensor, row: Tensor, query: Tensor, key: Tensor) -> None:
            for ring, new in ((queries[level], query), (keys[level], key)):
                ring[sequences, :, row % ring.shape[2]] = new.squeeze(2).to(dtype)

        v = advance(module, s, self._counts, x, take)
        q, k = (
            torch.cat([newest_of(ring, self.lengths // 2**level).squeeze(2) for level, ring in enumerate(rings)], -1)
            for rings in (queries, keys)
        )
        return q, k, v

    def step(self, module: StrataAttention, x: Tensor) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model); module.step calls it."""
        self._check(module, x)
        if x.shape[0] == 0:
            return x
        s, dtype = self.state, self.state["keys"].dtype
        reserve_heights(s, heights_of(max(self._counts) + 1, self._branching), self._branching, self._history)
        log_overwritten(s, self._counts, self._branching, self._history)

        q, k, v = self._newest_rows(module, x)
        mixed = hsa_stream_step(
            q,
            k,
            v.squeeze(2).to(dtype),
            *(s[name] for name in (*KINDS, "lengths")),
            positions=module.sibling_bias.to(dtype) if module.positions == "bias" else None,
            level_weights=module.level_weights().to(dtype),
            near=module.near,
        )
        self._count_one()
        out: Tensor = module.out(mixed.to(v.dtype).reshape(x.shape))
        return out


def _state_behind(
    module: StrataAttention, x: Tensor, counts: list[int], capacity: int, history: int
) -> dict[str, Tensor]:
    """The tensors of a cache behind prompts x, (B, T, model), of which `counts` tokens are real."""
    dtype, b = compute_type(module.value.weight.dtype), module.branching
    lengths = torch.tensor(counts, dtype=torch.int64).to(x.device)
    x = x.masked_fill(padding_mask(lengths, x).unsqueeze(-1), 0.0)
    if x.shape[1] == 0:  # a prompt of no tokens has no states to gather from; one row of zeros stands in
        x = x.new_zeros(x.shape[0], 1, x.shape[2])
    q, k, v = module.project_all(x)
    capacity = max(capacity, heights_of(max(counts, default=0), b))
    shape = (x.shape[0], module.key_heads, capacity, module.near * b)
    state = empty_nodes(x, dtype, shape, module.levels * module.head_size, module.head_size, b, history)
    state["lengths"] = lengths
    state.update(newest_states(module, x, module.pyramid(x), lengths, history))
    for level in range(module.levels):
        newest = (lengths - 1).div(2**level, rounding_mode="floor")
        for name, rows in (("query_rows", q[level]), ("key_rows", k[level])):
            state[f"level_{level}.{name}"] = ring_of(rows, newest, 1 + ceil_div(history, 2**level)).to(dtype)
    at = torch.arange(x.shape[1], device=x.device)
    keys = torch.cat([k[level][:, :, at // 2**level] for level in range(module.levels)], -1)
    fill_nodes(state, keys, v, None, counts, b, history)
    state["near"], state["history"] = torch.tensor([module.near]), torch.tensor([history])
    state["floors"] = torch.tensor([max(0, count - history) for count in counts], dtype=torch.int64)
    return state
