#!/usr/bin/env bash
# test_torch2.sh: installs a recent PyTorch from PyPI into a virtual environment, builds and installs this package there as
# a user would, and runs the checks of the package. Skips with one line where PyPI cannot be reached. `make test-torch2`
# calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD venv=$PWD/build/torch2 work=$PWD/build/torch2-wheels log=$PWD/build/torch2.log
mkdir -p build
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip=("$venv/bin/pip" --disable-pip-version-check)
if ! "${pip[@]}" install -q torch numpy pytest transformers scikit-build-core -r tools/lint-requirements.txt > "$log" 2>&1; then
  echo "test-torch2: SKIPPED, torch could not be installed from PyPI (build/torch2.log)"
  exit 0
fi
rm -rf "$work"
mkdir "$work"

# built NAME COMMAND ..: runs a build, prints its time, and its whole output only if it fails.
built() {
  local name=$1 start=$SECONDS
  shift
  "$@" > "$log" 2>&1 || { cat "$log"; echo "test-torch2: FAILED: $name"; exit 1; }
  echo "test-torch2: $name took $((SECONDS - start)) s"
}
install_wheel() { "${pip[@]}" install -q --no-deps --force-reinstall "$@"; }
size() { du -k "$@" | awk '{ printf "%.1f MB", $1 / 1024 }'; }
says() {  # says WORDS COMMAND ..: the command prints these words, whatever its exit status
  local words=$1 output
  shift
  output=$("$@" 2>&1 || true)
  grep -qF "$words" <<< "$output" || { echo "test-torch2: FAILED: expected \"$words\" from $*, got: $output"; exit 1; }
  echo "test-torch2: $output"
}
cpu=(-C cmake.define.STRATA_CUDA=OFF)  # the checks here need no GPU

"$venv/bin/python" -c 'import torch, sys; print("test-torch2: PyTorch", torch.__version__, "on Python", sys.version.split()[0])'
# The operators alone, by pip's isolated build, which hides the installed PyTorch.
built "pip wheel, the operators" "${pip[@]}" wheel -q --no-deps -w "$work/operators" "${cpu[@]}" \
  -C cmake.define.STRATA_BUILD_COMMAND=OFF .
echo "test-torch2: wheel of the operators: $(size "$work"/operators/*.whl)"
install_wheel "$work"/operators/*.whl
says "has only the Python package, not the command" "$venv/bin/strata" --version
# All of it, offline, from a source distribution.
(cd "$work" && "$venv/bin/python" -c "
import os
from scikit_build_core.build import build_sdist
os.chdir('$checkout')
print(build_sdist('$work'))") > "$log"
sdist=$(echo "$work"/strata_attention-*.tar.gz)
[ "$(stat -c %s "$sdist")" -lt 5000000 ] || { echo "test-torch2: FAILED: $sdist has $(size "$sdist"), so not the sources alone"; exit 1; }
offline=()
if unshare -rn true 2> /dev/null; then offline=(unshare -rn); fi  # without a network
built "pip wheel of the sdist, offline, with the command" "${offline[@]}" "${pip[@]}" wheel -q --no-deps --no-index \
  --no-build-isolation -w "$work/all" "${cpu[@]}" "$sdist"
echo "test-torch2: wheel with the command: $(size "$work"/all/*.whl)"
install_wheel "$work"/all/*.whl
says "strata 0" "$venv/bin/strata" --version

(cd python && "$venv/bin/mypy" --config-file= --strict --cache-dir ../build/mypy_strict -p strata -p strata_command)
# From another folder, so that the installed package is the one that is imported. Tests of the C++ modules need a program
# of the build.
cd build
unset PYTHONPATH STRATA_LIBRARY
"$venv/bin/strata" info
"$venv/bin/python" -m strata.info
"$venv/bin/python" "$checkout/bench/call_overhead.py"
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider "$checkout/tests/python" -k "not cpp"
