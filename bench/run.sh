#!/usr/bin/env bash
# run.sh [BUILD_DIR]: times Tapir and, where it was built, libtorch; prints the table; writes BUILD_DIR/bench.json.
# Runs of the two alternate, so that a slow spell of the machine hits both; a row is the best of its runs.
#   TAPIR_BENCH_ROUNDS=3   runs of each group
#   TAPIR_BENCH_ONLY=...   a regular expression on the groups' names: tiny, tree-64, ..., process, models-lstm, ..., large, threads
#   TAPIR_SST_DIR=...      the folder with SST's train.txt; default: shared/data/sst beside the source tree
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "${1:-$source_dir/build/release}" && pwd)
programs=$build/bench
results=$build/bench/results
rounds=${TAPIR_BENCH_ROUNDS:-3}
only=${TAPIR_BENCH_ONLY:-.}
source "$programs/config.sh"  # cxx, tapir_compile, tapir_library, torch_compile, torch_libraries

# Debian's OpenBLAS does not know newer CPUs and would run libtorch on SSE3 kernels, at half the speed.
if grep -qw avx512f /proc/cpuinfo; then export OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE:-SkylakeX}; fi
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

sides=()
[[ -x $programs/bench_tapir ]] && sides+=(tapir)
[[ -x $programs/bench_torch && ${#torch_libraries[@]} -gt 0 ]] && sides+=(torch)
if [[ " ${sides[*]} " == *" torch "* ]]; then
    blas=$(ldd "$programs/bench_torch" | sed -n 's/.*libblas.* => \([^ ]*\).*/\1/p')
    if [[ $blas && $(readlink -f "$blas") == */blas/* ]]; then
        echo "libtorch would run on the reference BLAS, which is slow: install libopenblas0-pthread" >&2
    fi
fi

rm -rf "$results"
mkdir -p "$results"

step() { printf '[%4d s] %s\n' $SECONDS "$*"; }

# rows GROUP REGEX [ROUNDS]: a group's rows, both sides in turn.
rows() {
    [[ $1 =~ $only ]] || return 0
    local round side
    for ((round = 1; round <= ${3:-$rounds}; ++round)); do
        for side in "${sides[@]}"; do
            step "$1: $side, run $round of ${3:-$rounds}"
            "$programs/bench_$side" --benchmark_filter="$2" --benchmark_min_time="${min_time:-0.5}" \
                --benchmark_out="$results/$side.$group.$1.$round.json" --benchmark_out_format=json \
                --benchmark_format=console >"$results/log" 2>&1 || { cat "$results/log" >&2; return 1; }
            grep -h 'no SST data' "$results/log" | head -1 || true
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

group=1  # orders the table's rows
min_time=0.1 rows tiny '^(add_float4|backward_|linear_1x64|view|narrow)' $((3 * rounds))
for h in 64 150 300; do rows tree-$h "^tree_lstm_train/$h/"; done
for h in 64 150 300; do rows tree-$h-batched "^tree_lstm_train_(batched|forked)/$h/"; done
rows tree-threads '^tree_lstm_train_100_batched'
rows tree-branch '^tree_lstm_branch'
rows tree-leaves-together '^tree_lstm_train_leaves_together/'
rows tree-infer '^tree_lstm_infer'
if [[ process =~ $only ]]; then
    for side in "${sides[@]}"; do
        process $side
        if [[ $side == tapir ]]; then library tapir "$tapir_library"; else library torch "${torch_libraries[@]}"; fi
    done
    group=$((group + 1))
fi
for model in mlp_adam cnn_adam lstm transformer; do  # one a process, for its memory
    rows models-$model "^$model/process_time"
done
rows models-bfloat16 '/bfloat16/process_time'
min_time=0.1 rows large '^(add|tanh|sigmoid|exp|gelu|sum|softmax|layer_norm|matmul)/.*process_time|^mlp_step'
OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 MKL_NUM_THREADS=2 rows threads '^(mlp|cnn|lstm|transformer|softmax|gelu|tanh|sum|matmul).*/threads:2/'

step "done: $(uname -m), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1 /proc/loadavg)"
"$programs/bench_table" "$build/bench.json" "$results"
