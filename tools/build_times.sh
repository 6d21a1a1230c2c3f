#!/usr/bin/env bash
# build_times.sh OUT.json JOBS: times clean builds, without ccache, of the core alone and of everything.
set -euo pipefail
out=$1 jobs=$2
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_DISABLE=1

seconds_of_build() {
  cmake -S . -B "$work/$1" -G Ninja "${@:2}" > /dev/null
  local start=$SECONDS
  cmake --build "$work/$1" -j "$jobs" > /dev/null
  echo $((SECONDS - start))
}
core=$(seconds_of_build core -DSTRATA_TORCH=OFF -DSTRATA_BUILD_TESTS=OFF)
all=$(seconds_of_build all)
mkdir -p "$(dirname "$out")"
printf '{\n  "build_seconds_core": %d,\n  "build_seconds_all": %d\n}\n' "$core" "$all" > "$out"
echo "clean build with $jobs jobs: core ${core} s, everything ${all} s"
