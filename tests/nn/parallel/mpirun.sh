#!/usr/bin/env bash
# mpirun.sh MPIEXEC RANKS PROGRAM [ARGUMENT]...: runs so many processes on this machine, however few cores it has, as root too.
set -euo pipefail
mpiexec=$1 ranks=$2
shift 2
options=()
if "$mpiexec" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then
    options=(--allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none)
fi
export OMP_NUM_THREADS=1
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0  # MPI keeps some memory until the process ends
exec "$mpiexec" "${options[@]}" -n "$ranks" "$@"
