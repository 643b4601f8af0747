#!/usr/bin/env bash
# run.sh PYTHON FOLDER LIBRARY ARGS...: check.py LIBRARY ARGS... with a Python that has PyTorch: TAPIR_JUDGES_PYTHON names it, or it is an
# environment in FOLDER/venv. That is made only where TAPIR_JUDGES_TORCH=1 asks for it: pip fetches 2.9 GB. 77, a skip, without one.
set -euo pipefail
python=$1 folder=$2 library=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }

if [[ ${TAPIR_JUDGES_PYTHON:-} ]]; then
    python=$TAPIR_JUDGES_PYTHON
else
    mkdir -p "$folder"
    (
        flock 9
        if [[ ! -e $folder/venv/is_whole ]]; then
            [[ ${TAPIR_JUDGES_TORCH:-} == 1 ]] || exit 77
            rm -rf "$folder/venv"
            "$python" -m venv "$folder/venv" >"$folder/pip.log" 2>&1 || exit 77
            # One version: what is listed in accepted.txt is of its samples.
            timeout 1800 "$folder/venv/bin/pip" install -q --disable-pip-version-check --retries 1 torch==2.15.0 numpy expecttest >>"$folder/pip.log" 2>&1 ||
                exit 77
            touch "$folder/venv/is_whole"
        fi
    ) 9>"$folder/lock" || skip "no PyTorch in $folder/venv (TAPIR_JUDGES_TORCH=1 fetches it, TAPIR_JUDGES_PYTHON names another Python)"
    python=$folder/venv/bin/python
fi
exec "$python" -W ignore "$here/check.py" "$library" "$@"
