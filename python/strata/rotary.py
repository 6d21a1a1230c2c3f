"""Rotary positions: channels are rotated in pairs by an angle that grows with the position, so that a score depends on the
difference of two positions only (docs/MATH.md, section 3.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strata._values import require


def check_rotary(size: int, base: float, head_size: int) -> None:
    """ValueError unless `size` channels of a head can be rotated."""
    require(
        0 <= size <= head_size and size % 2 == 0,
        f"rotary: expected an even number of channels, at most the head size {head_size}, got {size}",
    )
    require(math.isfinite(base) and base > 1, f"rotary_base: expected a number above 1, got {base}")


def rotate(x: Tensor, positions: Tensor, size: int, base: float = 10000.0, interleaved: bool = False) -> Tensor:
    """x: (B, H, n, d); positions: (n) or (B, n) whole numbers. Of the first `size` channels, c and c + size / 2 are rotated by
    position * base^(-2 c / size), the layout of GPT-NeoX and Llama; interleaved, 2 c and 2 c + 1, that of GPT-J. The others
    stay. (B, H, n, d)."""
    check_rotary(size, base, x.shape[3])
    if size == 0:
        return x
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    # The angles in float64: positions may be large.
    slow = torch.exp(torch.arange(size // 2, dtype=torch.float64, device=x.device) * (-2 * math.log(base) / size))
    angles = positions.to(x.device, torch.float64).unsqueeze(-1) * slow
    if angles.dim() == 3:
        angles = angles.unsqueeze(1)
    cos, sin = angles.cos().to(compute), angles.sin().to(compute)
    pairs = (x[..., :size:2], x[..., 1:size:2]) if interleaved else (x[..., : size // 2], x[..., size // 2 : size])
    first, second = (part.to(compute) for part in pairs)
    turned = [(first * cos - second * sin).to(x.dtype), (second * cos + first * sin).to(x.dtype)]
    if interleaved:
        turned = [torch.stack(turned, -1).flatten(-2)]
    return torch.cat([*turned, x[..., size:]], -1)
