#!/usr/bin/env bash
# api_page.sh: writes the API page of the Python package, made from its docstrings and annotations, to build/api. It needs
# the virtual environment of `make test-torch2`. Skips with one line where PyPI cannot be reached. `make api` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/torch2
if [ ! -x "$venv/bin/python" ]; then
  echo "api: expected the virtual environment $venv, and there is none; run make test-torch2 first" >&2
  exit 1
fi
# The sources are those of the checkout; the operators are those that were installed beside them.
library=${STRATA_LIBRARY:-$(cd build && env -u PYTHONPATH "../$venv/bin/python" -c 'from strata import _library; print(_library.find())' 2>/dev/null)} || {
  echo "api: expected the package strata in $venv, and it cannot be imported; run make test-torch2 first" >&2
  exit 1
}
if ! "$venv/bin/python" -c 'import pdoc' 2>/dev/null && ! "$venv/bin/pip" install -q --disable-pip-version-check pdoc > build/api.log 2>&1; then
  echo "api: SKIPPED, pdoc could not be installed from PyPI (build/api.log)"
  exit 0
fi
rm -rf build/api
PYTHONPATH=python STRATA_LIBRARY=$library PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" tools/api_page.py build/api
