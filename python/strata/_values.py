"""Numbers from Python data: lists, tuples, numpy arrays and tensors become what the operators take. A wrong value gives a
ValueError that names the argument."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor


class Array(Protocol):
    """A numpy array or a tensor."""

    @property
    def dtype(self) -> Any: ...
    def tolist(self) -> Any: ...


Integers = Sequence[int] | Array  # whole numbers: a list, a tuple, a range, a numpy array or a tensor, of one dimension
Levels: TypeAlias = "Tensor | Sequence[Tensor]"  # one level, or a list of them, the finest first
Pairs = Iterable[Any] | Array  # pairs of whole numbers: an iterable of pairs, or a numpy array or tensor (n, 2)


# Nothing is compiled before PyTorch 2.1, where this function begins.
_is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def levels_list(levels: Levels) -> Sequence[Tensor]:
    """The list of levels: a single tensor is one level."""
    return [levels] if isinstance(levels, Tensor) else levels


def require(condition: bool, message: str) -> None:
    """ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def described(value: object) -> str:
    """A value in a message: arrays by type and shape, others as Python writes them, shortened."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} of {value.dtype}, shape {tuple(value.shape)}"
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def integer(name: str, value: Any) -> int:
    """One whole number: an int, a numpy integer, or a tensor of one."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = value if isinstance(value, int) else operator.index(value)
    except (TypeError, RuntimeError):
        raise ValueError(f"{name}: expected a whole number, got {described(value)}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name}: expected a number of at most 64 bits, got {described(value)}")
    return number


def string(name: str, value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a str, got {described(value)}")
    return value


def strings(name: str, values: Iterable[str]) -> list[str]:
    """A list of str."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ValueError(f"{name}: expected a list of str, got {described(values)}")
    return [string(f"{name}[{n}]", value) for n, value in enumerate(values)]


def _is_array(value: object) -> bool:
    return hasattr(value, "tolist") and hasattr(value, "dtype") and hasattr(value, "shape")


def _holds_integers(array: Any) -> bool:
    if isinstance(array, Tensor):
        return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
    return getattr(array.dtype, "kind", "") in ("i", "u")


def _is_iterable(values: object) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, (str, bytes, dict))


def integers(name: str, values: Integers) -> list[int]:
    """A list of whole numbers."""
    array: Any = values
    if _is_array(array):
        if _holds_integers(array) and len(array.shape) == 1:
            return list(array.tolist())
    elif _is_iterable(array):
        return [integer(f"{name}[{n}]", value) for n, value in enumerate(array)]
    raise ValueError(f"{name}: expected a list, tuple, numpy array or tensor of whole numbers, got {described(values)}")


def integer_tensor(name: str, values: Integers) -> Tensor:
    """(n) int64 on the CPU."""
    return torch.tensor(integers(name, values), dtype=torch.int64)


def pairs(name: str, values: Pairs, ends: tuple[str, str]) -> Tensor:
    """(n, 2) int64 on the CPU. An item is a pair, or an object whose attributes `ends` give the pair."""
    wanted = f"pairs (begin, end) of whole numbers, or objects with {ends[0]} and {ends[1]}"
    array: Any = values
    if _is_array(array):
        shape = tuple(array.shape)
        if len(shape) != 2 or shape[1] != 2 or not (_holds_integers(array) or shape[0] == 0):
            raise ValueError(f"{name}: expected whole numbers of shape (n, 2), got {described(array)}")
        return torch.tensor(array.tolist(), dtype=torch.int64).reshape(-1, 2)
    if not _is_iterable(array):
        raise ValueError(f"{name}: expected a list of {wanted}, got {described(values)}")
    rows = [_pair(f"{name}[{n}]", value, ends, wanted) for n, value in enumerate(array)]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)


def _pair(name: str, value: Any, ends: tuple[str, str], wanted: str) -> tuple[int, int]:
    begin, end = (getattr(value, attribute, None) for attribute in ends)
    if begin is None or end is None:
        try:
            if isinstance(value, (str, bytes, dict)):
                raise TypeError
            begin, end = value
        except (TypeError, ValueError):
            raise ValueError(f"{name}: expected one of {wanted}, got {described(value)}") from None
    return integer(name, begin), integer(name, end)


def lengths_tensor(lengths: Integers, batch: int, tokens: int) -> Tensor:
    """The real tokens of each sequence, (batch). Numbers from Python are checked here. A tensor may be part of a graph
    that is being traced, so its values are left to check_lengths and to the operators."""
    if isinstance(lengths, Tensor):
        if lengths.dim() != 1 or lengths.shape[0] != batch or not _holds_integers(lengths):
            raise ValueError(f"lengths: expected {batch} whole numbers, one per sequence, got {described(lengths)}")
        return lengths
    counts = integers("lengths", lengths)
    wanted = f"lengths: expected {batch} numbers from 0 to {tokens}, one per sequence"
    require(len(counts) == batch, f"{wanted}, got {len(counts)} numbers")
    for n, count in enumerate(counts):
        require(0 <= count <= tokens, f"{wanted}, got {count} for sequence {n}")
    return torch.tensor(counts, dtype=torch.int64)


def may_be_read(tensor: Tensor) -> bool:
    """Whether the values of a tensor may be looked at: on the CPU, while nothing is traced."""
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not _is_compiling()


def check_lengths(lengths: Tensor, tokens: int) -> None:
    """Checks values that no operator sees."""
    if not may_be_read(lengths):
        return
    wrong = [int(length) for length in lengths.tolist() if not 0 <= length <= tokens]
    if wrong:
        raise ValueError(f"lengths: expected numbers from 0 to tokens = {tokens}, got {wrong[0]}")


def padding_mask(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T): whether a token of x, (B, T, ..), is padding behind the `lengths` (B) real ones."""
    return torch.arange(x.shape[1], device=x.device) >= lengths.to(x.device).unsqueeze(1)


def nested_spans(data: Sequence[Any]) -> tuple[int, list[tuple[int, int]]]:
    """How many tokens lists in lists hold, and the tokens [begin, end) of every list. It does not recurse, so that any
    depth is allowed."""
    tokens, spans = 0, []
    open_lists: list[tuple[Sequence[Any], int, int]] = []  # the list, its next item, its first token
    current, item, begin = data, 0, 0
    inside = {id(data)}
    while True:
        if len(current) == 0:
            raise ValueError(f"{_place(open_lists)}: expected at least one item, got an empty list; leave it out")
        if item == len(current):
            spans.append((begin, tokens))
            inside.discard(id(current))
            if not open_lists:
                return tokens, spans
            current, item, begin = open_lists.pop()
        elif isinstance(current[item], (list, tuple)):
            open_lists.append((current, item + 1, begin))
            current, item, begin = current[item], 0, tokens
            if id(current) in inside:
                raise ValueError(f"{_place(open_lists)}: expected lists in lists, got a list that contains itself")
            inside.add(id(current))
        else:
            tokens, item = tokens + 1, item + 1


def _place(open_lists: Sequence[tuple[Sequence[Any], int, int]]) -> str:
    """The place of the innermost list, as data[2][0]; of deep places only the outer and the innermost numbers."""
    path = [f"[{following - 1}]" for _, following, _ in open_lists]
    return "data" + "".join(path if len(path) <= 12 else [*path[:6], "..", *path[-6:]])


def given_once(name: str, value: int | None, other: str, other_value: int | None) -> int:
    """An argument that has two names."""
    require(value is None or other_value is None, f"{name}, {other}: expected one of them, as they mean the same, got both")
    chosen = other_value if value is None else value
    if chosen is None:
        raise TypeError(f"{name}: expected a number, got none")
    return integer(name, chosen)


def sequence_ends(name: str, ends: Integers | None, like: Tensor) -> Tensor | None:
    """cu_seqlens of packed sequences as a tensor on the device of `like`."""
    if ends is None:
        return None
    return (ends if isinstance(ends, Tensor) else integer_tensor(name, ends)).to(like.device)


def window(window_size: tuple[int, int]) -> tuple[int, int]:
    """(left, right) of a sliding window; -1 is without end."""
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(f"window_size: expected a pair (left, right), got {described(window_size)}") from None
    for name, size in (("left", left), ("right", right)):
        require(integer(f"window_size {name}", size) >= -1, f"window_size: expected -1 or more as {name}, got {size}")
    return integer("left", left), integer("right", right)


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The type of computation: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32
