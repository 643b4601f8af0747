#!/usr/bin/env bash
# run.sh PYTHON FOLDER PROGRAM NAME ARGS...: has PROGRAM write models into FOLDER/NAME (PROGRAM FOLDER/NAME ARGS...), and onnx.checker and
# onnxruntime check them, out of an environment in FOLDER/venv that is made when it is not there. 77, a skip, where the packages cannot
# be had.
set -euo pipefail
python=$1 folder=$2 program=$3 name=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
source "$here/venv.sh"
need_venv "$python" "$folder"
rm -rf "${folder:?}/$name"
"$program" "$folder/$name" "$@"
"$folder/venv/bin/python" -W ignore "$here/check.py" "$folder/$name"
