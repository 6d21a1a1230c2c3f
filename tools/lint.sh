#!/usr/bin/env bash
# lint.sh JOBS: runs every linter over the whole tree and names those that found something. `make lint` calls it.
set -uo pipefail
jobs=$1
cd "$(dirname "$0")/.." || exit
venv=build/lint-venv
failed=()

check() {  # check NAME COMMAND ..: runs a linter and remembers whether it found something
  local name=$1 start=$SECONDS
  shift
  "$@" || failed+=("$name")
  echo "lint: $name, $((SECONDS - start)) s"
}

format() { git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror; }

# clang 14 cannot read the headers of Debian's torch, so clang-tidy reads what the build without torch compiles.
tidy() {
  cmake --preset core -B build/lint -DSTRATA_BUILD_TESTS=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DSTRATA_TOGETHER=OFF > build/lint.log 2>&1 ||
    { cat build/lint.log; return 1; }
  tools/tidy.py build/lint "$jobs"
}

shell() { git ls-files '*.sh' .ci/run | xargs shellcheck; }

install_python_linters() {
  cmp -s tools/lint-requirements.txt "$venv/installed" && return
  echo "lint: installing $(paste -sd ' ' tools/lint-requirements.txt)"
  if ! python3 -m venv --clear "$venv" || ! "$venv/bin/pip" install -q --disable-pip-version-check -r tools/lint-requirements.txt; then
    echo "lint: could not install ruff and mypy from PyPI into $venv; Python was NOT checked" >&2
    return 1
  fi
  cp tools/lint-requirements.txt "$venv/installed"
}

mkdir -p build
check clang-format format
check shellcheck shell
if install_python_linters; then
  check ruff "$venv/bin/ruff" check --quiet .
  check mypy "$venv/bin/mypy" --no-error-summary
  python="all linters"
else
  python="all but ruff and mypy, which could not be installed"
fi
check clang-tidy tidy
[ ${#failed[@]} -eq 0 ] || { echo "lint: these found something: ${failed[*]}" >&2; exit 1; }
echo "lint: clean ($python)"
