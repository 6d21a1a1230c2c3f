#!/usr/bin/env bash
# Runs cuda_test under compute-sanitizer, on a machine with a GPU: tools/sanitize_cuda.sh CUDA_TEST FOLDER [SHARDS [SECONDS]]
# memcheck (with leaks) and racecheck each run every case, split over SHARDS processes; a process stops after SECONDS.
# FOLDER/cases.txt lists, per tool, the cases that were run to their end. Exit code 1: a finding, a failed case, or a case not reached.
set -euo pipefail
test=$1
folder=$2
shards=${3:-8}
seconds=${4:-540}
mkdir -p "$folder"
command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is missing: it comes with the CUDA toolkit" >&2; exit 1; }

# $1: the tool, $2: the shard, the rest: options of the tool
check() {
  local tool=$1 shard=$2
  shift 2
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout "$seconds" \
    compute-sanitizer --tool "$tool" "$@" --error-exitcode 9 "$test" > "$folder/$tool.$shard.log" 2>&1
}

for ((shard = 0; shard < shards; ++shard)); do
  check memcheck "$shard" --leak-check full &
  check racecheck "$shard" --racecheck-report all &
done
wait

cases=$("$test" --gtest_list_tests | grep -c '^  ')
: > "$folder/cases.txt"
verdict=0
for tool in memcheck racecheck; do
  grep -h '^\[       OK' "$folder/$tool".*.log | sed -E "s/^\[ +OK \] ([^ ]+).*/$tool \1/" | sort > "$folder/$tool.cases"
  cat "$folder/$tool.cases" >> "$folder/cases.txt"
  reached=$(wc -l < "$folder/$tool.cases")
  skipped=$(grep -h '^\[  SKIPPED' "$folder/$tool".*.log | grep -c ' ms)' || true)
  findings=$(grep -hE '^========= (Error|Warning|Invalid|Leaked|Program hit|Uninit|Barrier|.*hazard)' "$folder/$tool".*.log |
    grep -vE 'SUMMARY' | sed -E 's/ at __shared__.*//' | sort | uniq -c | sort -rn | head -20 || true)
  failed=$(cat "$folder/$tool".*.log | grep -c '^\[  FAILED' || true)
  echo "$tool: $reached of $cases cases passed, $skipped skipped, $failed lines of failure"
  [[ -z $findings ]] || { echo "$findings"; verdict=1; }
  [[ $((reached + skipped)) == "$cases" && $failed == 0 ]] || verdict=1
done
exit $verdict
