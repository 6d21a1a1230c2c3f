"""What a causal HKT module remembers of the tokens it has seen, so that one more token costs one row of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from strata._values import Integers, check_lengths, lengths_tensor
from strata.ops import causal_filter, hkt_decode

if TYPE_CHECKING:
    from strata.hkt import HktAttention


def newest_rows(states: Tensor, counts: Tensor, taps: int) -> Tensor:
    """Rows n - taps .. n - 1 of each sequence, (B, taps, model), where n differs from sequence to sequence; zeros before
    row 0."""
    rows = counts.unsqueeze(1) + torch.arange(-taps, 0, device=counts.device)
    index = rows.clamp_min(0).unsqueeze(-1).expand(-1, -1, states.shape[2])
    return states.gather(1, index).masked_fill((rows < 0).unsqueeze(-1), 0.0)


def push_recent(recent: Tensor, sequences: Tensor, states: Tensor) -> None:
    """Drops the oldest row of the given sequences and appends a new one."""
    recent[sequences] = torch.cat([recent[sequences][:, 1:], states.to(recent.dtype).unsqueeze(1)], 1)


def filter_newest(recent: Tensor, weight: Tensor) -> Tensor:
    """The newest row of a filter over the newest states, (B, model)."""
    return causal_filter(recent, weight, 1)[:, -1]


class HktCache:
    """Per level: keys (B, Hk, capacity, d), the newest query (B, H, 1, d) and the newest states (B, taps, model).

    A coarse key is appended when its anchor, token m 2^l, arrives. Sequences of a batch may have different lengths. The
    tensors have the types that the module gave them when the cache was made; a step may be made under autocast, or not.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        """state: what state_dict() returned."""
        self.state = dict(state)
        for name in ("lengths", "values", "level_0.keys"):
            if name not in self.state:
                raise ValueError(f'HktCache: expected a tensor named "{name}", and there is none')

    @classmethod
    def from_prompt(cls, module: HktAttention, x: Tensor, lengths: Integers | None = None) -> HktCache:
        """The cache behind prompts x, (B, T, model), of which `lengths` (B) tokens are real."""
        if lengths is None:
            counts = torch.full((x.shape[0],), x.shape[1], dtype=torch.int64, device=x.device)
        else:
            counts = lengths_tensor(lengths, x.shape[0], x.shape[1])
            check_lengths(counts, x.shape[1])
            counts = counts.to(x.device, torch.int64, copy=True)
        return cls(_state_behind(module, x, counts))

    @property
    def lengths(self) -> Tensor:
        """(B) int64: tokens of each sequence."""
        return self.state["lengths"]

    def state_dict(self) -> dict[str, Tensor]:
        """Everything as named tensors, for save_safetensors; HktCache(state_dict) restores it."""
        return {name: tensor.clone() for name, tensor in self.state.items()}

    def reserve(self, tokens: int) -> None:
        """Makes room for sequences of `tokens` tokens; what is there stays."""
        held = self.state["values"].shape[2]
        if held >= tokens:
            return
        capacity = max(tokens, 2 * held, 16)
        for name, tensor in self.state.items():
            if name == "values" or name.endswith(".keys"):
                level = 0 if name == "values" else int(name[len("level_") : -len(".keys")])
                room = (capacity + 2**level - 1) // 2**level - tensor.shape[2]
                self.state[name] = F.pad(tensor, (0, 0, 0, room))

    def step(self, module: HktAttention, x: Tensor) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model); module.step calls it."""
        expected = (self.lengths.shape[0], module.model_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x: expected shape {expected}, got {tuple(x.shape)}")
        if f"level_{module.levels - 1}.keys" not in self.state or f"level_{module.levels}.keys" in self.state:
            raise ValueError(f"cache: expected {module.levels} levels like the module; it was made by another one")
        if x.shape[0] == 0:
            return x
        self.reserve(int(self.lengths.max()) + 1)
        position = self.lengths.clone()
        sequences = torch.arange(x.shape[0], device=x.device)  # those that get a new state on the current level
        states = x
        if module.input_filter:
            push_recent(self.state["recent_inputs"], sequences, x)
            states = filter_newest(self.state["recent_inputs"], module.filter_0)
        v = module.split_heads(module.value(states.unsqueeze(1)), module.key_heads)
        values = self.state["values"]
        values[sequences, :, position] = v.squeeze(2).to(values.dtype)

        q, k = [], []
        for level in range(module.levels):
            keys, queries, recent = (self.state[f"level_{level}.{name}"] for name in ("keys", "queries", "recent"))
            if len(sequences) > 0:
                row = position[sequences] // 2**level
                query, key = module.project(states.unsqueeze(1), level, row.unsqueeze(1))
                queries[sequences] = query.to(queries.dtype)
                keys[sequences, :, row] = key.squeeze(2).to(keys.dtype)
                push_recent(recent, sequences, states)
                if level + 1 < module.levels:
                    sequences = sequences[row % 2 == 0]
                    states = filter_newest(recent[sequences], getattr(module, f"filter_{level + 1}"))
            q.append(queries)
            k.append(keys)
        self.lengths.add_(1)
        mixed = hkt_decode(q, k, values, module.mixing_weights(values.dtype), self.lengths)
        out: Tensor = module.out(mixed.to(v.dtype).reshape(x.shape[0], module.model_size))
        return out


def _state_behind(module: HktAttention, x: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """The tensors of a cache behind prompts x, (B, T, model), of which `lengths` (B) tokens are real."""
    state = {"lengths": lengths}
    if x.shape[1] == 0:  # a prompt of no tokens has no states to gather from; one row of zeros stands in
        x = x.new_zeros(x.shape[0], 1, x.shape[2])
    states = module.pyramid(x)
    for level, rows in enumerate(states):
        q, k = module.project(rows, level)
        counts = (lengths + 2**level - 1) // 2**level
        last = (counts - 1).clamp_min(0).view(-1, 1, 1, 1).expand(-1, q.shape[1], 1, q.shape[3])
        state[f"level_{level}.keys"] = k.contiguous()
        state[f"level_{level}.queries"] = q.gather(2, last)
        state[f"level_{level}.recent"] = newest_rows(rows, counts, module.taps).to(module.level_logits.dtype)
    if module.input_filter:
        state["recent_inputs"] = newest_rows(x, lengths, module.taps).to(module.level_logits.dtype)
    state["values"] = module.split_heads(module.value(states[0]), module.key_heads).contiguous()
    return state
