"""What the streaming form of HSA remembers of the tokens it has seen: O(b log T) entries for a stream of any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata._values import compute_type, require
from strata.ops import hsa_stream_step

if TYPE_CHECKING:
    from strata.hsa import HsaAttention


class HsaStreamCache:
    """At height h the complete siblings of the newest token's ancestor: at most b - 1 entries per height, for a stream
    of any length. The sequences of a batch may have different lengths.

    state holds keys and values (B, H, capacity, b, d), kappas (B, H, capacity, b), masses (B, capacity, b) and lengths
    (B). It is float64 for a float64 module and float32 otherwise: entries are means over many tokens.
    """

    def __init__(self, module: HsaAttention, batch: int, capacity: int) -> None:
        weight = module.value.weight
        require(batch >= 0, f"batch: expected 0 or more, got {batch}")
        require(capacity >= 1, f"capacity: expected 1 or more, got {capacity}")
        shape = (batch, module.heads, capacity, module.branching)
        dtype = compute_type(weight.dtype)
        self.state: dict[str, Tensor] = {
            "keys": weight.new_zeros(*shape, module.head_size, dtype=dtype),
            "values": weight.new_zeros(*shape, module.head_size, dtype=dtype),
            "kappas": weight.new_zeros(*shape, dtype=dtype),
            "masses": weight.new_zeros(batch, capacity, module.branching, dtype=dtype),
            "lengths": torch.zeros(batch, dtype=torch.int64, device=weight.device),
        }

    @property
    def lengths(self) -> Tensor:
        """(B) int64: tokens of each sequence."""
        return self.state["lengths"]

    def state_dict(self) -> dict[str, Tensor]:
        """The whole cache as named tensors, for save_safetensors."""
        return {name: tensor.clone() for name, tensor in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes what state_dict() of a cache of the same batch and capacity returned."""
        for name, held in self.state.items():
            if name not in state or state[name].shape != held.shape:
                got = f"shape {tuple(state[name].shape)}" if name in state else "none"
                raise ValueError(f'HsaStreamCache: expected "{name}" of shape {tuple(held.shape)}, got {got}')
        for name, held in self.state.items():
            self.state[name] = state[name].to(held.device, held.dtype, copy=True).contiguous()

    def entries(self, branching: int) -> Tensor:
        """(B): how many entries each sequence holds, the sum of the digits of its length in base b."""
        counts, rest = torch.zeros_like(self.lengths), self.lengths.clone()
        while bool((rest > 0).any()):
            counts += rest % branching
            rest = rest // branching
        return counts

    def fill(self, k: Tensor, v: Tensor, key_bias: Tensor | None, lengths: Tensor) -> None:
        """Replaces the contents by what `lengths` (B) tokens of k and v, (B, H, T, d), leave behind, and key_bias,
        (B, H, T). What lies beyond the lengths must be finite."""
        capacity, branching = self.state["masses"].shape[1:]
        longest = int(lengths.max()) if lengths.numel() else 0
        require(
            longest < branching**capacity,
            f"capacity: expected more than {capacity} heights, because {longest} tokens are not fewer than "
            f"{branching}^{capacity}",
        )
        for tensor in self.state.values():
            tensor.zero_()
        self.lengths.copy_(lengths)
        means = {"keys": k, "values": v, "kappas": torch.zeros_like(k[..., 0]) if key_bias is None else key_bias}
        means = {name: mean.to(self.state[name].dtype) for name, mean in means.items()}
        height = 0
        while branching**height <= longest:
            nodes = self.lengths // branching**height  # complete ones; the last `nodes % b` of them are entries
            slots = (nodes - nodes % branching).unsqueeze(1) + torch.arange(branching, device=k.device)  # (B, b)
            held = slots < nodes.unsqueeze(1)
            self.state["masses"][:, height] = held * float(branching**height)
            for name, mean in means.items():
                self.state[name][:, :, height] = _rows(mean, slots) * _beside(held, mean)
            means = {name: _means(mean, branching) for name, mean in means.items()}
            height += 1

    def step(self, module: HsaAttention, x: Tensor) -> Tensor:
        """One new token per sequence, x: (B, model) to (B, model); module.step calls it."""
        s = self.state
        expected = (self.lengths.shape[0], module.model_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x: expected shape {expected}, got {tuple(x.shape)}")
        dtype = s["keys"].dtype
        if dtype != compute_type(module.value.weight.dtype):
            raise ValueError(
                f"cache: expected {compute_type(module.value.weight.dtype)} like the module, got {dtype}; start the stream "
                "after the module has its type"
            )
        q, k, v = (t.squeeze(2) for t in module.project(x.unsqueeze(1), self.lengths.unsqueeze(1)))
        key_bias = module.key_bias(k)
        table = module.position_table()
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
        out: Tensor = module.out(mixed.to(v.dtype).reshape(x.shape))
        return out


def _rows(mean: Tensor, slots: Tensor) -> Tensor:
    """Rows `slots` (B, b) of a mean (B, H, n) or (B, H, n, d); any row for a slot beyond the last."""
    index = slots.clamp_max(mean.shape[2] - 1).unsqueeze(1).expand(-1, mean.shape[1], -1)
    return mean.gather(2, index if mean.dim() == 3 else index.unsqueeze(-1).expand(-1, -1, -1, mean.shape[3]))


def _beside(held: Tensor, mean: Tensor) -> Tensor:
    """(B, b) for a product with (B, H, b) or (B, H, b, d)."""
    return held.unsqueeze(1) if mean.dim() == 3 else held.unsqueeze(1).unsqueeze(-1)


def _means(mean: Tensor, branching: int) -> Tensor:
    """Means of every b rows, without those that are too few: the next height."""
    nodes = mean.shape[2] // branching
    rows = mean[:, :, : nodes * branching]
    return rows.reshape(*mean.shape[:2], nodes, branching, *mean.shape[3:]).mean(3)
