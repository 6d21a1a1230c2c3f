"""What the decoding caches share: lengths that the host knows, so that a step on a GPU waits for nothing; rings of rows; the
rows that a new token adds to a pyramid; reordering and cropping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata._values import Integers, check_lengths, described, integer, integers, lengths_tensor, require
from strata.ops import causal_filter, pyramid_step

if TYPE_CHECKING:
    from strata.hkt import HktAttention

_OF_ALL = ("near", "history", "window", "floors")  # tensors of a state that have no batch, or are kept by the host


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def host_lengths(lengths: Integers | None, x: Tensor) -> list[int]:
    """The real tokens of each prompt of x, (B, T, model), as numbers of the host."""
    if lengths is None:
        return [x.shape[1]] * x.shape[0]
    counts = lengths_tensor(lengths, x.shape[0], x.shape[1]).cpu()
    check_lengths(counts, x.shape[1])
    return [int(count) for count in counts.tolist()]


def check_history(history: int) -> int:
    history = integer("history", history)
    require(history >= 0, f"history: expected 0 or more tokens that crop() may forget, got {history}")
    return history


def chosen_sequences(chosen: list[int], batch: int, device: torch.device) -> Tensor:
    """Numbers of sequences, rising, as a tensor of the device, which the host does not wait for."""
    if len(chosen) == batch:
        return torch.arange(batch, device=device)
    if device.type != "cuda":
        return torch.tensor(chosen, device=device)
    return torch.tensor(chosen, pin_memory=True).to(device, non_blocking=True)


# ------------------------------------------------------------------------------------------------- rings


def latest_rows(newest: Tensor, size: int) -> Tensor:
    """(B, size): the row that each slot of a ring holds if row r has slot r mod size and the newest row is `newest` (B);
    negative where none came yet."""
    newest = newest.unsqueeze(1)
    return newest - (newest - torch.arange(size, device=newest.device)) % size


def ring_of(rows: Tensor, newest: Tensor, size: int) -> Tensor:
    """The ring (B, H, size, d) after the rows 0 .. newest (B) of (B, H, n, d); zeros where none came yet."""
    held = latest_rows(newest, size).view(-1, 1, size, 1)
    index = held.clamp(0, max(0, rows.shape[2] - 1)).expand(-1, rows.shape[1], -1, rows.shape[3])
    return rows.gather(2, index).masked_fill(held < 0, 0.0)


def newest_of(ring: Tensor, newest: Tensor) -> Tensor:
    """Row `newest` (B) of a ring (B, H, size, d): (B, H, 1, d)."""
    slot = (newest % ring.shape[2]).view(-1, 1, 1, 1)
    return ring.gather(2, slot.expand(-1, ring.shape[1], 1, ring.shape[3]))


def filter_newest(ring: Tensor, newest: Tensor, weight: Tensor) -> Tensor:
    """What a filter gives at row `newest` (B) of states in a ring (B, size, model): (B, model). Rows before 0 are zeros."""
    rows = newest.unsqueeze(1) + torch.arange(1 - weight.shape[0], 1, device=newest.device)
    states = ring.gather(1, (rows % ring.shape[1]).unsqueeze(-1).expand(-1, -1, ring.shape[2]))
    return causal_filter(states.masked_fill((rows < 0).unsqueeze(-1), 0.0), weight, 1)[:, -1]


# ------------------------------------------------------------------------------------------------- pyramids


def newest_states(
    module: HktAttention, x: Tensor, states: Sequence[Tensor], lengths: Tensor, history: int
) -> dict[str, Tensor]:
    """The newest states of every level behind prompts x, (B, T, model), T > 0, with the pyramid `states`: rings of `taps` rows,
    and of as many more as crop() may forget."""
    state = {}
    for level, rows in enumerate(states):
        size = module.taps + ceil_div(history, 2**level)
        newest = (lengths - 1).div(2**level, rounding_mode="floor")
        ring = ring_of(rows.unsqueeze(1), newest, size).squeeze(1)
        state[f"level_{level}.states"] = ring.to(module.level_logits.dtype)
    if module.input_filter:
        ring = ring_of(x.unsqueeze(1), lengths - 1, module.taps + history).squeeze(1)
        state["inputs"] = ring.to(module.level_logits.dtype)
    return state


def advance(
    module: HktAttention,
    state: Mapping[str, Tensor],
    counts: Sequence[int],
    x: Tensor,
    take: Callable[[int, Tensor, Tensor, Tensor, Tensor], None],
) -> Tensor:
    """The rows that one new token x, (B, model), adds to the pyramid: take(level, sequences, row, q, k) for every level, with
    the sequences that get a new row there, (n), its number and its q and k, (n, H, 1, d). The rings of states are updated.
    counts: tokens before this one. Returns v, (B, Hk, 1, d)."""
    lengths = state["lengths"]
    sequences = torch.arange(len(counts), device=x.device)
    states = x
    if module.input_filter:
        inputs = state["inputs"]
        inputs[sequences, lengths % inputs.shape[1]] = x.to(inputs.dtype)
        states = filter_newest(inputs, lengths, module.filter_0)
    v = module.split_heads(module.value(states.unsqueeze(1)), module.key_heads)
    for level in range(module.levels):
        row = lengths[sequences] // 2**level
        take(level, sequences, row, *module.project(states.unsqueeze(1), level, row.unsqueeze(1)))
        if level + 1 == module.levels:
            break
        ring = state[f"level_{level}.states"]
        ring[sequences, row % ring.shape[1]] = states.to(ring.dtype)
        # The host knows which sequences begin a row of the next level: nothing waits for the device.
        chosen = [n for n, count in enumerate(counts) if count % 2 ** (level + 1) == 0]
        if not chosen:
            break
        if len(chosen) < len(sequences):
            sequences = chosen_sequences(chosen, len(counts), x.device)
        weight = getattr(module, f"filter_{level + 1}")
        states = filter_newest(ring[sequences], lengths[sequences] // 2**level, weight)
    return v


def has_same_launches(module: HktAttention, x: Tensor) -> bool:
    """Whether `newest_rows` serves this module: on CUDA, with depthwise filters."""
    return x.device.type == "cuda" and not module.dense_filters


def newest_rows(
    module: HktAttention, state: Mapping[str, Tensor], x: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """What `advance` gives, of all sequences and levels, whether a row begins or not, by launches that do not depend on the
    lengths: a captured graph serves every token. q and k of every level and v, (B, H, 1, d); those of levels of which no row
    begins mean nothing."""
    lengths, levels = state["lengths"], module.levels
    newest = x.unsqueeze(1)
    if levels > 1 or module.input_filter:
        filters = [getattr(module, f"filter_{level}") for level in range(0 if module.input_filter else 1, levels)]
        rings = [state[f"level_{level}.states"] for level in range(levels - 1)]
        newest = pyramid_step(x.to(filters[0].dtype), filters, state.get("inputs"), rings, lengths)
    places = None
    if module.rotary > 0:
        level = torch.arange(levels, device=x.device)
        places = (lengths.unsqueeze(1) >> level) << level
    if module.per_level_projections:
        pairs = [
            module.project_at(newest[:, at : at + 1], at, None if places is None else places[:, at : at + 1])
            for at in range(levels)
        ]
    else:
        q, k = module.project_at(newest, 0, places)
        pairs = [(q[:, :, at : at + 1], k[:, :, at : at + 1]) for at in range(levels)]
    v = module.split_heads(module.value(newest[:, :1]), module.key_heads)
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs], v


# ------------------------------------------------------------------------------------------------- caches


class DecodingCache:
    """Named tensors with the batch in front, and on the host the length of every sequence."""

    def __init__(self, state: Mapping[str, Tensor], needed: Sequence[str]) -> None:
        self.state = dict(state)
        for name in (*needed, "lengths", "floors", "history"):
            require(
                name in self.state,
                f'{type(self).__name__}: expected a tensor named "{name}", found none; was this state written by state_dict()?',
            )
        self._read_host()

    def _read_host(self) -> None:
        self._counts = [int(count) for count in self.state["lengths"].tolist()]
        # The shortest lengths that crop() reaches.
        self._floors = [int(floor) for floor in self.state["floors"].tolist()]
        self._history = int(self.state["history"])

    @property
    def lengths(self) -> Tensor:
        """(B) int64: tokens of each sequence."""
        return self.state["lengths"]

    @property
    def history(self) -> int:
        """How many of the newest tokens crop() may forget."""
        return self._history

    @property
    def bytes(self) -> int:
        """The size of the whole cache."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Everything as named tensors, for save_safetensors."""
        state = {name: tensor.clone() for name, tensor in self.state.items()}
        state["floors"] = torch.tensor(self._floors, dtype=torch.int64)
        return state

    def reorder(self, indices: Integers) -> None:
        """Sequence n becomes what sequence indices[n] was, as beam search needs it (reorder_cache of transformers). There may
        be more or fewer indices than sequences, and they may repeat."""
        batch = len(self._counts)
        if isinstance(indices, Tensor) and indices.device.type != "cpu" and len(set(self._counts)) == 1:
            # All lengths are equal: the host need not know the indices, so it does not wait for them.
            require(
                indices.dim() == 1 and indices.dtype in (torch.int32, torch.int64),
                f"indices: expected whole numbers of shape (sequences), got {described(indices)}",
            )
            chosen, floor = indices, max(self._floors)
            self._counts, self._floors = self._counts[:1] * len(indices), [floor] * len(indices)
        else:
            numbers = integers("indices", indices)
            for n in numbers:
                require(0 <= n < batch, f"indices: expected numbers from 0 to {batch - 1}, got {n}")
            chosen = torch.tensor(numbers, dtype=torch.int64)
            self._counts, self._floors = [self._counts[n] for n in numbers], [self._floors[n] for n in numbers]
        for name, tensor in self.state.items():
            if name not in _OF_ALL:
                self.state[name] = tensor.index_select(0, chosen.to(tensor.device))

    def crop(self, max_length: int | Integers) -> None:
        """Forgets all but the first `max_length` tokens of every sequence, exactly: step() then goes on from there. A negative
        number forgets that many tokens, a list has one length per sequence; shorter sequences stay as they are. At most the
        newest `history` tokens can be forgotten, those before a crop included."""
        if hasattr(max_length, "__len__") or (isinstance(max_length, Tensor) and max_length.dim() > 0):
            wanted = integers("max_length", max_length)  # type: ignore[arg-type]
            batch = len(self._counts)
            require(len(wanted) == batch, f"max_length: expected {batch} numbers, one per sequence, got {len(wanted)}")
        else:
            wanted = [integer("max_length", max_length)] * len(self._counts)
        targets = [
            min(count, want) if want >= 0 else max(0, count + want)
            for count, want in zip(self._counts, wanted, strict=True)
        ]
        for n, (target, count, floor) in enumerate(zip(targets, self._counts, self._floors, strict=True)):
            require(
                target >= floor or target == count,
                f"max_length: sequence {n} has {count} tokens and can be cropped to {floor} or more, because the cache was made "
                f"with history={self._history}, got {target}; make it with a longer history",
            )
        self._forget(targets)
        self._counts = targets
        self.lengths.copy_(torch.tensor(targets, dtype=torch.int64))

    def _forget(self, targets: list[int]) -> None:
        """Restores what the tokens behind the targets have overwritten."""

    def _unlimited(self) -> bool:
        """Whether crop() reaches every length."""
        return False

    def _count_one(self) -> None:
        """After a step. One that is being captured into a CUDA graph is not done yet."""
        if not (self.lengths.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.count_replays(1)

    def count_replays(self, steps: int) -> None:
        """To be called after `steps` replays of a captured step, of which the host knows nothing."""
        steps = integer("steps", steps)
        require(steps >= 0, f"steps: expected 0 or more, got {steps}")
        self._counts = [count + steps for count in self._counts]
        if not self._unlimited():
            pairs = zip(self._floors, self._counts, strict=True)
            self._floors = [max(floor, count - self._history) for floor, count in pairs]
