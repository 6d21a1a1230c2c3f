"""The command on machines that need help: AMX that cannot be used, an OpenBLAS that does not know the CPU."""

import json
import os
import subprocess

from fake_host import HIDDEN_TILES, old_openblas
from support import STRATA, TINY, home  # noqa: F401 (home is a fixture)


SETTINGS = ("ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "STRATA_CPUID", "LD_PRELOAD")
CLEAN = {name: value for name, value in os.environ.items() if name not in SETTINGS}


def run(*arguments, **environment):
    return subprocess.run([STRATA, *arguments], capture_output=True, text=True, timeout=300, check=True, env={**CLEAN, **environment})


def test_this_machine_is_described():
    info = json.loads(run("info", "--json").stdout)
    assert info["cpu"] and info["amx"].startswith(("yes", "no")) and info["openblas"]
    assert "BLAS             OpenBLAS with kernels for " + info["openblas"] in run("info").stdout


def test_onednn_is_kept_below_amx_that_cannot_be_used():
    done = run("info", "--json", **HIDDEN_TILES)
    info = json.loads(done.stdout)
    assert "0x1D" in info["amx"] and info["settings"]["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert done.stderr.count("using ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16") == 1, "it is said, and said once"
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in run("info", **HIDDEN_TILES).stdout


def test_bfloat16_training_runs_below_amx(home):  # noqa: F811
    done = run("train", "--precision", "bf16", "--steps", "4", "--quiet", "--json", *TINY, **HIDDEN_TILES)
    assert json.loads(done.stdout)["steps"] == 4 and "ONEDNN_MAX_CPU_ISA" in done.stderr


def test_a_variable_that_is_set_is_the_users_decision():
    done = run("info", "--json", ONEDNN_MAX_CPU_ISA="AVX2", **HIDDEN_TILES)
    assert done.stderr == "" and json.loads(done.stdout)["settings"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"


def test_openblas_is_raised_to_the_cpu(tmp_path):
    old = old_openblas(tmp_path)
    done = run("info", "--json", **old)
    chosen = json.loads(done.stdout)["settings"]["OPENBLAS_CORETYPE"]
    assert chosen in ("Sandybridge", "Haswell", "SkylakeX")
    assert done.stderr.count(f"Prescott kernels; using OPENBLAS_CORETYPE={chosen}") == 1
    assert run("info", OPENBLAS_CORETYPE="Zen", **old).stderr == ""


def test_the_bench_says_what_it_runs_on():
    info = json.loads(run("info", "--json").stdout)
    with subprocess.Popen([STRATA, "bench", "hkt"], stdout=subprocess.PIPE, text=True, env=CLEAN) as bench:
        first = bench.stdout.readline()
        bench.kill()
    assert first.startswith(info["cpu"]) and f"OpenBLAS for {info['openblas']}" in first and info["instruction_set"] in first
