"""The argument level_weights of HktAttention and StrataAttention."""

from __future__ import annotations

import math
from collections.abc import Sequence

from strata._values import described, require

NEVER = -1e4  # the logit of a level without weight: exp(NEVER) is 0 in every type


def level_logits(level_weights: str | Sequence[float], levels: int) -> tuple[list[float], bool]:
    """The logits with which a head begins, and whether they are learned; if not, their softmax is what level_weights says."""
    if isinstance(level_weights, str) and level_weights == "learned":
        return [0.0] * levels, True
    weights = _named(level_weights, levels) if isinstance(level_weights, str) else _given(level_weights, levels)
    return [math.log(weight) if weight > 0 else NEVER for weight in weights], False


def _named(name: str, levels: int) -> list[float]:
    if name == "uniform":
        return [1.0 / levels] * levels
    only = [f"level-{level}" for level in range(levels)]
    require(
        name in only,
        f'level_weights: expected learned, uniform or level-0 to level-{levels - 1}, because levels is {levels}, got "{name}"',
    )
    return [float(level == name) for level in only]


def _given(values: Sequence[float], levels: int) -> list[float]:
    wanted = f"level_weights: expected a name, or {levels} weights, one per level, none below 0, with the sum 1"
    try:
        weights = [float(value) for value in values]
    except (TypeError, ValueError):
        raise ValueError(f"{wanted}, got {described(values)}") from None
    fits = len(weights) == levels and all(weight >= 0 for weight in weights) and abs(sum(weights) - 1) < 1e-6
    require(fits, f"{wanted}, got {weights}")
    return weights
