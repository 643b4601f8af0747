#!/usr/bin/env bash
# macros.sh COMPILER INCLUDE_DIR: fails if <tapir/tapir.h> defines a macro without the TAPIR_ prefix.
set -euo pipefail
found=$(echo '#include <tapir/tapir.h>' | "$1" -std=c++20 -I"$2" -I"$2"_gen -x c++ -E -dD - |
    awk '/^# [0-9]/ { ours = index($3, "/include/tapir/") }
         ours && $1 == "#define" && $2 !~ /^TAPIR_/ { print $2 }')
if [[ -n $found ]]; then
    echo "Macros that tapir.h defines without the TAPIR_ prefix:"
    echo "$found"
    exit 1
fi
