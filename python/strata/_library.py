"""Finds and loads the operator library, libstrata_torch.so."""

import os
from pathlib import Path

import torch


def candidates():
    """Where the library may be, most explicit first."""
    if os.environ.get("STRATA_LIBRARY"):
        return [Path(os.environ["STRATA_LIBRARY"])]
    here = Path(__file__).resolve().parent
    found = []
    try:
        from strata._installed import LIBRARY  # written by `make install`

        found.append((here / LIBRARY).resolve())
    except ImportError:
        pass
    # In a checkout: what `make build` leaves.
    found.append(here.parent.parent / "build" / "release" / "lib" / "libstrata_torch.so")
    return found


def load():
    paths = candidates()
    for path in paths:
        if path.exists():
            try:
                torch.ops.load_library(str(path))
            except OSError as error:
                raise ImportError(
                    f"strata: {path} does not load into PyTorch {torch.__version__}: {error}\n"
                    "It must be built against the PyTorch that this Python imports: "
                    "make build CMAKE_FLAGS='-DSTRATA_TORCH=python -DSTRATA_PYTHON=/path/to/this/python3'"
                ) from error
            return
    tried = "\n  ".join(str(path) for path in paths)
    raise ImportError(
        f"strata: libstrata_torch.so was not found. Tried:\n  {tried}\n"
        "Build it with `make build`, install it with `make install`, or set STRATA_LIBRARY to its path."
    )
