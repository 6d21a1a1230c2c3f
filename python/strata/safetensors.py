"""Tensors on disk in the safetensors format, with no package beyond torch."""

import json
import os

import torch

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


def _bytes_of(tensor):
    # numpy has no bfloat16; bytes are bytes
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def save_safetensors(path, tensors, metadata=None):
    """Writes a dict of tensors; to a temporary file first, so that an interrupted write leaves the old file whole."""
    header, data, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = {str(key): str(value) for key, value in metadata.items()}
    for name, tensor in tensors.items():
        raw = _bytes_of(tensor)
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        offset += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.writing"
    try:
        with open(temporary, "wb") as out:
            out.write(len(text).to_bytes(8, "little"))
            out.write(text)
            for raw in data:
                out.write(raw)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def _load_entry(path, name, entry, data):
    dtype = _TYPES.get(entry.get("dtype"))
    begin, end = entry["data_offsets"]
    if dtype is None or not 0 <= begin <= end <= len(data):
        raise ValueError(f'{path}: tensor "{name}" has dtype {entry.get("dtype")} and bytes {begin} to {end} of {len(data)}')
    count = 1
    for size in entry["shape"]:
        count *= size
    if count * torch.empty((), dtype=dtype).element_size() != end - begin:
        raise ValueError(f'{path}: tensor "{name}" of shape {entry["shape"]} does not fit its {end - begin} bytes')
    if count == 0:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(entry["shape"])


def load_safetensors(path):
    """Returns (tensors, metadata)."""
    with open(path, "rb") as file:
        raw = file.read()
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise ValueError(f"{path}: not a safetensors file: it claims a header of {length} bytes and has {len(raw)}")
    try:
        header = json.loads(raw[8 : 8 + length])
    except ValueError as error:
        raise ValueError(f"{path}: not a safetensors file: its header is not JSON ({error})") from error
    metadata = header.pop("__metadata__", {})
    data = memoryview(raw)[8 + length :]
    try:
        return {name: _load_entry(path, name, entry, data) for name, entry in header.items()}, metadata
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a safetensors file: its header is malformed ({error!r})") from error
