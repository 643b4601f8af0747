#!/usr/bin/env bash
# torch_dir.sh FOLDER: prints the folder with include/ and lib/ of PyTorch, that of the environment of .ci/pytorch in FOLDER, which it makes;
# nothing, and a word on stderr, where none can be had.
set -euo pipefail
python=$("$(dirname "$0")/../.ci/pytorch" --fetch /usr/bin/python3 "$1") || { echo "Going on without PyTorch" >&2; exit 0; }
"$python" -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])' || echo "$python has no PyTorch" >&2
