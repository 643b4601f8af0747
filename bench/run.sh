#!/usr/bin/env bash
# run.sh [BUILD_DIR]: times Tapir and, where it was built, PyTorch; prints the table; writes BUILD_DIR/bench.json.
# Runs of the two alternate, so that a slow spell of the machine hits both; a row is the best of its runs.
#   TAPIR_BENCH_ROUNDS=3   runs of each group
#   TAPIR_BENCH_ONLY=...   a regular expression on the groups' names: limits, tiny, tree-64, ..., process, steps-mlp_784_256_10_sgd, ...,
#                          infer, large, ops, gradients, threads, busy, sweep, adbench, convnets, convnets-threads. Without it all run but the
#                          last four.
#   TAPIR_BENCH_PAGES=1    writes the tables of README.md and bench/README.md
#   TAPIR_BENCH_SECONDS=...  of each run of a row, in place of the groups' own: 0.001 for a trial
#   TAPIR_SST_DIR=...      the folder with SST's train.txt; default: shared/data/sst beside the source tree
#   TAPIR_ADBENCH_DIR=...  the folder with ADBench's data; default: shared/data/adbench beside the source tree
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "${1:-$source_dir/build/release}" && pwd)
programs=$build/bench
results=$build/bench/results
rounds=${TAPIR_BENCH_ROUNDS:-3}
source "$programs/config.sh"  # cxx, tapir_compile, tapir_library, torch_compile, torch_libraries

# What PyTorch's own threads are told, and OpenBLAS, whose factorizations Tapir calls.
threads() { export OMP_NUM_THREADS=$1 MKL_NUM_THREADS=$1 OPENBLAS_NUM_THREADS=$1; }
# For side `kept`: PyTorch where glibc's malloc does not give large blocks back, which it does by default.
keep_memory=(MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456)

sides=(tapir)
if [[ -x $programs/bench_torch && ${#torch_libraries[@]} -gt 0 ]]; then
    sides+=(torch)
else
    echo "PyTorch is not here (see .ci/pytorch): Tapir's side runs alone"
fi

rm -rf "$results"
mkdir -p "$results"
group=100  # orders the table's rows

step() { printf '[%4d s] %s\n' $SECONDS "$*"; }
wanted() { if [[ ${TAPIR_BENCH_ONLY:-} ]]; then [[ $1 =~ $TAPIR_BENCH_ONLY ]]; else [[ ! $1 =~ ^(sweep|adbench|convnets) ]]; fi; }

# rows GROUP REGEX [ROUNDS] [SIDE...]: a group's rows, the sides in turn.
rows() {
    wanted "$1" || return 0
    local name=$1 regex=$2 count=${3:-$rounds} round side program settings
    shift $(($# < 3 ? $# : 3))
    for ((round = 1; round <= count; ++round)); do
        for side in "${sides[@]}" "$@"; do
            [[ $side == kept && " ${sides[*]} " != *" torch "* ]] && continue
            program=$side settings=()
            [[ $side == kept ]] && program=torch settings=("${keep_memory[@]}")
            step "$name: $side, run $round of $count"
            env "${settings[@]}" "$programs/bench_$program" --benchmark_filter="$regex" --benchmark_min_time="${TAPIR_BENCH_SECONDS:-${min_time:-0.5}}" \
                --benchmark_out="$results/$side.$group.$name.$round.json" --benchmark_out_format=json \
                --benchmark_format=console >"$results/log" 2>&1 || { cat "$results/log" >&2; return 1; }
            grep -hE 'no (SST|ADBench) data' "$results/log" | head -1 || true
        done
    done
    group=$((group + 1))
}

# process SIDE: compile time, start-up and size.
process() {
    local includes=${1}_compile[@] out=$results/$1.$group
    step "process: $1, compiling the 20-line program"
    "$programs/bench_process" compile_20_lines "$out.compile.json" \
        "$cxx" -std=c++20 -O0 -g "${!includes}" -c "$source_dir/bench/hello_$1.cpp" -o "$results/hello.o"
    step "process: $1, running it"
    "$programs/bench_process" start_run_exit "$out.run.json" "$programs/hello_$1"
}

# library SIDE FILE...: the summed size of stripped copies.
library() {
    local side=$1 bytes=0 file
    shift
    for file in "$@"; do
        strip -o "$results/stripped" "$file"
        bytes=$((bytes + $(stat -c %s "$results/stripped")))
    done
    rm "$results/stripped"
    printf '{"benchmarks": [{"name": "library_stripped", "label": "MB", "value": %d.%06d}]}\n' \
        $((bytes / 1000000)) $((bytes % 1000000)) >"$results/$side.$group.size.json"
}

threads 1
min_time=0.2 rows limits '^limit/|^large/matmul/[0-9]+/process_time'
min_time=0.05 rows tiny '^tiny/' $((2 * rounds))
for h in 64 150 300; do rows tree-$h "^tree_lstm_train(_plain_ops)?/$h/"; done
for h in 96 200 512; do rows tree-$h "^tree_lstm_train(_plain_ops)?/$h/" 1; done
for h in 64 150 300; do rows tree-$h-batched "^tree_lstm_train_(batched|forked)/$h/"; done
rows tree-threads '^tree_lstm_train_100_batched'
rows tree-branch '^tree_lstm_branch'
rows tree-leaves-together '^tree_lstm_train_leaves_together/'
rows tree-infer '^tree_lstm_infer' 2
if wanted process; then
    for side in "${sides[@]}"; do
        process $side
        if [[ $side == tapir ]]; then library tapir "$tapir_library"; else library torch "${torch_libraries[@]}"; fi
    done
    group=$((group + 1))
fi
while IFS= read -r row; do  # one a process, for its memory
    min_time=0.3 rows "steps-${row#step/}" "^$row/process_time"
done < <("$programs/bench_tapir" --benchmark_list_tests=true --benchmark_filter='^step/.*/process_time' | sed 's#/process_time##')
min_time=0.1 rows infer '^infer/'
min_time=0.2 rows large '^large/.*process_time' "$rounds" kept
min_time=0.05 rows ops '^op/'
min_time=0.05 rows gradients '^grad/'
threads 2
min_time=0.2 rows threads '^(step|large)/.*/threads:2/'
min_time=0.1 rows convnets-threads '^convnet/.*/threads:2/'
if wanted busy; then  # while something else wants a core
    (while :; do :; done) &
    spinner=$!
    trap 'kill $spinner' EXIT
    min_time=0.2 rows busy '^step/(lstm_128_256|transformer_block_256|gpt_2_layers_128_adamw)/threads:2/'
    trap - EXIT
    kill $spinner
fi
threads 1
min_time=0.02 rows sweep '^sweep/' 1
min_time=0.2 rows adbench '^adbench/' "$rounds" kept
min_time=0.1 rows convnets '^convnet/.*process_time' "$rounds" kept

cores=$(nproc --all) processor=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1) load=$(cut -d' ' -f1 /proc/loadavg)
step "done: $(uname -m), $cores cores, $processor, load $load"
peer=PyTorch
[[ ${#torch_libraries[@]} -gt 0 ]] && peer="PyTorch $(cat "$(dirname "${torch_libraries[0]}")/../version.py" | sed -n "s/^__version__ = '\([^+']*\).*/\1/p")"
vectors=$(grep -qw avx512f /proc/cpuinfo && echo AVX-512 || echo AVX2)
echo "$cores cores of $processor ($vectors), $("$cxx" --version | head -1), $peer, $rounds runs, $(date +%F)." >"$results/machine.txt"
pages=()
[[ ${TAPIR_BENCH_PAGES:-} ]] && pages=("$source_dir/README.md" "$source_dir/bench/README.md")
"$programs/bench_table" "$build/bench.json" "$results" "${pages[@]}"
