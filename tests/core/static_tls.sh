#!/usr/bin/env bash
# static_tls.sh LIBRARY: a program may load Tapir by dlopen(), as a module of Python. Then its thread_local variables that are read without a call
# lie in memory that glibc sets aside at the start for all such libraries: 1,664 bytes, of which PyTorch leaves about 1,500.
set -euo pipefail
most=1408
bytes=$(($(readelf -lW "$1" | awk '$1 == "TLS" { print $6 }')))
echo "thread_local variables of $(basename "$1"): $bytes bytes of $most"
((bytes > 0 && bytes <= most))
