#!/usr/bin/env bash
# batched.sh PROGRAM ARGS...: fails unless PROGRAM says with --report that all its ops have run in groups, none one by one for lack of a rule, and
# has with --no-batch, and with TAPIR_BATCH=off, the same loss in its first step, to 1e-5. The first loss that it prints is that of the first step.
# It runs in a folder of its own.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
"$@" --together --report >together 2>&1 || { cat together; exit 1; }
"$@" --no-batch >alone 2>&1 || { cat alone; exit 1; }
TAPIR_BATCH=off "$@" --together --report >off 2>&1 || { cat off; exit 1; }
grep -q '^linear  *[1-9]' together || { cat together; echo "expected a report with groups of linear"; exit 1; }
if grep '^linear  *[1-9]' off; then echo "expected no groups with TAPIR_BATCH=off"; exit 1; fi
if grep -A 20 '^one by one:' together; then echo "expected a report that lists nothing one by one"; exit 1; fi
first_loss() { tr '\r' '\n' <"$1" | grep -oE 'loss( of the first step)? +[0-9.]+' | head -1 | grep -oE '[0-9.]+$'; }
want=$(first_loss alone)
for run in together off; do
    have=$(first_loss $run)
    awk -v have="$have" -v want="$want" 'BEGIN { exit !(want > 0 && (have - want) ^ 2 <= (1e-5 * want) ^ 2) }' ||
        { echo "loss of the first step: $have ($run), and $want one by one"; exit 1; }
done
echo "loss of the first step: $have and $want"
