"""Starts the command `strata` that a wheel carries. It stands outside the package strata, whose import loads torch."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

PACKAGE = Path(__file__).resolve().parent.parent / "strata"
AGAIN = "pip install --force-reinstall --no-deps ."


def torch_folder() -> Path | None:
    """The folder of the PyTorch that this Python has, without importing it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def problem(package: Path, torch: Path | None) -> str | None:
    """Why the command cannot start; None if it can."""
    if not (package / "bin" / "strata").exists():
        missing = package / "bin" / "strata.missing"
        packages = missing.read_text().strip() if missing.exists() else ""
        install = f"install what these Debian packages have: {packages}; then " if packages else ""
        return f"this installation has only the Python package, not the command; {install}run `{AGAIN}` in a checkout"
    if torch is None:
        return "PyTorch was not found in this Python; install torch"
    version = re.search(r"^__version__ *= *['\"]([^'\"]+)", (torch / "version.py").read_text(), re.MULTILINE)
    built_for = (package / "lib" / "libstrata_torch.built-for").read_text().strip()
    if version is None or version[1].split(".")[:2] != built_for.split(".")[:2]:
        has = version[1] if version else "an unknown version"
        return f"it was built for PyTorch {built_for}, and this Python has {has}; run `{AGAIN}` in a checkout"
    return None


def main() -> NoReturn:
    torch = torch_folder()
    reason = problem(PACKAGE, torch)
    if reason is not None:
        sys.exit(f"strata: {reason}")
    # Before the system's folders, which may hold another PyTorch: libstrata_torch.so names no folder of its own.
    folders = [str(torch / "lib") if torch else "", os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(folder for folder in folders if folder)
    command = str(PACKAGE / "bin" / "strata")
    os.execv(command, [command, *sys.argv[1:]])
