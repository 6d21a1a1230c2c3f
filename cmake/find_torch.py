"""Prints the folder of the PyTorch that this interpreter has installed, and its version: "FOLDER;VERSION". Fails if there is
none. It does not import torch, since isolated builds hide it from import."""

import re
import sys
import sysconfig
from pathlib import Path

folders = [*sys.path, sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
for folder in folders:
    version = Path(folder or ".") / "torch" / "version.py"
    found = re.search(r"__version__ *= *['\"]([^'\"]+)", version.read_text()) if version.exists() else None
    if found:
        print(f"{version.parent};{found[1]}")
        sys.exit(0)
sys.exit(1)
