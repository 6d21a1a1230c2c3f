"""`import strata` on machines that need environment variables."""

import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
from fake_host import HIDDEN_TILES, old_openblas


def python(code, *options, code_expected=0, **environment):
    names = ("ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "STRATA_CPUID", "LD_PRELOAD")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**clean, **environment},
    )
    assert done.returncode == code_expected, done.stderr
    return done


def test_strata_before_torch_sets_what_is_missing():
    done = python("import strata, os; print(os.environ['ONEDNN_MAX_CPU_ISA'])", **HIDDEN_TILES)
    assert done.stdout.strip() == "AVX512_CORE_BF16" and "RuntimeWarning" not in done.stderr


def test_strata_after_torch_warns_once_with_the_line_to_set():
    done = python("import torch, strata; import strata.hkt", **HIDDEN_TILES)
    assert done.stderr.count("export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16") == 1


def test_what_is_set_is_left_alone():
    done = python(
        "import torch, strata, os; print(os.environ['ONEDNN_MAX_CPU_ISA'])", ONEDNN_MAX_CPU_ISA="AVX2", **HIDDEN_TILES
    )
    assert done.stdout.strip() == "AVX2" and "RuntimeWarning" not in done.stderr


@pytest.mark.parametrize("order", ["strata, torch", "torch, strata", "numpy, strata"])
def test_an_old_openblas_is_named_once(tmp_path, order):
    done = python(f"import {order}", **old_openblas(tmp_path))
    assert done.stderr.count("export OPENBLAS_CORETYPE=") == 1 and "Prescott" in done.stderr


def test_this_machine_needs_nothing_said_twice():
    assert python("import strata").stderr.count("RuntimeWarning") <= 1
