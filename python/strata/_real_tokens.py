"""The real tokens of padded batches of Hugging Face models: where they are, and the batch with them in front. Nothing here
depends on values in Python while a graph is compiled, so that torch.compile(fullgraph=True) takes it whole."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def require(true: Tensor, message: str) -> None:
    """Raises `message` if `true`, one boolean, is False. A compiled graph does so when it runs, as a RuntimeError."""
    if torch.compiler.is_compiling():
        torch._assert_async(true, message)
    elif not bool(true):
        raise ValueError(message)


class Arrangement(NamedTuple):
    """How a batch of T tokens is reordered so that the real ones come first, in their order."""

    lengths: Tensor  # (B): how many tokens are real
    place: Tensor | None = None  # (B, T): where each token goes; None: the real ones come first already
    order: Tensor | None = None  # (B, T): which token comes to each place

    def to_front(self, x: Tensor) -> Tensor:
        """x, (B, H, T, d), with the real tokens first."""
        return x if self.order is None else _taken(x, self.order)

    def back(self, x: Tensor) -> Tensor:
        """The inverse of to_front."""
        return x if self.place is None else _taken(x, self.place)


def _taken(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def all_real(key: Tensor) -> Arrangement:
    """Of keys (B, H, T, d) without padding."""
    return Arrangement(torch.full((key.shape[0],), key.shape[2], device=key.device))


def arrange(real: Tensor) -> Arrangement:
    """real: (B, T), True for real tokens, in any places."""
    lengths = real.sum(1)
    at = torch.arange(real.shape[1], device=real.device)
    if not torch.compiler.is_compiling() and bool((real == (at < lengths[:, None])).all()):
        return Arrangement(lengths)
    before = real.cumsum(1)  # real tokens up to and with this one
    place = torch.where(real, before - 1, lengths[:, None] + at - before)
    order = torch.empty_like(place).scatter(1, place, at.expand_as(place))
    return Arrangement(lengths, place, order)


def seen_keys(mask: Tensor, message: str) -> Tensor:
    """(B, rows, K), True where a row sees a key, of a mask (B, 1, rows, K) that is True or 0 there, and False or a number
    far below 0 elsewhere. Raises `message` if it is anything else."""
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or mask.shape[1] != 1:
        raise ValueError(message)
    if mask.dtype == torch.bool:
        return mask[:, 0]
    seen = mask == 0
    require((seen | (mask < -1e3)).all(), message)  # it hides keys and does not change the other scores
    return seen[:, 0]


def real_keys(mask: Tensor, query: Tensor, key: Tensor, causal: bool, message: str) -> Tensor:
    """(B, K), True for the keys that some row sees. Raises `message` if a real row does not see all of them or, if causal,
    all of them up to its own."""
    batch, rows, tokens = query.shape[0], query.shape[2], key.shape[2]
    seen = seen_keys(mask, message)
    real = seen.any(1)
    if causal or seen.shape[1] != 1:
        if seen.shape[1] != rows or seen.shape[2] != tokens:
            raise ValueError(message)
        at = torch.arange(tokens, device=seen.device)
        want = real[:, None] & (at <= at[tokens - rows :, None]) if causal else real[:, None]
        padding = ~real[:, tokens - rows :, None]  # what such rows see does not matter
        require(((seen == want) | padding).all(), message)
    return real.expand(batch, tokens)
