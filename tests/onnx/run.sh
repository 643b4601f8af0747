#!/usr/bin/env bash
# run.sh PYTHON FOLDER PROGRAM NAME ARGS...: has PROGRAM write models into FOLDER/NAME (PROGRAM FOLDER/NAME ARGS...), and onnx.checker and
# onnxruntime check them, out of an environment in FOLDER/venv that is made when it is not there. 77, a skip, where the packages cannot
# be had.
set -euo pipefail
python=$1 folder=$2 program=$3 name=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
skip() { echo "skipped: $1"; exit 77; }

(
    flock 9
    if [[ ! -e $folder/venv/is_whole ]]; then
        rm -rf "$folder/venv"
        "$python" -m venv "$folder/venv" >"$folder/pip.log" 2>&1 || exit 77
        timeout 400 "$folder/venv/bin/pip" install -q --disable-pip-version-check --retries 1 'onnx>=1.15' 'onnxruntime>=1.17' numpy \
            >>"$folder/pip.log" 2>&1 || exit 77
        touch "$folder/venv/is_whole"
    fi
) 9>"$folder/lock" || skip "no onnx and onnxruntime: see $folder/pip.log"
rm -rf "${folder:?}/$name"
"$program" "$folder/$name" "$@"
"$folder/venv/bin/python" -W ignore "$here/check.py" "$folder/$name"
