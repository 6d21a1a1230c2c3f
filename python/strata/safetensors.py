"""Tensors on disk in the safetensors format: by the `safetensors` package if installed, else by the code below."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import torch

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file

    HAS_PACKAGE = True
except ImportError:  # not in Debian 12
    HAS_PACKAGE = False

FilePath = str | os.PathLike[str]
Tensors = dict[str, torch.Tensor]

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_DIGEST = "strata.sha256"  # of the whole file, with zeros in the place of the digest itself
_NO_DIGEST = "0" * 64


def save_safetensors(path: FilePath, tensors: Mapping[str, torch.Tensor], metadata: Mapping[Any, Any] | None = None) -> None:
    """Writes named tensors, to a temporary file first, so that an interrupted write leaves the old file unchanged.

    tensors   of any shape and device; a type that the format does not have gives a ValueError
    metadata  notes; keys and values are written as str
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f'tensor "{name}": expected one of {", ".join(_TYPES)}, got {tensor.dtype}')
    notes = {str(key): str(value) for key, value in (metadata or {}).items()} | {_DIGEST: _NO_DIGEST}
    temporary = f"{os.fspath(path)}.writing"
    try:
        (_write_by_package if HAS_PACKAGE else _write)(temporary, tensors, notes)
        place, digest = _digest(temporary)
        if place:
            with open(temporary, "r+b") as file:
                file.seek(place)
                file.write(digest.encode())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def load_safetensors(path: FilePath, check_digest: bool = True) -> tuple[Tensors, dict[str, str]]:
    """Returns (tensors, metadata), the tensors on the CPU. A file of another format gives a ValueError, and so does one
    that differs from the digest it carries, unless `check_digest` is false."""
    tensors, metadata = (_read_by_package if HAS_PACKAGE else _read)(path)
    stored = metadata.pop(_DIGEST, _NO_DIGEST)
    if check_digest and stored != _NO_DIGEST and stored != (found := _digest(path)[1]):
        raise ValueError(
            f"{path}: expected SHA-256 {stored}, which the file carries, got {found}; the file is damaged or was "
            "changed. Restore it, or skip this check with check_digest=False"
        )
    return tensors, metadata


def _digest(path: FilePath) -> tuple[int, str]:
    """Where the digest of a file stands (0: it has none), and what it should be."""
    with open(path, "rb") as file:
        prefix = file.read(8)
        header = file.read(min(int.from_bytes(prefix, "little"), 100_000_000))
        found = re.search(rb'"strata\.sha256"\s*:\s*"([0-9a-f]{64})"', header)
        if found is None:
            return 0, "none"
        digest = hashlib.sha256(prefix + header[: found.start(1)] + _NO_DIGEST.encode() + header[found.end(1) :])
        while block := file.read(1 << 20):
            digest.update(block)
    return 8 + found.start(1), digest.hexdigest()


def _read_by_package(path: FilePath) -> tuple[Tensors, dict[str, str]]:
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from error


def _write_by_package(path: str, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    # Clones, because the package rejects tensors that share memory.
    dense = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(dense, path, metadata)
    except SafetensorError as error:
        raise OSError(f"{path}: could not write: {error}") from error


def _write(path: str, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    data: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""  # as bytes: numpy has no bfloat16
        shape, end = list(tensor.shape), offset + len(raw)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.writelines(data)


def _read(path: FilePath) -> tuple[Tensors, dict[str, str]]:
    with open(path, "rb") as file:
        raw = file.read()
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise ValueError(f"{path}: not a safetensors file: it claims a header of {length} bytes and has {len(raw)}")
    try:
        header = json.loads(raw[8 : 8 + length])
    except ValueError as error:
        raise ValueError(f"{path}: not a safetensors file: its header is not JSON ({error})") from error
    data = memoryview(raw)[8 + length :]
    try:
        metadata = dict(header.pop("__metadata__", {}))
        return {name: _tensor(path, name, entry, data) for name, entry in header.items()}, metadata
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a safetensors file: its header is malformed ({error!r})") from error


def _tensor(path: FilePath, name: str, entry: dict[str, Any], data: memoryview) -> torch.Tensor:
    dtype = _TYPES.get(entry["dtype"])
    begin, end = entry["data_offsets"]
    if dtype is None or not 0 <= begin <= end <= len(data):
        raise ValueError(
            f'{path}: tensor "{name}" has dtype {entry["dtype"]} and bytes {begin} to {end} of {len(data)}'
        )
    count = math.prod(entry["shape"])
    if count * torch.empty((), dtype=dtype).element_size() != end - begin:
        raise ValueError(f'{path}: tensor "{name}" of shape {entry["shape"]} does not fit its {end - begin} bytes')
    if count == 0:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(entry["shape"])
