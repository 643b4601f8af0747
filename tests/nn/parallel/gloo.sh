#!/usr/bin/env bash
# gloo.sh RANKS http|folder PROGRAM [ARGUMENT]...: runs so many processes that find each other by RANK, WORLD_SIZE and one of the two ways.
set -euo pipefail
ranks=$1 way=$2
shift 2
export OMP_NUM_THREADS=1 WORLD_SIZE=$ranks
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ $way == folder ]]; then
    export TAPIR_RENDEZVOUS=$folder
else
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
fi
processes=()
for ((rank = 0; rank < ranks; ++rank)); do
    RANK=$rank "$@" &
    processes+=($!)
done
result=0
for process in "${processes[@]}"; do wait "$process" || result=$?; done
exit $result
