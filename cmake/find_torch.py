"""Prints the folder of the PyTorch that this interpreter has installed, its version, and the version of CUDA it was built
with, which is missing for a PyTorch of the CPU: "FOLDER;VERSION;CUDA". Fails if there is no PyTorch. It does not import
torch, since isolated builds hide it from import."""

import re
import sys
import sysconfig
from pathlib import Path

folders = [*sys.path, sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
for folder in folders:
    file = Path(folder or ".") / "torch" / "version.py"
    text = file.read_text() if file.exists() else ""
    version = re.search(r"^__version__ *= *['\"]([^'\"]+)", text, re.MULTILINE)
    if version:
        cuda = re.search(r"^cuda\b[^=]*= *['\"]([^'\"]+)", text, re.MULTILINE)
        print(";".join([str(file.parent), version[1], *([cuda[1]] if cuda else [])]))
        sys.exit(0)
sys.exit(1)
