#!/usr/bin/env bash
# run.sh PYTHON FOLDER WRITE check|browser: has WRITE write an example of everything into FOLDER/logs, and TensorBoard read it, out
# of an environment in FOLDER/venv that is made when it is not there. 77, a skip, where the packages cannot be had.
set -euo pipefail
python=$1 folder=$2 write=$3 what=$4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
skip() { echo "skipped: $1"; exit 77; }

if [[ ! -e $folder/venv/is_whole ]]; then
    rm -rf "$folder/venv"
    "$python" -m venv "$folder/venv" >"$folder/pip.log" 2>&1 || skip "no venv: see $folder/pip.log"
    timeout 240 "$folder/venv/bin/pip" install -q --disable-pip-version-check --retries 1 'tensorboard>=2.15' 'setuptools<81' pillow \
        websocket-client >>"$folder/pip.log" 2>&1 || skip "no tensorboard: see $folder/pip.log"
    touch "$folder/venv/is_whole"
fi
if [[ $what == browser ]]; then
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || skip "no chromium"
fi
logs=$folder/logs_$what
rm -rf "$logs"
mkdir -p "$logs"
"$write" "$logs"
if [[ $what == check ]]; then
    "$folder/venv/bin/python" -W ignore "$here/check.py" "$logs"
else
    "$folder/venv/bin/python" -W ignore "$here/browser.py" "$logs" "$browser" "$folder/screenshots"
fi
