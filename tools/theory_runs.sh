#!/usr/bin/env bash
# theory_runs.sh TABLE [OPTION ..]: the runs of one table of docs/theory, and its raw file docs/results/theory-TABLE.json.
# TABLE: listops, imdb, cifar10 (trained, then inspected) or kurtosis (tested after every epoch). The options go to
# `strata compare`, for example --data FOLDER. What was interrupted goes on with the same command.
#   STRATA  the command; build/release/bin/strata unless set
#   SIZES   model sizes of the table kurtosis; "32 64 128 256" unless set
set -euo pipefail
if [ $# -eq 0 ]; then
  echo "theory_runs.sh: expected a table (listops, imdb, cifar10, kurtosis), got nothing" >&2
  exit 2
fi
table=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
strata=${STRATA:-$root/build/release/bin/strata}
runs=runs/theory-$table

compare() { "$strata" compare --config "$root/configs/theory-$table.toml" "$@"; }

if [ "$table" = kurtosis ]; then
  for size in ${SIZES:-32 64 128 256}; do
    compare --model-size "$size" --folder "$runs/$size" "$@"
  done
else
  compare --folder "$runs" "$@"
  for run in "$runs"/*-seed*; do
    [ -e "$run/inspect.json" ] || "$strata" inspect "$run" --samples 16 --examples 0 --threads 1 --quiet > "$run/inspect.txt"
  done
fi
python3 "$root/tools/inspect_summary.py" "$runs" "$root/docs/results/theory-$table.json"
