"""Safetensors files in Python: both ways of reading and writing them, by the package and without it."""

import importlib
import json
import sys

import pytest
import torch

from strata import safetensors as module

# What strata uses of the `safetensors` package, for machines without it. Files are JSON lines, so that the test sees
# which code wrote them.
FAKE_PACKAGE = """
import json
from .torch import TYPES

class SafetensorError(Exception):
    pass

class safe_open:
    def __init__(self, path, framework):
        assert framework == "pt"
        with open(path, "rb") as file:
            lines = file.read().decode(errors="replace").splitlines()
        if not lines or lines[0] != "fake":
            raise SafetensorError("Error while deserializing header")
        self._metadata, self._tensors = json.loads(lines[1]), json.loads(lines[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def keys(self):
        return self._tensors.keys()

    def metadata(self):
        return self._metadata

    def get_tensor(self, name):
        dtype, shape, values = self._tensors[name]
        return TYPES[dtype](values).reshape(shape)
"""
FAKE_TORCH = """
import functools, json, torch

TYPES = {str(t): functools.partial(torch.tensor, dtype=t) for t in (torch.float32, torch.bfloat16, torch.int64)}

def save_file(tensors, path, metadata):
    assert len({t.data_ptr() for t in tensors.values() if t.numel()}) == sum(t.numel() > 0 for t in tensors.values())
    described = {name: (str(t.dtype), list(t.shape), t.flatten().tolist()) for name, t in tensors.items()}
    with open(path, "w") as out:
        out.write("\\n".join(["fake", json.dumps(metadata), json.dumps(described)]))
"""


def take_package():
    """Removes the package from the loaded modules, and returns it."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "safetensors"}


@pytest.fixture(params=["without the package", "with a fake package", "with the package"])
def safetensors(request, monkeypatch, tmp_path):
    """strata.safetensors, loaded anew on a machine with or without the package."""
    kept = take_package()
    if request.param == "with the package":
        pytest.importorskip("safetensors", reason="the safetensors package is not installed")
    elif request.param == "without the package":
        sys.modules["safetensors"] = None
    else:
        folder = tmp_path / "packages" / "safetensors"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(FAKE_PACKAGE)
        (folder / "torch.py").write_text(FAKE_TORCH)
        monkeypatch.syspath_prepend(str(folder.parent))
    loaded = importlib.reload(module)
    assert loaded.HAS_PACKAGE == (request.param != "without the package")
    yield loaded
    monkeypatch.undo()
    take_package()
    sys.modules.update(kept)
    importlib.reload(module)


def example():
    whole = torch.arange(6).reshape(2, 3)
    return {
        "a": whole,
        "transposed, the same memory": whole.t(),
        "bf16": torch.tensor([1.5, -2.0]).bfloat16(),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.0, requires_grad=True),
    }


def test_round_trip(safetensors, tmp_path):
    path = tmp_path / "x.safetensors"
    for metadata in ({"note": "hi", "number": 3}, None):
        safetensors.save_safetensors(path, example(), metadata)
        tensors, found = safetensors.load_safetensors(path)
        assert found == ({"note": "hi", "number": "3"} if metadata else {})
        assert set(tensors) == set(example())
        for name, tensor in example().items():
            assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor.detach()), name
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["x.safetensors"]


def test_a_failed_write_leaves_the_old_file(safetensors, tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.save_safetensors(path, {"a": torch.zeros(2)})
    before = path.read_bytes()
    with pytest.raises(ValueError, match='tensor "c": expected one of F64, .* got torch.complex64'):
        safetensors.save_safetensors(path, {"a": torch.ones(2), "c": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(OSError):
        safetensors.save_safetensors(tmp_path / "nowhere" / "x.safetensors", {"a": torch.ones(2)})
    assert path.read_bytes() == before and not (tmp_path / "x.safetensors.writing").exists()


@pytest.mark.parametrize("safetensors", ["without the package", "with the package"], indirect=True)
def test_the_digest(safetensors, tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.save_safetensors(path, example(), {"note": "hi"})
    whole = path.read_bytes()
    for at in (whole.index(b'"shape"') - 20, whole.index(b"hi"), len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="x.safetensors: "):
            safetensors.load_safetensors(path)
    with pytest.raises(ValueError, match="expected SHA-256 [0-9a-f]{64}, which the file carries, got [0-9a-f]{64}"):
        safetensors.load_safetensors(path)
    assert safetensors.load_safetensors(path, check_digest=False)[1] == {"note": "hi"}
    path.write_bytes(whole.replace(b"strata.sha256", b"other.sha256x"))  # as from elsewhere: a digest is not needed
    assert set(safetensors.load_safetensors(path)[0]) == set(example())


def test_damaged_files(safetensors, tmp_path):
    path = tmp_path / "x.safetensors"
    for raw in (b"", b"\xff" * 16, (5).to_bytes(8, "little") + b"[1, 2", (2).to_bytes(8, "little") + b"[]"):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match="x.safetensors: not a safetensors file"):
            safetensors.load_safetensors(path)
    with pytest.raises(FileNotFoundError):
        safetensors.load_safetensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize("safetensors", ["without the package"], indirect=True)
def test_what_the_fallback_reports(safetensors, tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.save_safetensors(path, {"a": torch.arange(6).reshape(2, 3)})
    raw = path.read_bytes()
    assert int.from_bytes(raw[:8], "little") % 8 == 0  # the data is aligned

    def report(changed):
        path.write_bytes(changed)
        with pytest.raises(ValueError) as error:
            safetensors.load_safetensors(path)
        return str(error.value)

    def with_entry(**changes):
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        header["a"].update(changes)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + bytes(48)

    assert "bytes 0 to 48 of 40" in report(raw[:-8])
    assert "claims a header" in report(b"\xff" * 16)
    assert "dtype F1 " in report(with_entry(dtype="F1"))
    assert "does not fit its 48 bytes" in report(with_entry(shape=[7]))
    assert "malformed" in report(with_entry(shape=None))
