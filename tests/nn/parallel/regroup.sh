#!/usr/bin/env bash
# regroup.sh PROGRAM: ranks of Gloo are killed in the middle of a step. The others go on without them, and end with the parameters, to the bit, of a job
# that has as many ranks from the same checkpoint on.
set -euo pipefail
program=$1
folder=$(mktemp -d)
export OMP_NUM_THREADS=1 TAPIR_GLOO_INTERFACE=lo
trap 'kill -KILL $(pgrep -f "$folder") 2>/dev/null || true; rm -rf "$folder"' EXIT

fail() {
    echo "$job: $1" && tail -n +1 "$folder"/said* && exit 1
}
begin() { # begin RANKS ARGUMENT...: starts a job
    local i
    job="$*"
    rm -rf "$folder"/said* "$folder/meet"
    [[ $way == http ]] && export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
    [[ $way == http ]] || export TAPIR_RENDEZVOUS=$folder/meet
    ranks=()
    for ((i = 0; i < $1; ++i)); do
        WORLD_SIZE=$1 RANK=$i timeout --foreground 60 "$program" "${@:2}" >"$folder/printed.$i" 2>"$folder/said.$i" &
        ranks+=($!)
    done
}
ended() { # ended RANK CODE: waits for a rank
    local code=0
    wait "${ranks[$1]}" || code=$?
    [[ $code == "$2" ]] || fail "rank $1 ends with $code in place of $2"
}
says() { # says RANK TEXT
    grep -qF -- "$2" "$folder/said.$1" || fail "rank $1 does not say: $2"
}
all_end_well() {
    local i
    for i in "${!ranks[@]}"; do ended "$i" 0; done
}
# The checkpoint of 30 steps with so many ranks, and the parameters with which two or one end that go on from there.
want() {
    rm -f "$folder/state" "$folder/copy"
    way=folder
    begin "$1" "$folder/state" 30 0
    all_end_well
    cp "$folder/state" "$folder/copy"
    begin "$2" "$folder/state" 60 0
    all_end_well
    cp "$folder/printed.0" "$folder/want"
    [[ $(wc -l <"$folder/want") -gt 50 ]]
    cp "$folder/copy" "$folder/state"
}
same() { # same RANK: it has printed the parameters that were wanted
    cmp "$folder/want" "$folder/printed.$1" || fail "rank $1 has other parameters"
    echo "$way, $job: the same parameters, to the bit"
}
KILLED=137

for killed in 1 0; do
    want 3 2
    begin 3 "$folder/state" 60 0 $killed killed 35
    ended $killed $KILLED
    ended $((1 - killed)) 0
    ended 2 0
    says $((1 - killed)) "goes on as rank 0 of 2"
    says 2 "rank 2 goes on as rank 1 of 2"
    says 2 "the connection to rank $killed was lost"
    same $((1 - killed))
done

want 4 2
begin 4 "$folder/state" 60 2 1 killed 33 2 meeting 0  # the second is killed when the others count on it
ended 1 $KILLED
ended 2 $KILLED
ended 0 0
ended 3 0
says 3 "rank 3 goes on as rank 1 of 2"
same 0

want 3 1
begin 3 "$folder/state" 60 0 1 killed 33 2 killed 45  # one after the other
ended 0 1
says 0 "regroup_main.cpp:"
says 0 "survivors: 1 of 2 ranks came within 3 s, and more than half must be there"
cp "$folder/copy" "$folder/state"
begin 2 "$folder/state" 60 3 1 killed 33
ended 0 1
says 0 "survivors: 1 of 2 ranks came within 3 s, and SurvivorsOptions::least is 3"

cp "$folder/copy" "$folder/state"
begin 3 "$folder/state" 60 1 1 killed 33 2 late 0
ended 0 0
says 0 "rank 0 goes on as rank 0 of 1"
same 0
kill -CONT "$(pgrep -P "${ranks[2]}")"
ended 2 1
says 2 "survivors: the others have gone on without this rank, which came too late"

if [[ ${2:-} == http ]]; then
    want 3 2
    way=http
    unset TAPIR_RENDEZVOUS
    begin 3 "$folder/state" 60 0 1 killed 35
    ended 0 0
    ended 2 0
    same 0
    begin 3 "$folder/state" 80 0 0 killed 65
    ended 1 1
    ended 2 1
    says 1 "survivors: rank 0, by which the ranks find each other, does not answer: rank 0 at 127.0.0.1"
    says 2 "with TAPIR_RENDEZVOUS, a folder, they can go on without it"
fi
! pgrep -f "$folder" || fail "there are processes left"
