"""Machines that are not here, for tests: a CPU that announces AMX and hides its tile sizes, an OpenBLAS older than the CPU."""

import subprocess

# AVX2, AVX-512 and AMX are announced in leaf 7; leaf 0x1D is empty.
HIDDEN_TILES = {"STRATA_CPUID": "7.0=0:d0030020:0:1400000,1d.0=0:0:0:0"}


def old_openblas(folder):
    """An environment in which OpenBLAS says that it chose its Prescott kernels."""
    source, library = folder / "openblas.c", folder / "openblas.so"
    source.write_text('const char* openblas_get_corename(void) { return "Prescott"; }\n')
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return {"LD_PRELOAD": str(library)}
