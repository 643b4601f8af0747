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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Collected instructions, less those of calls to CUDA's functions and all that these call.
count_of() {
    awk '
    function id(text,  i, name) {  # "(12) name" or "(12)"
        i = text; sub(/\).*/, "", i)
        name = text; sub(/^[^)]*\) ?/, "", name)
        if (name != "") names[i] = name
        return i
    }
    function is_cuda(i) { return names[i] ~ /^(cudaError_t )?cuda[A-Z]/ || names[i] ~ /^cublas/ }
    /^fn=/ { caller = id(substr($0, 4)) }
    /^cfn=/ { callee = id(substr($0, 5)) }
    /^calls=/ { getline; if (is_cuda(callee) && !is_cuda(caller)) cuda += $2 }
    /^(summary|totals):/ { total = $2 }
    END { printf "%.1f", (total - cuda) / '$count' }' "$1"
}

printf '%-24s %s\n' op instructions
for kind in "${kinds[@]}"; do
    valgrind --tool=callgrind --callgrind-out-file="$work/out" --compress-pos=no --collect-atstart=no \
        --toggle-collect=tapir_measured "$program" "$kind" $count 2>"$work/log" >/dev/null || { cat "$work/log" >&2; exit 1; }
    printf '%-24s %12s\n' "$kind" "$(count_of "$work/out")"
done
