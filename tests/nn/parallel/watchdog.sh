#!/usr/bin/env bash
# watchdog.sh PROGRAM [MPIEXEC]: rank 1 of three does not come to a call. The others name it, its host and their line, and end with code 75. Without
# MPIEXEC: on Gloo.
set -euo pipefail
program=$1 mpiexec=${2:-}
folder=$(mktemp -d)
here=$(dirname "$0")
export folder program OMP_NUM_THREADS=1 TAPIR_GLOO_INTERFACE=lo
trap 'kill -KILL $(pgrep -f "$folder") 2>/dev/null || true; rm -rf "$folder"' EXIT

fail() {
    echo "$case: $1" && cat "$folder"/said* && exit 1
}
# require TEXT FILE: the file has a line with the text.
require() {
    grep -qF -- "$1" "$2" || fail "rank ${2##*.} does not say: $1"
}
# ended RANK CODE: waits for a rank of Gloo's.
ended() {
    local code=0
    wait "${ranks[$1]}" || code=$?
    [[ $code == "$2" ]] || fail "rank $1 ends with $code in place of $2"
}

run() { # run CASE HOW TEXT
    case="$1 $2"
    local host line code=0 i
    host=$(hostname)
    rm -rf "$folder"/said* "$folder/meet"
    if [[ $mpiexec ]]; then
        timeout 60 "$here/mpirun.sh" "$mpiexec" 3 bash -c '"$program" "$@" >"$folder/said.$OMPI_COMM_WORLD_RANK" 2>&1' - "$1" "$2" "$folder" \
            >"$folder/said" 2>&1 || code=$?
        [[ $code != 0 && $code != 124 ]] || fail "mpirun ends with $code"
    else
        ranks=()
        for i in 0 1 2; do
            TAPIR_RENDEZVOUS=$folder/meet WORLD_SIZE=3 RANK=$i timeout --foreground 60 "$program" "$1" "$2" "$folder" >"$folder/said.$i" 2>&1 &
            ranks+=($!)
        done
        ended 0 75
        ended 2 75
        kill -CONT "$(pgrep -P "${ranks[1]}")"  # it comes after all: the others have gone
        ended 1 1
        grep -qE "rank 1: failures_main.cpp:[0-9]+: .*(was lost|failed: )" "$folder/said.1" || fail "rank 1 does not say who has gone"
    fi
    for i in 0 2; do
        require "$3 waits 5 s for rank 1 ($host): rank $i ends the program" "$folder/said.$i"
        grep -qE "^failures_main.cpp:[0-9]+: .* waits 5 s" "$folder/said.$i" || fail "rank $i does not name its line"
    done
    ! pgrep -f "$folder" >"$folder/left" || fail "there are processes left: $(tr '\n' ' ' <"$folder/left")"
    echo "$case: both other ranks have named the missing one"
}

run sum stopped "all_reduce of float32 (3,), sum"
run message stopped "recv of a tensor from rank 1"
run gradients stopped "all_reduce of gradients, float32 (2,) (bucket 0 of 4, step 4)"
if [[ ! $mpiexec ]]; then
    case="killed in split"
    rm -rf "$folder"/said* "$folder/meet"
    ranks=()
    for i in 0 1 2; do  # Gloo itself would wait 30 s for the connection
        TAPIR_RENDEZVOUS=$folder/meet WORLD_SIZE=3 RANK=$i timeout --foreground 20 "$program" split "$folder/meet" >"$folder/said.$i" 2>&1 &
        ranks+=($!)
    done
    ended 0 1
    ended 2 1
    for i in 0 2; do require "the connection to rank 1 was lost" "$folder/said.$i"; done
fi
if [[ $mpiexec ]]; then  # with Gloo, a rank that computes is like one that was stopped
    run sum busy "all_reduce of float32 (3,), sum"
    run gradients busy "all_reduce of gradients, float32 (2,) (bucket 0 of 4, step 4)"
fi
