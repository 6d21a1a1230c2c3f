"""What Strata finds on this machine, and what is missing: `python -m strata.info` prints it, `--json` for scripts."""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

import strata
from strata import _library

SETTINGS = ("ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "STRATA_ISA", "STRATA_CUDA_KERNELS", "STRATA_LIBRARY")
PACKAGES = {
    "transformers": "strata.huggingface and strata.inject",
    "safetensors": "faster reading of large files; Strata has a reader of its own",
    "numpy": "trees and lengths from numpy arrays",
}


def _library_lines(library: Path) -> list[list[str]]:
    describe = ctypes.CDLL(str(library)).strata_info
    describe.restype = ctypes.c_char_p
    return [line.split("\t") for line in describe().decode().splitlines()]


def _blas(openblas: str) -> str:
    """The library that multiplies matrices for torch."""
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    name = {"mkl": "MKL", "open": "OpenBLAS"}.get(found[1], found[1]) if found else "unknown"
    return f"OpenBLAS with kernels for {openblas}" if openblas else name


def _package_version(name: str) -> str | None:
    from importlib import metadata

    if importlib.util.find_spec(name) is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _command() -> str | None:
    """Where the command of this installation is: that of the wheel or of the build."""
    library = _library.find()
    for folder in (library.parent.parent / "bin", library.parent.parent.parent / "bin"):
        if (folder / "strata").exists():
            return str((folder / "strata").resolve())
    return None


def _missing(found: dict[str, Any]) -> list[str]:
    lines = []
    if found["torch_sees_cuda"] and not found["cuda_kernels"]:
        lines.append(
            "CUDA kernels: torch sees a GPU, and this build has none for it. Install a CUDA toolkit whose nvcc is of "
            f"CUDA {(torch.version.cuda or '').split('.')[0]}, and run `pip install --force-reinstall --no-deps .`"
        )
    if found["command"] is None:
        lines.append(
            "the command strata: install the Debian packages that `strata` names, and run "
            "`pip install --force-reinstall --no-deps .` in a checkout"
        )
    for name, version in found["packages"].items():
        if version is None:
            lines.append(f"{name}: `pip install {name}`, for {PACKAGES[name]}")
    return lines


def info() -> dict[str, Any]:
    """Versions, instruction sets, devices, kernels, BLAS, and what is missing, as plain data."""
    library = _library.find()
    lines = _library_lines(library)
    values = {name: rest[0] for name, *rest in lines}
    stamp = library.with_name("libstrata_torch.built-for")
    found: dict[str, Any] = {
        "strata": strata.__version__,
        "library": str(library),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "built_for_torch": stamp.read_text().strip() if stamp.exists() else None,
        "cpu": values["cpu"],
        "instruction_sets": [rest[0] for name, *rest in lines if name == "instruction set"],
        "instruction_set": values["instruction set in use"],
        "amx": values["amx"],
        "blas": _blas(values["openblas"]),
        "threads": torch.get_num_threads(),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "cuda_kernels": values["cuda kernels"] == "yes",
        "torch_cuda": torch.version.cuda,
        "torch_sees_cuda": torch.cuda.is_available(),
        "devices": ["cpu"],
        "kernels": [
            dict(zip(("problem", "forward", "backward"), rest, strict=True)) for name, *rest in lines if name == "kernels"
        ],
        "command": _command(),
        "packages": {name: _package_version(name) for name in PACKAGES},
    }
    if found["torch_sees_cuda"]:
        found["devices"] += [f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in range(torch.cuda.device_count())]
    found["missing"] = _missing(found)
    return found


def _print(found: dict[str, Any]) -> None:
    def line(name: str, value: object) -> None:
        print(f"{name:17} {value}")

    line("strata", f"{found['strata']}, {found['library']}")
    line("python", found["python"])
    line("torch", f"{found['torch']}, the library was built for {found['built_for_torch'] or 'an unknown one'}")
    line("cpu", found["cpu"])
    line("instruction sets", f"{', '.join(found['instruction_sets'])}; in use {found['instruction_set']}")
    line("AMX", found["amx"])
    line("BLAS", found["blas"])
    line("threads", found["threads"])
    for name, value in found["settings"].items():
        line("setting", f"{name}={value}")
    line("devices", ", ".join(found["devices"]))
    line("CUDA kernels", "built" if found["cuda_kernels"] else "not built")
    line("CPU kernels", f"{found['instruction_set']} for all operators; float32, float64, bfloat16")
    for kernel in found["kernels"]:
        line("bfloat16 kernels", f"{kernel['problem']}: {kernel['forward']} forward, {kernel['backward']} backward")
    line("command", found["command"] or "not installed")
    for name, version in found["packages"].items():
        line(name, version or "not installed")
    for what in found["missing"]:
        line("missing", what)


def main() -> None:
    """`python -m strata.info`."""
    parser = argparse.ArgumentParser(prog="python -m strata.info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = info()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        _print(found)


if __name__ == "__main__":
    main()
