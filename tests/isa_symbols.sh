#!/usr/bin/env bash
# isa_symbols.sh ISA OBJECT...: fails if a kernel object defines a function that the linker may merge with another
# file's (a weak symbol, from an inline function or a template) outside namespace tapir::kernels::ISA. An older machine
# could then run the newer machine's copy of it.
set -euo pipefail
isa=$1
shift
shared=$(nm -C --defined-only -A "$@" | awk '$2 == "W" || $3 == "W"' | grep -v "tapir::kernels::$isa::" || true)
if [[ -n $shared ]]; then
    echo "Functions compiled for $isa that other files may share; move them into tapir::kernels::TAPIR_ISA:"
    echo "$shared"
    exit 1
fi
