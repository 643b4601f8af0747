#!/usr/bin/env bash
# kill.sh LAUNCHER... -- PROGRAM: a rank is killed in the middle of training. The job ends by itself, and not well; started again, it ends with the
# parameters, to the bit, of a run that nobody disturbed. LAUNCHER: how to run several processes of the program.
set -euo pipefail
launch=()
while [[ $1 != -- ]]; do launch+=("$1") && shift; done
program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${launch[@]}" "$program" "$folder/whole" -1 0 >"$folder/want"
for rank in 0 1; do
    state=$folder/killed_$rank
    if timeout 60 "${launch[@]}" "$program" "$state" $rank 35 >"$folder/none" 2>"$folder/errors"; then
        echo "a job with a killed rank ended well" && exit 1
    elif [[ $? == 124 ]]; then
        echo "a job with a killed rank went on for a minute" && exit 1
    fi
    "${launch[@]}" "$program" "$state" -1 0 >"$folder/have"
    cmp "$folder/want" "$folder/have"
done
[[ $(wc -l <"$folder/want") -gt 50 ]]
echo "the same parameters, to the bit"
