#!/usr/bin/env bash
# run.sh PYTHON FOLDER PROGRAM [all]: the cases of ONNX's backend tests, as the onnx package of PyPI makes them, in load_onnx(): a tenth
# of them, or all. PROGRAM is cases.cpp; accepted.txt has the cases that do not pass, with reasons. FOLDER holds the environment and
# the cases. 77, a skip, where the package cannot be had. The cases are those of one release: a later one is tried by its number here.
set -euo pipefail
python=$1 folder=$2 program=$3 part=${4:-tenth}
release=1.23.2
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
mkdir -p "$folder"
(
    flock 9
    if [[ ! -e $folder/$release/is_whole ]]; then
        rm -rf "${folder:?}/$release"
        mkdir -p "$folder/$release"
        "$python" -m venv "$folder/$release/venv" >"$folder/pip.log" 2>&1 || exit 77
        timeout 400 "$folder/$release/venv/bin/pip" install -q --disable-pip-version-check --retries 1 "onnx==$release" pillow \
            >>"$folder/pip.log" 2>&1 || exit 77
        "$folder/$release/venv/bin/python" "$here/generate.py" "$folder/$release/cases"
        touch "$folder/$release/is_whole"
    fi
) 9>"$folder/lock" || skip "no onnx $release: see $folder/pip.log"
TAPIR_ONNX_TESTDATA=$folder/$release/cases "$program" "$here/accepted.txt" "$part"
