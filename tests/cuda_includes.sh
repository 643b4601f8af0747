#!/usr/bin/env bash
# cuda_includes.sh SOURCE_DIR: fails if a file outside of cuda/ includes a header of CUDA, or one of cuda/'s own. The emulator,
# which stands in for these headers, and the device's own tests may.
set -euo pipefail
cd "$1"
[[ -f cuda/context.h ]] || { echo "$1 is not the source tree" >&2; exit 2; }
folders=(tapir.h graph.h onnx.h debug.h runtime.h core autograd ops nn optim examples bench tests)
headers='cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvrtc|nvToolsExt|nvtx|driver_types|device_launch|thrust/|cub/|mma\.h|tapir/cuda/'
found=$(grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($headers)" "${folders[@]}" |
    grep -vE '^tests/cuda(_emulator)?/' || true)
if [[ $found ]]; then
    echo "Only cuda/ and its tests may include CUDA's headers and cuda/'s own; these do too:"
    echo "$found"
    exit 1
fi
