"""The streaming cache as a `Cache` of Hugging Face's transformers: generate() then takes O(near b log T) per token in the layers
that strata.inject() changed. Make it by `Injection.cache()`.

A layer of transformers calls cache.update(k, v, layer) and passes what that returns to its attention function, which never
sees the cache. So update() returns the new k and v alone and leaves itself as `waiting[layer]` at the injection, which the
attention function of that layer knows; it takes the cache from there, attends, and adds the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from strata._decoding import DecodingCache
from strata._real_tokens import Arrangement, seen_keys
from strata._stream_nodes import (
    KINDS,
    empty_nodes,
    fill_nodes,
    heights_of,
    log_overwritten,
    reserve_heights,
    restore_overwritten,
)
from strata._values import compute_type
from strata.hsa_ops import hsa_stream_attention
from strata.ops import hsa_stream_step

if TYPE_CHECKING:
    from strata.inject import Injection


class _Nodes(DecodingCache):
    """The nodes of one layer, with a batch whose sequences may have different lengths."""

    def __init__(self, k: Tensor, v: Tensor, counts: list[int], branching: int, near: int, history: int) -> None:
        """What the first `counts` tokens of k and v, (B, Hk, T, d), leave behind."""
        self._branching, self._near = branching, near
        shape = (k.shape[0], k.shape[1], heights_of(max(counts), branching), near * branching)
        state = empty_nodes(k, compute_type(k.dtype), shape, k.shape[3], v.shape[3], branching, history)
        state["lengths"] = torch.tensor(counts, dtype=torch.int64).to(k.device)
        state["floors"] = torch.tensor([max(0, count - history) for count in counts], dtype=torch.int64)
        state["history"] = torch.tensor([history])
        fill_nodes(state, k, v, None, counts, branching, history)
        super().__init__(state, KINDS)

    def _forget(self, targets: list[int]) -> None:
        restore_overwritten(self.state, self._counts, targets, self._branching, self._history)

    def step(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """One new token per sequence: q (B, H, d), k and v (B, Hk, d) to (B, H, d)."""
        s, dtype = self.state, self.state["keys"].dtype
        reserve_heights(s, heights_of(max(self._counts) + 1, self._branching), self._branching, self._history)
        log_overwritten(s, self._counts, self._branching, self._history)
        new = (t.to(dtype).contiguous() for t in (q, k, v))
        out = hsa_stream_step(*new, *(s[name] for name in (*KINDS, "lengths")), near=self._near, scale=scale)
        self._count_one()
        return out.to(q.dtype)


class StreamLayer(CacheLayerMixin):  # type: ignore[misc,no-untyped-call,unused-ignore]
    """One layer of a StreamCache."""

    is_sliding = True  # its mask covers the new tokens only, and never serves the layers that keep all keys
    supports_early_init = False

    def __init__(self, injection: Injection, layer: int, history: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        self._injection, self._layer, self._history = injection, layer, history
        self._seen = 0  # tokens, padding included
        self.nodes: _Nodes | None = None

    # What transformers calls.

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self._injection._expect(self._layer, self)
        self.lazy_initialization(key_states, value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        # The first releases of transformers 5 pass the places of the new tokens instead of their number.
        rows = int(query_length.shape[0]) if isinstance(query_length, Tensor) else query_length
        return rows, self._seen

    def get_seq_length(self) -> int:
        return self._seen

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """get_max_length, by its name in the first releases of transformers 5."""
        return self.get_max_length()

    @property
    def is_croppable(self) -> bool:  # type: ignore[override,unused-ignore]
        return self._history > 0

    def crop(self, tokens_to_remove: int) -> None:
        """A negative number removes that many tokens, a positive one is the length to keep."""
        remove = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self._seen - tokens_to_remove)
        if remove == 0 or self.nodes is None:
            return
        self.nodes.crop(-remove)
        self._seen -= remove

    def reset(self) -> None:
        self._seen, self.nodes, self.is_initialized = 0, None, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.nodes is not None:
            self.nodes.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one behind the other."""
        if self.nodes is not None:
            self.nodes.reorder([n for n in range(len(self.nodes.lengths)) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these sequences."""
        if self.nodes is not None:
            self.nodes.reorder(indices)

    def offload(self) -> None:
        """Nothing: it is small."""

    def prefetch(self) -> None:
        """Nothing."""

    # What the attention function calls.

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, message: str
    ) -> Tensor:
        """The new tokens attend to the cache and to each other, and are added: query (B, H, Q, d), key and value
        (B, Hk, Q, d) to (B, H, Q, d). Padding is allowed in the first call only."""
        rows = query.shape[2]
        if mask is not None and mask.shape[-1] > rows:  # of layers that keep all keys
            mask = mask[..., -rows:]
        if self.nodes is None:
            out = self._prefill(query, key, value, self._injection._arranged_prompt(mask, query, key), scaling)
        else:
            if mask is not None:
                causal = torch.ones(rows, rows, dtype=torch.bool, device=query.device).tril()
                if not bool((seen_keys(mask, message) == causal).all()):
                    raise ValueError(message)
            steps = [self.nodes.step(query[:, :, t], key[:, :, t], value[:, :, t], scaling) for t in range(rows)]
            out = torch.stack(steps, 2)
        self._seen += rows
        return out

    def _prefill(
        self, query: Tensor, key: Tensor, value: Tensor, arranged: Arrangement, scaling: float | None
    ) -> Tensor:
        q, k, v = (arranged.to_front(x) for x in (query, key, value))
        branching, near = self._injection.branching, self._injection.near
        counts = [int(count) for count in arranged.lengths.tolist()]
        self.nodes = _Nodes(k.detach(), v.detach(), counts, branching, near, self._history)
        out = hsa_stream_attention(q, k, v, branching, near=near, scale=scaling)[0]
        return arranged.back(out)


def _all_keys() -> Any:
    layer: Any = DynamicLayer
    return layer()


class StreamCache(Cache):  # type: ignore[misc,unused-ignore]
    """past_key_values of an injected model: nodes in the injected layers, all keys and values in the others. For one batch of
    texts; reset() empties it for another."""

    def __init__(self, injection: Injection, layers: int, history: int) -> None:
        chosen = set(injection.layers)
        super().__init__(
            layers=[StreamLayer(injection, n, history) if n in chosen else _all_keys() for n in range(layers)]
        )

    def reset(self) -> None:
        """Empties all layers. In the first releases of transformers 5 a layer with all keys would keep its length."""
        for n, layer in enumerate(self.layers):
            if isinstance(layer, StreamLayer):
                layer.reset()
            else:
                self.layers[n] = _all_keys()

    @property
    def bytes(self) -> int:
        """The size of all tensors."""
        tensors: list[Tensor] = []
        layer: Any
        for layer in self.layers:
            if isinstance(layer, StreamLayer):
                tensors += [] if layer.nodes is None else list(layer.nodes.state.values())
            elif layer.is_initialized:
                tensors += [layer.keys, layer.values]
        return sum(int(tensor.numel()) * tensor.element_size() for tensor in tensors)
