#!/usr/bin/env bash
# checkpoint.sh LAUNCHER... -- PROGRAM: checkpoints that cannot be written or read. All of three ranks tell the line and who failed, none of them hangs,
# and the last checkpoint is still there.
set -euo pipefail
launch=()
while [[ $1 != -- ]]; do launch+=("$1") && shift; done
program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
    echo "$job: $1" && cat "$folder/said" && exit 1
}
run() { # run WIDTH STEPS HOW
    job="$*"
    timeout 30 "${launch[@]}" "$program" checkpoint "$folder/state" "$@" >"$folder/printed" 2>"$folder/said" || fail "ends with $?"
}
says() { # says TIMES PATTERN
    [[ $(grep -cE "$2" "$folder/said") == "$1" ]] || fail "not $1 ranks say: $2"
}
unchanged() {
    cmp "$folder/state" "$folder/copy" || fail "the last checkpoint has gone"
    [[ $(ls "$folder") == $'copy\nprinted\nsaid\nstate' ]] || fail "there are files left: $(ls "$folder")"
}

run 8 30 well
cp "$folder/state" "$folder/copy"
run 8 40 full
says 1 "^rank 0: training.h:[0-9]+: TrainingState: .*File too large"
says 2 "^rank [12]: training.h:[0-9]+: on_rank: rank 0 \(.*\) failed: training.h:[0-9]+: TrainingState: .*File too large"
unchanged
run 8 40 throws
says 1 "^rank 0: no more data"
says 2 "^rank [12]: training.h:[0-9]+: all_reduce: rank 0 .*no more data"
unchanged
run 8 30 ends
says 1 "^rank 0: something else"
says 2 "^rank [12]: failures_main.cpp:[0-9]+: barrier: rank 0 .*failed: an exception ended its program's use of the group"
unchanged
run 9 40 well
says 3 "^rank [012]: training.h:[0-9]+: TrainingState: $folder/state: .*first.*"
unchanged
run 8 40 well  # goes on
says 0 .
[[ $(wc -l <"$folder/printed") -gt 50 ]] || fail "it has not gone on"
echo "all ranks have told what was wrong"
