#!/usr/bin/env bash
# run.sh PYTHON FOLDER LIBRARY ARGS...: check.py LIBRARY ARGS... with the environment of .ci/pytorch in FOLDER, which is made only where
# TAPIR_JUDGES_TORCH=1 asks for it. 77, a skip, without one.
set -euo pipefail
python=$1 folder=$2 library=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
fetch=()
[[ ${TAPIR_JUDGES_TORCH:-} == 1 ]] && fetch=(--fetch)
python=$("$here/../../../.ci/pytorch" "${fetch[@]}" "$python" "$folder") || { echo "skipped: no PyTorch"; exit 77; }
exec "$python" -W ignore "$here/check.py" "$library" "$@"
