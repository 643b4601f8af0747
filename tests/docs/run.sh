#!/usr/bin/env bash
# run.sh PYTHON FOLDER: searches the reference in FOLDER/html for ops, in a headless Chromium; a picture is left in FOLDER. 77, a
# skip, where there is no Chromium.
set -euo pipefail
python=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo "skipped: no chromium"; exit 77; }
"$python" "$here/browser.py" "$folder" "$browser"
