#!/usr/bin/env bash
# run.sh PROGRAM CASE: lets gdb go through CASE.gdb with the program, and compares what it says with CASE.txt. What differs between
# builds is left out: addresses, frames' numbers and arguments. With TAPIR_UPDATE=1 CASE.txt is written instead.
set -euo pipefail
program=$(readlink -f "$1")
cases=$(dirname "$(readlink -f "$0")")
case=$2

command -v gdb >/dev/null || { echo "no gdb: not tested" && exit 77; }
gdb -nx -batch -ex 'python assert int(gdb.VERSION.split(".")[0]) >= 13' >/dev/null 2>&1 ||
    { echo "gdb is older than 13, or has no Python: not tested" && exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset TAPIR_LOG_OPS TAPIR_LOG_PLACEMENT TAPIR_ALLOCATOR TAPIR_SYNC
export OMP_NUM_THREADS=1 LC_ALL=C.UTF-8
gdb -nx -batch -iex "add-auto-load-safe-path $program" -iex 'set debuginfod enabled off' -iex 'set print thread-events off' \
    -ex 'set confirm off' -ex 'set width 0' -x "$cases/$case.gdb" "$program" >all 2>&1 </dev/null || true
if grep -q 'ptrace: Operation not permitted\|Could not trace the inferior' all; then
    echo "gdb may not trace programs here: not tested" && exit 77
fi
if grep -q "Couldn't write extended state status" all; then
    echo "this gdb cannot call functions on this processor (AMX): not tested" && exit 77
fi
grep 'no CUDA device: not tested' all && exit 77
sed -E -e '/^\[(Thread debugging|New Thread|New LWP|Thread 0x|Switching to)/d' \
    -e '/^(Using host libthread_db|BFD: |warning: |Core was|Program term|Saved core)/d' \
    -e '/^(Breakpoint [0-9]+ at|Note: breakpoint)/d' \
    -e '/^Breakpoint [0-9.]+, 0x/d' -e '/^(Breakpoint [0-9.]+, |Thread [0-9]+ .*hit )/{N;d}' -e '/^$/d' \
    -e 's/ (in (tapir::)?|<)tapir_gdb_(op|nonfinite)(\(\) at .*|\(\)\+[0-9]+>|\+[0-9]+>)$/ tapir_gdb_\3/' \
    -e 's/ \(process [0-9]+\)//' -e 's/0x[0-9a-f]+/0x*/g' \
    -e 's/^#[0-9]+ +(0x\* in )?(.*) \(.*\) at .*\/([^/]*:[0-9]+)$/# \2 at \3/' -e '/^# look</{N;d}' all >said
if [[ ${TAPIR_UPDATE:-} ]]; then
    cp said "$cases/$case.txt"
elif ! diff -u "$cases/$case.txt" said; then
    echo "--- all that gdb said:" && cat all && exit 1
fi
