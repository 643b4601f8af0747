#!/usr/bin/env bash
# run.sh PROGRAM ge|le BOUND [--needs PATH] ARGS...: fails unless PROGRAM ARGS ends with "result VALUE", VALUE at least (ge) or at
# most (le) BOUND. It runs in a folder of its own. Exit 77: PATH, the data that it needs, is not there.
set -euo pipefail
program=$1 comparison=$2 bound=$3
shift 3
if [[ ${1:-} == --needs ]]; then
    [[ -e $2 ]] || exit 77
    shift 2
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
"$program" "$@" >output 2>&1 || { cat output; exit 1; }
awk -v comparison="$comparison" -v bound="$bound" '
    END { exit !($1 == "result" && $2 == $2 + 0 && (comparison == "ge" ? $2 >= bound : $2 <= bound)) }' output ||
    { tail -20 output; echo "expected a result $comparison $bound"; exit 1; }
tail -1 output
