"""HSA attention as a module, with the same parameters as strata::HsaAttention in C++."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from strata.tree import Trees, hsa_attention, hsa_stream_attention

VECTOR_SIZE = 8  # of learned position vectors


class HsaAttention(nn.Module):
    """Attention over a tree, or the streaming form.

    streaming        False: the tree form, for encoders (it looks ahead inside a node, even with causal=True);
                     True: strictly causal over the left-packed b-ary tree, safe for autoregressive use
    branching        b of the streaming form
    causal           tree form: only earlier siblings count
    l2_energy        -s |q - k|^2 / 2 instead of s <q, k>
    normalize        LayerNorm without affine part on q and k
    positions        "none", "sinusoidal", "learned" (vectors) or "bias" (a learned table)
    tables           position tables: 1 for sequences, 1 + w for grids up to w wide; streaming: heights
    places           size of each position table
    """

    def __init__(
        self,
        model_size: int,
        heads: int,
        *,
        streaming: bool = False,
        branching: int = 16,
        causal: bool = False,
        l2_energy: bool = False,
        normalize: bool = False,
        positions: str = "none",
        tables: int = 1,
        places: int = 16,
        projection_bias: bool = False,
    ) -> None:
        super().__init__()
        if model_size < 1 or heads < 1 or model_size % heads:
            raise ValueError(
                f"model_size: expected a positive multiple of heads, got model_size = {model_size} and heads = {heads}"
            )
        if positions not in ("none", "sinusoidal", "learned", "bias"):
            raise ValueError(f'positions: expected none, sinusoidal, learned or bias, got "{positions}"')
        if streaming and positions != "none" and places != branching:
            raise ValueError(f"places: expected {branching} like branching in the streaming form, got {places}")
        self.model_size, self.heads, self.head_size = model_size, heads, model_size // heads
        self.streaming, self.branching, self.causal = streaming, branching, causal
        self.l2_energy, self.normalize, self.positions = l2_energy, normalize, positions
        self.tables, self.places = tables, places
        for name in ("query", "key", "value", "out"):
            self.add_module(name, nn.Linear(model_size, model_size, bias=projection_bias))
        if positions == "bias":
            self.sibling_bias = nn.Parameter(torch.zeros(heads, tables, places, places))
        if positions == "learned":
            self.position_vectors = nn.Parameter(0.02 * torch.randn(heads, tables, places, VECTOR_SIZE))

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
        table = torch.ops.strata.sinusoidal_positions(1 if self.streaming else self.tables, self.places)
        if self.streaming:
            table = table.expand(self.tables, -1, -1)
        return table.to(self.query.weight).unsqueeze(0).expand(self.heads, -1, -1, -1)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of x: (B, H, T, d) each, normalised if `normalize`: the inputs of hierarchy_score."""
        q, k, v = (
            layer(x).view(x.shape[0], x.shape[1], self.heads, self.head_size)
            for layer in (self.query, self.key, self.value)
        )
        if self.normalize:  # in float under autocast; then back to the type of the values
            q, k = (nn.functional.layer_norm(t, (self.head_size,)).to(t.dtype) for t in (q, k))
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, trees: Trees | None = None, weights: Tensor | None = None) -> Tensor:
        """x: (B, T, model); trees: one per sequence (padded) or several over B = 1 (packed); weights: (B, T), 0 is
        padding. The streaming form takes no trees."""
        if x.dim() != 3 or x.shape[2] != self.model_size:
            raise ValueError(f"x: expected shape (batch, tokens, {self.model_size}), got {tuple(x.shape)}")
        if self.streaming and trees is not None:
            raise ValueError("trees: expected none in the streaming form")
        if not self.streaming and trees is None:
            raise ValueError("trees: expected one per sequence, got none")
        real = x if weights is None else x.masked_fill((weights == 0).unsqueeze(-1), 0.0)
        q, k, v = self.project(real)
        compute = torch.float64 if x.dtype == torch.float64 else torch.float32
        options: dict[str, Any] = {}
        if self.l2_energy:
            options["key_bias"] = k.to(compute).square().sum(-1) * (-0.5 / math.sqrt(self.head_size))
        table = self.position_table()
        if table is not None:
            options["positions"] = table.to(compute)
        if weights is not None:
            options["weights"] = weights.to(compute)
        if trees is None:
            mixed, _ = hsa_stream_attention(q, k, v, self.branching, **options)
        else:
            mixed, _ = hsa_attention(q, k, v, trees, causal=self.causal, **options)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def start_stream(self, batch: int, capacity: int = 10) -> HsaStreamCache:
        """An empty cache for step(), for at most b^capacity tokens."""
        if not self.streaming:
            raise ValueError("start_stream: expected the streaming form; create the module with streaming=True")
        return HsaStreamCache(self, batch, capacity)

    @torch.no_grad()
    def step(self, x: Tensor, cache: HsaStreamCache) -> Tensor:
        """One new token per sequence, x: (B, model). Equals the parallel form, to rounding; costs O(b log T)."""
        return cache.step(self, x)


class HsaStreamCache:
    """At height h the complete siblings of the newest token's ancestor: at most b - 1 entries per height, for a stream
    of any length."""

    def __init__(self, module: HsaAttention, batch: int, capacity: int) -> None:
        weight = module.value.weight
        shape = (batch, module.heads, capacity, module.branching)
        self.state = {
            "keys": weight.new_zeros(*shape, module.head_size),
            "values": weight.new_zeros(*shape, module.head_size),
            "kappas": weight.new_zeros(*shape),
            "masses": weight.new_zeros(batch, capacity, module.branching),
            "lengths": torch.zeros(batch, dtype=torch.int64, device=weight.device),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """The whole cache as named tensors, for save_safetensors."""
        return {name: tensor.clone() for name, tensor in self.state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self.state:
            if name not in state or state[name].shape != self.state[name].shape:
                raise ValueError(f'HsaStreamCache: expected "{name}" of shape {tuple(self.state[name].shape)}')
            self.state[name] = state[name].clone()

    def entries(self, branching: int) -> Tensor:
        """How many entries each sequence holds: the sum of the digits of its length in base b."""
        counts, rest = torch.zeros_like(self.state["lengths"]), self.state["lengths"].clone()
        while bool((rest > 0).any()):
            counts += rest % branching
            rest = rest // branching
        return counts

    def step(self, module: HsaAttention, x: Tensor) -> Tensor:
        q, k, v = (t.squeeze(2) for t in module.project(x.unsqueeze(1)))
        bias = k.square().sum(-1) * (-0.5 / math.sqrt(module.head_size)) if module.l2_energy else None
        table = module.position_table()
        s = self.state
        mixed = torch.ops.strata.hsa_stream_step(
            q, k, v, None, bias, table, s["keys"], s["values"], s["kappas"], s["masses"], s["lengths"]
        )
        return module.out(mixed.reshape(x.shape))
