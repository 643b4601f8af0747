#!/usr/bin/env bash
# clang.sh INCLUDE_DIR...: the public headers compile with clang, too, without warnings. 77, a skip, where there is none.
set -euo pipefail
for compiler in clang++-19 clang++-16 clang++; do
    command -v "$compiler" >/dev/null && break
    compiler=
done
[[ -n $compiler ]] || { echo "skipped: no clang"; exit 77; }
includes=("${@/#/-I}")
for header in tapir graph onnx debug nn/parallel/parallel; do echo "#include <tapir/$header.h>"; done |
    "$compiler" -x c++ -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror "${includes[@]}" -
