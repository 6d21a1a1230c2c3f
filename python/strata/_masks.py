"""Masks and padding, as the modules take them."""

from __future__ import annotations

import torch
from torch import Tensor

from strata._values import Integers, described, may_be_read, padding_mask, require


def without_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x, (B, T, C), with zeros behind the real tokens."""
    return x if lengths is None else x.masked_fill(padding_mask(lengths, x).unsqueeze(-1), 0.0)


def lengths_of_mask(mask: Tensor, x: Tensor) -> Tensor:
    """(B) real tokens of x, (B, T, C), from a mask (B, T) that is True at padding. Values on the CPU are checked."""
    require(
        mask.dtype == torch.bool and mask.shape == x.shape[:2],
        f"key_padding_mask: expected booleans of shape {tuple(x.shape[:2])}, True at padding, got {described(mask)}",
    )
    lengths = (~mask).sum(1)
    if may_be_read(mask):
        require(
            bool((padding_mask(lengths, x) == mask).all()),
            "key_padding_mask: expected padding on the right alone, because a pyramid starts at the first token; move the "
            "tokens to the left, or hide single keys by attn_mask",
        )
    return lengths


def lengths_or_mask(lengths: Integers | None, mask: Tensor | None, x: Tensor) -> Integers | None:
    """Real tokens, by their number or by a mask of the padding."""
    require(lengths is None or mask is None, "lengths: expected none with key_padding_mask, which says the same")
    return lengths if mask is None else lengths_of_mask(mask, x)


def as_bias(attn_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of nn.MultiheadAttention as a bias of the scores: True hides a key, numbers are added."""
    if attn_mask.dtype == torch.bool:
        return torch.zeros_like(attn_mask, dtype=dtype).masked_fill(attn_mask, -float("inf"))
    return attn_mask.to(dtype)


def places_in_sequences(rows: int, begins: Tensor) -> Tensor:
    """(rows): the place of each row in its packed sequence; begins: (N), the first rows of the sequences."""
    row = torch.arange(rows, device=begins.device)
    if begins.shape[0] == 0:
        return row
    return row - begins[torch.searchsorted(begins, row, right=True) - 1]
