"""`python -m strata.info`, and how an installed package starts the command or says what is missing."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import strata_command
import torch

import strata
from strata import _library
from strata.info import info


def run(*command: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_info_is_the_machine_that_torch_and_the_library_see():
    found = info()
    assert found["strata"] == strata.__version__ and found["torch"] == torch.__version__
    assert found["instruction_set"] in found["instruction_sets"]
    assert found["library"] == str(_library.find())
    assert found["devices"][0] == "cpu" and len(found["devices"]) == 1 + torch.cuda.device_count()
    assert bool(found["kernels"]) == (found["cuda_kernels"] and found["torch_sees_cuda"])
    done = run(sys.executable, "-m", "strata.info", "--json", STRATA_ISA="portable")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["instruction_set"] == "portable" and again["settings"]["STRATA_ISA"] == "portable"
    done = run(sys.executable, "-m", "strata.info")
    assert f"torch             {torch.__version__}" in done.stdout and "in use" in done.stdout


def test_info_names_what_is_missing(monkeypatch):
    monkeypatch.setattr("strata.info.PACKAGES", {"no_such_package": "nothing"})
    assert any("pip install no_such_package" in line for line in info()["missing"])


@pytest.fixture
def installed(tmp_path) -> Path:
    """A site-packages folder with a command that prints its arguments and the library path."""
    package, torch_folder = tmp_path / "strata", tmp_path / "torch"
    for folder in (package / "bin", package / "lib", torch_folder / "lib"):
        folder.mkdir(parents=True)
    (package / "lib" / "libstrata_torch.built-for").write_text("2.15.0+cu132\n")
    (torch_folder / "version.py").write_text("__version__ = '2.15.1'\n")
    (torch_folder / "__init__.py").write_text("")
    command = package / "bin" / "strata"
    command.write_text('#!/bin/sh\necho "$@"\necho "path $LD_LIBRARY_PATH"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    source = Path(strata_command.__file__)
    (tmp_path / "strata_command").mkdir()
    (tmp_path / "strata_command" / "__init__.py").write_text(source.read_text())
    return tmp_path


def start(folder: Path, *arguments: str, torch_beside: Path | None = None) -> subprocess.CompletedProcess:
    path = os.pathsep.join(str(part) for part in (torch_beside, folder) if part)
    program = "import strata_command; strata_command.main()"
    return run(sys.executable, "-S", "-c", program, *arguments, PYTHONPATH=path, LD_LIBRARY_PATH="")


def test_the_command_of_a_wheel_starts(installed, tmp_path):
    done = start(installed, "train", "--help")
    assert done.returncode == 0 and done.stdout.splitlines() == ["train --help", f"path {installed / 'torch' / 'lib'}"], (
        done.stdout + done.stderr
    )
    elsewhere = tmp_path / "elsewhere"
    (elsewhere).mkdir()
    (installed / "torch").rename(elsewhere / "torch")
    done = start(installed, torch_beside=elsewhere)
    assert f"path {elsewhere / 'torch' / 'lib'}" in done.stdout, done.stderr


def test_a_command_for_another_pytorch_is_refused(installed):
    (installed / "torch" / "version.py").write_text("__version__ = '2.14.0'\n")
    done = start(installed)
    assert done.returncode == 1 and done.stdout == ""
    assert "built for PyTorch 2.15.0+cu132, and this Python has 2.14.0" in done.stderr


def test_a_wheel_without_the_command_says_what_is_missing(installed):
    (installed / "strata" / "bin" / "strata").unlink()
    assert "has only the Python package" in start(installed).stderr
    (installed / "strata" / "bin" / "strata.missing").write_text("libfmt-dev libcli11-dev\n")
    done = start(installed)
    assert done.returncode == 1 and "libfmt-dev libcli11-dev" in done.stderr and "pip install" in done.stderr
