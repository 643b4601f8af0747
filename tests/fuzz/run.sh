#!/usr/bin/env bash
# run.sh BUILD_DIR SECONDS [NAME...]: runs the fuzzers of a build, each for so many seconds, from the seeds that corpus.py makes and
# what earlier runs have found. A finding stays as BUILD_DIR/fuzz/NAME/crash-... and can be run again: fuzz_NAME FILE.
set -euo pipefail
build=$1 seconds=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
python3 "$here/corpus.py" "$build/fuzz/seeds"
[[ -d $build/fuzz/seeds/graph ]] || "$build/tests/fuzz/graph_seeds" "$build/fuzz/seeds"
failed=()
for program in "$build"/tests/fuzz/fuzz_*; do
    [[ -x $program && ! -d $program ]] || continue
    name=${program##*/fuzz_}
    [[ $# -eq 0 || " $* " == *" $name "* ]] || continue
    mkdir -p "$build/fuzz/$name/corpus"
    echo "=== fuzz_$name, $seconds s"
    # A file may hold 1032 times its size in deflate's best case: so small inputs and a limit of memory fit together.
    # The system's allocator, so that what lies beyond a small tensor is watched as well.
    asan=
    # A graph may ask for large tensors: what there is no memory for is an error.
    [[ $name != graph* ]] || asan=allocator_may_return_null=1:max_allocation_size_mb=63
    ASAN_OPTIONS=$asan OMP_NUM_THREADS=1 \
    TAPIR_ALLOCATOR=system "$program" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=64 \
        -print_final_stats=1 \
        -artifact_prefix="$build/fuzz/$name/" "$build/fuzz/$name/corpus" "$build/fuzz/seeds/$name" >"$build/fuzz/$name/log" 2>&1 ||
        failed+=("$name")
    grep -E "stat::number_of_executed_units|ERROR|SUMMARY|DONE|not a FileError" "$build/fuzz/$name/log" || true
done
[[ ${#failed[@]} -eq 0 ]] || { echo "findings: ${failed[*]}" >&2; exit 1; }
