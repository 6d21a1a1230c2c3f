#!/usr/bin/env bash
# exported_symbols_test.sh LIBRARY ..: a shared library exports what STRATA_API marks, and nothing else: above all nothing
# of the C++ standard library, of which a process may hold two copies. The functions stand in tests/exported/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
status=0
for library in "$@"; do
  name=$(basename "$library" .so)
  # Without arguments, which compilers write differently.
  exported=$(nm -DC --defined-only "$library" | sed -E 's/^[0-9a-f]+ . //; s/\[abi:cxx11\]//g; s/\(.*//' | LC_ALL=C sort -u)
  # Tables of our classes come with them.
  functions=$(grep -vE '^(vtable|VTT|typeinfo|typeinfo name) for strata::|^(virtual|non-virtual) thunk to strata::' <<< "$exported")
  if ! difference=$(diff "$here/exported/$name.txt" - <<< "$functions"); then
    printf '%s exports other names than tests/exported/%s.txt (<: only in the file, >: only in the library):\n%s\n' \
      "$library" "$name" "$difference"
    status=1
  else
    echo "$name: $(wc -l <<< "$functions") exported functions, as in tests/exported/$name.txt"
  fi
done
exit $status
