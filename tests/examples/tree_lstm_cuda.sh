#!/usr/bin/env bash
# tree_lstm_cuda.sh PROGRAM: fails unless tree_lstm --device cuda learns as on the CPU, and a state saved on one device goes
# on on the other. Exit 77: no GPU, so that only the messages were tested.
set -euo pipefail
program=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$*" >&2
    exit 1
}

refused() {  # DEVICE MESSAGE
    if "$program" --device "$1" >"$dir/refused" 2>&1; then fail "--device $1 was taken"; fi
    grep -q "$2" "$dir/refused" || fail "--device $1: $(cat "$dir/refused")"
}
for device in gpu cuda: cuda:x cuda:1000 cpu:0; do
    refused "$device" "'$device' is not a device: cpu, cuda or cuda:N"
done
refused cuda:99 "^tree_lstm: .*DeviceScope: cuda:99: "
[[ $(wc -l <"$dir/refused") == 1 ]] || fail "more than a line: $(cat "$dir/refused")"
grep -q "cuda:99: there \(is\|are\) [0-9]" "$dir/refused" || exit 77

run() {  # OUTPUT OPTIONS...
    local output=$dir/$1
    shift
    "$program" --trees 20 --test-trees 4 --hidden 16 --batch 10 --lr-decay none --drawn 0 "$@" >"$output" 2>&1 ||
        fail "$*: $(cat "$output")"
}
losses() { sed -nE 's/^epoch .*  loss ([0-9.]+)  train .*/\1/p' "$dir/$1"; }
same_losses() {  # OUTPUT OUTPUT EPOCHS. To 4 digits, of which the last may fall to the other side.
    paste -d ' ' <(losses "$1") <(losses "$2") |
        awk -v n="$3" '{ print; d = $1 - $2; bad += d > 5e-4 || d < -5e-4 } END { exit bad > 0 || NR != n }' ||
        fail "the losses differ: $(cat "$dir/$1" "$dir/$2")"
}

run cpu --epochs 2 --save "$dir/cpu.state"
run cuda --epochs 2 --device cuda --save "$dir/cuda.state"
same_losses cpu cuda 2
run cpu_then_cuda --epochs 3 --device cuda --resume "$dir/cpu.state"
run cuda_then_cpu --epochs 3 --resume "$dir/cuda.state"
same_losses cpu_then_cuda cuda_then_cpu 1
