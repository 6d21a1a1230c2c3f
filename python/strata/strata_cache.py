"""What the streaming form of Strata attention remembers of the tokens it has seen: O(near b log T) nodes, and of each level
the newest rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata._values import Integers, check_lengths, compute_type, lengths_tensor, padding_mask, require
from strata.hkt_cache import filter_newest, newest_rows, push_recent
from strata.ops import hsa_stream_step

if TYPE_CHECKING:
    from strata.strata_attention import StrataAttention

_NODES = ("keys", "values", "kappas", "masses", "lengths")


class StrataCache:
    """The nodes of the newest `near` families of each height, for a stream of any length. The sequences of a batch may have
    different lengths.

    state holds keys (B, Hk, capacity, near b, levels d), values (B, Hk, capacity, near b, d), kappas, masses, lengths (B),
    near, and of each level its newest query (B, H, 1, d), key (B, Hk, 1, d) and states (B, taps, model).
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        """state: what state_dict() returned."""
        self.state = dict(state)
        for name in (*_NODES, "near", "level_0.key"):
            require(name in self.state, f'StrataCache: expected a tensor named "{name}", and there is none')

    @classmethod
    def from_prompt(cls, module: StrataAttention, x: Tensor, lengths: Integers | None, capacity: int) -> StrataCache:
        """The cache behind prompts x, (B, T, model), of which `lengths` (B) tokens are real."""
        batch, tokens = x.shape[0], x.shape[1]
        counts = lengths_tensor([tokens] * batch if lengths is None else lengths, batch, tokens)
        check_lengths(counts, tokens)
        require(
            capacity >= 1 and tokens < module.branching**capacity,
            f"capacity: expected more than {capacity} heights, because {tokens} tokens are not fewer than "
            f"{module.branching}^{capacity}",
        )
        counts = counts.to(x.device, torch.int64, copy=True)
        return cls(_state_behind(module, x, counts, capacity))

    @property
    def lengths(self) -> Tensor:
        """(B) int64: tokens of each sequence."""
        return self.state["lengths"]

    @property
    def bytes(self) -> int:
        """The size of the whole cache."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Everything as named tensors, for save_safetensors; StrataCache(state_dict) restores it."""
        return {name: tensor.clone() for name, tensor in self.state.items()}

    def _check(self, module: StrataAttention, x: Tensor) -> None:
        expected = (self.lengths.shape[0], module.model_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x: expected shape {expected}, got {tuple(x.shape)}")
        near, ring = int(self.state["near"]), self.state["keys"].shape[3]
        fits = near == module.near and ring == module.near * module.branching
        if not fits or f"level_{module.levels - 1}.key" not in self.state or f"level_{module.levels}.key" in self.state:
            raise ValueError(
                f"cache: expected {module.levels} levels, near = {module.near} and branching = {module.branching} like the "
                f"module, got near = {near} and {ring} slots of a height; it was made by another one"
            )

    def step(self, module: StrataAttention, x: Tensor) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model); module.step calls it."""
        self._check(module, x)
        if x.shape[0] == 0:
            return x
        s, dtype = self.state, self.state["keys"].dtype
        sequences = torch.arange(x.shape[0], device=x.device)  # those that get a new state on the current level
        states = x
        if module.input_filter:
            push_recent(s["recent_inputs"], sequences, x)
            states = filter_newest(s["recent_inputs"], module.filter_0)
        v = module.split_heads(module.value(states.unsqueeze(1)), module.key_heads)
        for level in range(module.levels):
            if len(sequences) == 0:
                break
            row = self.lengths[sequences] // 2**level
            query, key = module.project(states.unsqueeze(1), level, row.unsqueeze(1))
            s[f"level_{level}.query"][sequences] = query.to(dtype)
            s[f"level_{level}.key"][sequences] = key.to(dtype)
            recent = s[f"level_{level}.recent"]
            push_recent(recent, sequences, states)
            if level + 1 < module.levels:
                sequences = sequences[row % 2 == 0]
                states = filter_newest(recent[sequences], getattr(module, f"filter_{level + 1}"))
        q, k = (
            torch.cat([s[f"level_{level}.{name}"].squeeze(2) for level in range(module.levels)], -1)
            for name in ("query", "key")
        )
        mixed = hsa_stream_step(
            q,
            k,
            v.squeeze(2).to(dtype),
            *(s[name] for name in _NODES),
            positions=module.sibling_bias.to(dtype) if module.positions == "bias" else None,
            level_weights=module.level_weights().to(dtype),
            near=module.near,
        )
        out: Tensor = module.out(mixed.to(v.dtype).reshape(x.shape))
        return out


def _state_behind(module: StrataAttention, x: Tensor, lengths: Tensor, capacity: int) -> dict[str, Tensor]:
    """The tensors of a cache behind prompts x, (B, T, model), of which `lengths` (B) tokens are real."""
    dtype = compute_type(module.value.weight.dtype)
    x = x.masked_fill(padding_mask(lengths, x).unsqueeze(-1), 0.0)
    if x.shape[1] == 0:  # a prompt of no tokens has no states to gather from; one row of zeros stands in
        x = x.new_zeros(x.shape[0], 1, x.shape[2])
    q, k, v = module.project_all(x)
    shape = (x.shape[0], module.key_heads, capacity, module.near * module.branching)
    state = {
        "keys": x.new_zeros(*shape, module.levels * module.head_size, dtype=dtype),
        "values": x.new_zeros(*shape, module.head_size, dtype=dtype),
        "kappas": x.new_zeros(shape, dtype=dtype),
        "masses": x.new_zeros(shape[0], *shape[2:], dtype=dtype),
        "lengths": lengths,
        "near": torch.tensor([module.near]),
    }
    for level, rows in enumerate(module.pyramid(x)):
        counts = (lengths + 2**level - 1) // 2**level
        last = (counts - 1).clamp_min(0).view(-1, 1, 1, 1)
        for name, all_rows in (("query", q[level]), ("key", k[level])):
            index = last.expand(-1, all_rows.shape[1], 1, all_rows.shape[3])
            state[f"level_{level}.{name}"] = all_rows.gather(2, index).to(dtype)
        state[f"level_{level}.recent"] = newest_rows(rows, counts, module.taps).to(module.level_logits.dtype)
    if module.input_filter:
        state["recent_inputs"] = newest_rows(x, lengths, module.taps).to(module.level_logits.dtype)
    for sequence, tokens in enumerate(lengths.tolist()):
        levels = [
            k[level][sequence][:, torch.arange(tokens, device=x.device) // 2**level] for level in range(module.levels)
        ]
        _fill_nodes(state, sequence, torch.cat(levels, -1).to(dtype), v[sequence][:, :tokens].to(dtype), module)
    return state


def _fill_nodes(state: dict[str, Tensor], sequence: int, k: Tensor, v: Tensor, module: StrataAttention) -> None:
    """The newest `near` families of each height of one sequence, k: (Hk, T, levels d), v: (Hk, T, d): means of b nodes of
    the height below."""
    b, ring, height = module.branching, module.near * module.branching, 0
    while k.shape[1] > 0:
        count = k.shape[1]
        first = max(0, -(-count // b) - module.near) * b
        slots = torch.arange(first, count, device=k.device) % ring
        state["keys"][sequence, :, height, slots] = k[:, first:]
        state["values"][sequence, :, height, slots] = v[:, first:]
        state["masses"][sequence, height, slots] = float(b**height)
        k, v = (t[:, : count // b * b].reshape(t.shape[0], count // b, b, t.shape[2]).mean(2) for t in (k, v))
        height += 1
