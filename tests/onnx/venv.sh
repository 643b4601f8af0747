# Sourced: need_venv PYTHON FOLDER makes FOLDER/venv with onnx and onnxruntime where it is not there; 77, a skip, where they cannot be had.
skip() { echo "skipped: $1"; exit 77; }

need_venv() {
    local python=$1 folder=$2
    mkdir -p "$folder"
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
}
