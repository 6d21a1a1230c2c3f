"""Finds and loads the operator library, libstrata_torch.so, and sets the environment variables that torch needs."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def candidates() -> list[Path]:
    """Where the library may be, most explicit first."""
    if os.environ.get("STRATA_LIBRARY"):
        return [Path(os.environ["STRATA_LIBRARY"])]
    here = Path(__file__).resolve().parent
    found = []
    if importlib.util.find_spec("strata._installed") is not None:  # written by `make install`
        found.append((here / importlib.import_module("strata._installed").LIBRARY).resolve())
    found.append(here / "lib" / "libstrata_torch.so")  # in a wheel
    # In a checkout: the result of `make build`.
    found.append(here.parent.parent / "build" / "release" / "lib" / "libstrata_torch.so")
    return found


def find() -> Path:
    """The first of candidates() that exists; an ImportError names them all."""
    paths = candidates()
    for path in paths:
        if path.exists():
            return path
    tried = "\n  ".join(str(path) for path in paths)
    raise ImportError(
        f"strata: libstrata_torch.so was not found. Tried:\n  {tried}\n"
        "Build it with `make build`, install it with `make install`, or set STRATA_LIBRARY to its path."
    )


def settle_host(core: Path) -> None:
    """Sets the environment variables without which torch crashes or is slow on this machine (include/strata/host.h).
    Warns if it may be too late. core: libstrata.so, which does not need torch."""
    missing = ctypes.CDLL(str(core)).strata_missing_host_settings
    missing.restype = ctypes.c_char_p
    for line in missing().decode().splitlines():
        name, value, reason = line.split("\t")
        os.environ[name] = value  # for oneDNN, which reads it at its first product, and for child processes
        if name == "ONEDNN_MAX_CPU_ISA" and "torch" not in sys.modules:
            continue  # not too late
        warnings.warn(
            f"strata: {reason}. {name} may be set too late for this process; set it before Python starts: "
            f"export {name}={value}",
            RuntimeWarning,
            stacklevel=4,
        )


def check_torch(library: Path, torch_version: str) -> None:
    """Refuses a library that was built for another PyTorch: loading it would crash Python."""
    stamp = library.with_name("libstrata_torch.built-for")
    if not stamp.exists():
        return
    built_for = stamp.read_text().strip()
    if built_for.split(".")[:2] != torch_version.split(".")[:2]:
        raise ImportError(
            f"strata: {library} was built for PyTorch {built_for}, and this Python has {torch_version}. Build it again: "
            "`pip install --force-reinstall --no-deps .` in a checkout, or "
            f"`make build CMAKE_FLAGS='-DSTRATA_TORCH=python -DSTRATA_PYTHON={sys.executable}'`."
        )


def load() -> None:
    """Loads the operators into torch. An ImportError says what to run where they do not fit."""
    path = find()
    core = path.with_name("libstrata.so")
    settle_host(core)  # before torch, unless the caller has already imported it
    import torch

    check_torch(path, torch.__version__)
    settle_host(core)  # again: now OpenBLAS is loaded and reports which kernels it uses
    try:
        ops: Any = torch.ops
        ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"strata: {path} does not load into PyTorch {torch.__version__}: {error}\n"
            "It must be built against the PyTorch that this Python imports: "
            "make build CMAKE_FLAGS='-DSTRATA_TORCH=python -DSTRATA_PYTHON=/path/to/this/python3'"
        ) from error
