#!/usr/bin/env bash
# instructions.sh [BUILD_DIR] [KIND]...: instructions per op, counted by callgrind, of op_count's kinds (default: all).
# Counts repeat exactly, so a change of 1% is a change. Valgrind hides AVX-512: it is the AVX2 kernels that are counted.
# Of the kinds "cuda: ..." (a build with the emulator: build/emulated) it is what the calling thread does, without what the
# stand-ins for CUDA's functions do: the library's own part of a launch.
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$source_dir/build/release}
program=$build/bench/op_count
count=1000
command -v valgrind >/dev/null || { echo "instructions.sh: install valgrind" >&2; exit 1; }

if [[ $# -gt 1 ]]; then kinds=("${@:2}"); else mapfile -t kinds < <("$program"); fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%-24s %s\n' op instructions
for kind in "${kinds[@]}"; do
    valgrind --tool=callgrind --callgrind-out-file="${TAPIR_CALLGRIND_OUT:-/dev/null}" --collect-atstart=no \
        --toggle-collect=tapir_measured --toggle-collect='cudaError_t cudaLaunchKernelEx<*' --toggle-collect='cuda*' \
        --toggle-collect='cublasLt*' "$program" "$kind" $count 2>"$log" >/dev/null || { cat "$log" >&2; exit 1; }
    total=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$log")
    printf '%-24s %12.1f\n' "$kind" "$(awk -v t="$total" -v n=$count 'BEGIN { print t / n }')"
done
