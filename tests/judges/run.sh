#!/usr/bin/env bash
# run.sh BUILD JOBS: every judge that is there, whole. A judge that is not there, or is skipped (77), is no failure.
set -uo pipefail
build=$1 jobs=$2 here=$(cd "$(dirname "$0")" && pwd) failed=0
python=$(sed -n 's/^TAPIR_SYSTEM_PYTHON:FILEPATH=//p' "$build/CMakeCache.txt")
judge() {
    "$@"
    local status=$?
    [[ $status == 0 || $status == 77 ]] || failed=1
}
judge "$here/torch/run.sh" "$python" "$build/torch" "$build/tests/judges/libtapir_judges_torch.so" --jobs "$jobs"
if [[ -x $here/onnx/run.sh ]]; then
    judge "$here/onnx/run.sh" "$python" "$build/judges/onnx" "$build/tests/judges/onnx_cases" all
fi
exit $failed
