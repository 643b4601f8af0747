#!/usr/bin/env bash
# onnx_speed.sh [BUILD_DIR] [SECONDS]: compiled graphs beside onnxruntime, on models of torchvision (onnx_speed.py). Fetches PyTorch (2.9 GB),
# torchvision and onnxruntime from PyPI once, into BUILD_DIR/torch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-$here/../build/release}" && pwd)
cmake --build "$build" --target onnx_speed
python=$("$here/../.ci/pytorch" --fetch /usr/bin/python3 "$build/torch")
"$python" -c 'import onnx, onnxruntime, torchvision' 2>/dev/null ||
    "$python" -m pip install -q --disable-pip-version-check torchvision onnx onnxruntime
mkdir -p "$build/bench/onnx_speed.d"
exec "$python" -W ignore "$here/onnx_speed.py" "$build/bench/onnx_speed.d" "$build/bench/onnx_speed" ${2:+"$2"}
