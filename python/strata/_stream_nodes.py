"""The nodes of a streaming cache: at every height a ring of the newest ones, and a log of what the newest tokens have
overwritten there, so that they can be forgotten again.

Token i writes node i / b^h of every height h that it completes, over the node that is n b older. The log of height h holds
the overwritten nodes of the last ceil(history / b^h) writes, in a ring of that size; the rings of the heights follow each
other in one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from strata._decoding import ceil_div, chosen_sequences, latest_rows
from strata._values import integer, require

# (B, H, heights, n b, d), with other channels for the values, (B, H, heights, n b), (B, heights, n b)
KINDS = ("keys", "values", "kappas", "masses")


def heights_of(tokens: int, branching: int) -> int:
    """Heights that a stream of `tokens` tokens reaches."""
    heights = 1
    while branching**heights <= tokens:
        heights += 1
    return heights


def check_capacity(capacity: int) -> int:
    capacity = integer("capacity", capacity)
    require(capacity >= 1, f"capacity: expected 1 or more heights, got {capacity}")
    return capacity


def _log_sizes(heights: int, branching: int, history: int) -> list[int]:
    return [ceil_div(history, branching**height) for height in range(heights)]


def empty_nodes(
    like: Tensor,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int],
    key_size: int,
    value_size: int,
    branching: int,
    history: int,
) -> dict[str, Tensor]:
    """Rings and, with a history, logs of zeros. shape: (batch, key heads, heights, near b)."""
    batch, heads, heights, ring = shape
    state: dict[str, Tensor] = {}
    for prefix, slots in (("", (heights, ring)), ("log.", (sum(_log_sizes(heights, branching, history)),))):
        if prefix and history == 0:
            continue
        state[prefix + "keys"] = like.new_zeros(batch, heads, *slots, key_size, dtype=dtype)
        state[prefix + "values"] = like.new_zeros(batch, heads, *slots, value_size, dtype=dtype)
        state[prefix + "kappas"] = like.new_zeros(batch, heads, *slots, dtype=dtype)
        state[prefix + "masses"] = like.new_zeros(batch, *slots, dtype=dtype)
    return state


def reserve_heights(state: dict[str, Tensor], heights: int, branching: int, history: int) -> None:
    """Room for more heights: a longer stream; what is there stays."""
    held = state["masses"].shape[1]
    if held >= heights:
        return
    more = sum(_log_sizes(heights, branching, history)) - sum(_log_sizes(held, branching, history))
    for kind in KINDS:
        behind = 1 + (kind in ("keys", "values"))  # axes after that of the heights
        state[kind] = F.pad(state[kind], (0, 0) * behind + (0, heights - held))
        if history > 0:
            state["log." + kind] = F.pad(state["log." + kind], (0, 0) * (behind - 1) + (0, more))


def fill_nodes(
    state: dict[str, Tensor],
    k: Tensor,
    v: Tensor,
    kappa: Tensor | None,
    counts: Sequence[int],
    branching: int,
    history: int,
) -> None:
    """Fills zeroed rings and logs with what the first `counts` tokens of k, v (B, H, T, d) and kappa (B, H, T) leave behind,
    of every sequence. What lies beyond the counts must be finite."""
    dtype, ring, lengths = state["keys"].dtype, state["masses"].shape[2], state["lengths"]
    means = {"keys": k.to(dtype), "values": v.to(dtype)}
    if kappa is not None:
        means["kappas"] = kappa.to(dtype)
    offset, longest = 0, max(counts, default=0)
    for height in range(heights_of(longest, branching)):
        if branching**height > longest:
            break
        newest = lengths // branching**height - 1  # complete nodes
        log = ceil_div(history, branching**height)
        for prefix, held in (("", latest_rows(newest, ring)), ("log.", latest_rows(newest, max(1, log)) - ring)):
            if prefix and log == 0:
                continue
            place = slice(offset, offset + log)
            there = state["log.masses"][:, place] if prefix else state["masses"][:, height]
            there.copy_((held >= 0) * float(branching**height))
            for kind, mean in means.items():
                there = state[prefix + kind][:, :, place] if prefix else state[kind][:, :, height]
                there.copy_(_rows(mean, held))
        means = {kind: _means(mean, branching) for kind, mean in means.items()}
        offset += log


def log_overwritten(state: dict[str, Tensor], counts: Sequence[int], branching: int, history: int) -> None:
    """Before a step: keeps the nodes that the next token of every sequence overwrites."""
    if history == 0:
        return
    require(
        not (state["lengths"].is_cuda and torch.cuda.is_current_stream_capturing()),
        "history: expected 0 of a stream whose step is captured into a CUDA graph, because what a step overwrites is logged by "
        f"the host, got {history}",
    )
    ring, offset, height = state["masses"].shape[2], 0, 0
    chosen = list(range(len(counts)))
    while chosen:
        log = ceil_div(history, branching**height)
        sequences = chosen_sequences(chosen, len(counts), state["lengths"].device)
        node = state["lengths"][sequences] // branching**height
        _copy(state, "log.", sequences, (offset + node % log,), "", (torch.full_like(node, height), node % ring))
        offset, height = offset + log, height + 1
        chosen = [n for n in chosen if (counts[n] + 1) % branching**height == 0]


def restore_overwritten(
    state: dict[str, Tensor], counts: Sequence[int], targets: Sequence[int], branching: int, history: int
) -> None:
    """The rings as they were when every sequence had `targets` tokens."""
    ring, device = state["masses"].shape[2], state["lengths"].device
    for n, (count, target) in enumerate(zip(counts, targets, strict=True)):
        offset = 0
        for height, log in enumerate(_log_sizes(heights_of(count, branching), branching, history)):
            first, end = target // branching**height, count // branching**height
            if first == end:
                break
            # Of the nodes that shared a slot the first has overwritten what was there.
            node = torch.arange(first, min(end, first + ring), device=device)
            sequence = torch.full_like(node, n)
            _copy(state, "", sequence, (torch.full_like(node, height), node % ring), "log.", (offset + node % log,))
            offset += log


def _copy(
    state: dict[str, Tensor],
    to: str,
    sequences: Tensor,
    to_slots: tuple[Tensor, ...],
    source: str,
    source_slots: tuple[Tensor, ...],
) -> None:
    """Entries (sequence, slot) of the rings, whose slots are (height, slot), to the logs, or back."""
    every = slice(None)
    for kind in KINDS:
        heads = () if kind == "masses" else (every,)
        taken = state[source + kind][(sequences, *heads, *source_slots)]
        state[to + kind][(sequences, *heads, *to_slots)] = taken


def _rows(mean: Tensor, held: Tensor) -> Tensor:
    """Rows `held` (B, slots) of a mean (B, H, n) or (B, H, n, d); zeros for negative ones."""
    index = held.clamp(0, mean.shape[2] - 1).unsqueeze(1).expand(-1, mean.shape[1], -1)
    missing = (held < 0).unsqueeze(1)
    if mean.dim() == 3:
        return mean.gather(2, index).masked_fill(missing, 0.0)
    return mean.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, mean.shape[3])).masked_fill(missing.unsqueeze(-1), 0.0)


def _means(mean: Tensor, branching: int) -> Tensor:
    """Means of every b rows, without those that are too few: the next height."""
    nodes = mean.shape[2] // branching
    rows = mean[:, :, : nodes * branching]
    return rows.reshape(*mean.shape[:2], nodes, branching, *mean.shape[3:]).mean(3)
