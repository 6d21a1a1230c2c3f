#!/usr/bin/env bash
# test_torch2.sh: installs a recent PyTorch from PyPI and this package into a virtual environment, and runs the Python
# tests there. Skips with one line where PyPI cannot be reached. `make test-torch2` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/torch2
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip=("$venv/bin/pip" install -q --disable-pip-version-check)
if ! "${pip[@]}" torch numpy pytest > build/torch2.log 2>&1; then
  echo "test-torch2: SKIPPED, torch could not be installed from PyPI (build/torch2.log)"
  exit 0
fi
start=$SECONDS
"${pip[@]}" --no-deps --force-reinstall .
echo "test-torch2: pip install . took $((SECONDS - start)) s; $("$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)')"
# From another folder, so that the installed package is the one that is imported. Those of the C++ modules need a program
# of the build.
tests=$PWD/tests/python
cd build
env -u PYTHONPATH -u STRATA_LIBRARY PYTHONDONTWRITEBYTECODE=1 "$OLDPWD/$venv/bin/python" -m pytest -q -p no:cacheprovider "$tests" -k "not cpp"
