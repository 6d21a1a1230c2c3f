#!/usr/bin/env bash
# configure.sh PRESET [FLAG ..]: configures a preset. Prints the compilers, and everything if it fails.
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$@" > "$log" 2>&1 || { cat "$log"; exit 1; }
sed -n 's/^-- Compilers: /compilers: /p' "$log"
