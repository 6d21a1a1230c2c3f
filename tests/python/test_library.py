"""A library that was built for another PyTorch is refused before it is loaded, since loading it would crash Python."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from strata import _library


def import_strata(folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "STRATA_LIBRARY": str(folder / "libstrata_torch.so")}
    return subprocess.run([sys.executable, "-c", "import strata"], env=environment, capture_output=True, text=True)


def test_another_pytorch_is_refused(tmp_path):
    built = _library.find().parent
    assert (built / "libstrata_torch.built-for").read_text().split(".")[:2] == torch.__version__.split(".")[:2]
    for path in built.glob("libstrata*.so*"):
        (tmp_path / path.name).symlink_to(path)
    stamp = tmp_path / "libstrata_torch.built-for"
    stamp.write_text(torch.__version__.split("+")[0] + "+other\n")  # the rest of the version does not matter
    done = import_strata(tmp_path)
    assert done.returncode == 0, done.stderr
    stamp.write_text("1.2.0\n")
    done = import_strata(tmp_path)
    assert done.returncode == 1 and "ImportError" in done.stderr
    assert f"was built for PyTorch 1.2.0, and this Python has {torch.__version__}" in done.stderr
    assert "pip install --force-reinstall" in done.stderr
