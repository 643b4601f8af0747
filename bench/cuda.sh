#!/usr/bin/env bash
# cuda.sh [BUILD_DIR] [--smoke]: times Tapir and PyTorch (Python's, eager) on the GPU and prints one table. Both programs run all
# the time and are asked in turn, work by work (cuda_work.txt); a figure is the median of the rounds. --smoke: tiny sizes,
# once, to see that it runs, on the emulator too. Ends with 77 where there is no CUDA device. Single answers:
# BUILD_DIR/bench-cuda.txt.
#   TAPIR_BENCH_ROUNDS=3       rounds of each work
#   TAPIR_BENCH_ONLY=...       a regular expression on the works' names
#   TAPIR_BENCH_PYTHON=python3 which Python has PyTorch; none: Tapir alone
#   TAPIR_BENCH_TORCH_ARGS=... for cuda_torch.py: "--device cpu" to compare the losses without a GPU
#   TAPIR_SST_DIR=...          the folder with SST's train.txt; default: shared/data/sst beside the source tree, else made trees
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
smoke=
build=$source_dir/build/cuda
for argument in "$@"; do
    if [[ $argument == --smoke ]]; then smoke=--smoke; else build=$(cd "$argument" && pwd); fi
done
rounds=${TAPIR_BENCH_ROUNDS:-3}
[[ $smoke ]] && rounds=1
only=${TAPIR_BENCH_ONLY:-.}
python=${TAPIR_BENCH_PYTHON:-python3}
results=$build/bench-cuda.txt
work_dir=$(mktemp -d)
trap 'rm -rf "$work_dir"; kill $(jobs -p) 2>/dev/null || true' EXIT

# Random trees of SST's sizes: 5 to 33 words (19 on average), words and labels at random.
made_trees() {
    awk 'function random(n) { seed = (seed * 16807) % 2147483647; return int(seed / 2147483647 * n) }
         function tree(n,  left) {
             if (n == 1) return "(" random(5) " w" int(random(4000) * random(4000) / 4000) ")"
             left = 1 + random(n - 1)
             return "(" random(5) " " tree(left) " " tree(n - left) ")"
         }
         BEGIN { seed = 1; for (i = 0; i < 1000; ++i) print tree(5 + random(29)) }'
}
trees="SST's"
export TAPIR_SST_DIR=${TAPIR_SST_DIR:-$source_dir/../shared/data/sst}
if [[ ! -f $TAPIR_SST_DIR/train.txt ]]; then
    trees="made ones (no SST in TAPIR_SST_DIR)"
    made_trees >"$work_dir/train.txt"
    TAPIR_SST_DIR=$work_dir
fi

# A program of each side, with what it reads and writes in the named descriptors.
start() {  # start SIDE COMMAND...
    local side=$1
    shift
    mkfifo "$work_dir/$side.in" "$work_dir/$side.out"
    "$@" <"$work_dir/$side.in" >"$work_dir/$side.out" &
    pid[$side]=$!
    exec {to[$side]}>"$work_dir/$side.in" {from[$side]}<"$work_dir/$side.out"
}
ask() {  # ask SIDE WORK...: prints the answer
    local side=$1 answer
    shift
    printf '%s\n' "$*" >&"${to[$side]}"
    read -r -t 300 -u "${from[$side]}" answer || return 1
    printf '%s\n' "$answer"
}
declare -A pid to from
sides=(tapir)
start tapir "$build/bench/cuda_tapir" $smoke
if [[ $python != none ]]; then
    # shellcheck disable=SC2086
    if "$python" -c 'import torch' 2>"$work_dir/log"; then
        start torch "$python" "$source_dir/bench/cuda_torch.py" $smoke ${TAPIR_BENCH_TORCH_ARGS:-}
        sides+=(torch)
    else
        echo "cuda.sh: $python has no PyTorch (see TAPIR_BENCH_PYTHON): its column stays empty" >&2
    fi
fi

trim() { sed 's/^ *//; s/ *$//' <<<"$1"; }
trap '' PIPE
: >"$results"
failed=0
for ((round = 1; round <= rounds; ++round)); do
    while IFS='|' read -r name unit goal full small; do
        name=$(trim "$name")
        [[ $name && $name != \#* && $name =~ $only ]] || continue
        work=$(trim "${full}")
        [[ $smoke ]] && work=$(trim "$small")
        for side in "${sides[@]}"; do
            if ! answer=$(ask $side "$work" 2>/dev/null); then
                status=0
                wait "${pid[$side]}" || status=$?
                [[ $side == tapir && $status == 77 ]] && exit 77
                echo "cuda.sh: $side ended with $status, or took too long, at $name" >&2
                exit 1
            fi
            case $answer in
                ok\ *) printf '%s|%s|%s|%s|%s\n' "$name" "$(trim "$unit")" "$(trim "$goal")" "$side" "${answer#ok }" >>"$results" ;;
                none) ;;
                *) echo "cuda.sh: $side, $name: $answer" >&2; failed=1 ;;
            esac
        done
    done <"$source_dir/bench/cuda_work.txt"
done

awk -F'|' -v smoke="$smoke" '
function value(unit, seconds, amount) {
    if (unit == "us") return seconds * 1e6
    if (unit == "ms") return seconds * 1e3
    if (unit == "GB/s") return amount / seconds / 1e9
    if (unit == "TFLOP/s") return amount / seconds / 1e12
    return amount / seconds
}
function median(list,  n, i, j, t, v) {
    n = split(list, v, " ")
    for (i = 1; i <= n; ++i) for (j = i + 1; j <= n; ++j) if (v[j] + 0 < v[i] + 0) { t = v[i]; v[i] = v[j]; v[j] = t }
    return n == 0 ? "" : v[int((n + 1) / 2)]
}
function show(x) { return x == "" ? "" : sprintf("%.4g", x) }
{
    if (!($1 in unit)) { order[++rows] = $1; unit[$1] = $2; goal[$1] = $3 }
    split($5, part, " ")
    list[$1, $4] = list[$1, $4] " " value($2, part[1], part[2])
    check[$1, $4] = part[3]
}
END {
    launch = median(list["launch", "tapir"])
    copy = median(list["copy/1GB", "tapir"])
    other = median(list["copy/1GB", "torch"])
    if (other != "" && other + 0 > copy + 0) copy = other
    printf "| work | unit | Tapir | PyTorch | ratio | goal | met |\n|---|---|---|---|---|---|---|\n"
    for (i = 1; i <= rows; ++i) {
        name = order[i]
        tapir = median(list[name, "tapir"])
        torch = median(list[name, "torch"])
        rate = unit[name] ~ /\/s$/
        ratio = tapir == "" || torch == "" ? "" : rate ? tapir / torch : torch / tapir
        split(goal[name], g, " ")
        text = met = ""
        if (g[1] == "launch" && launch != "") {
            text = sprintf("<= %.4g", launch + 1)
            if (torch != "" && torch / 2 < launch + 1) text = sprintf("<= %.4g", torch / 2)
            met = tapir <= launch + 1 && torch != "" ? (tapir <= torch / 2 ? "yes" : "no") : tapir <= launch + 1 ? "" : "no"
        } else if (g[1] == "copy" && copy != "") {
            text = sprintf(">= %.4g", g[2] * copy)
            met = tapir >= g[2] * copy ? "yes" : "no"
        } else if (g[1] == "torch") {
            text = "ratio " g[2]
            if (ratio != "") met = ratio >= g[2] ? "yes" : "no"
        }
        if (smoke) met = ""
        printf "| %s | %s | %s | %s | %s | %s | %s |\n", name, unit[name], show(tapir), show(torch), show(ratio), text, met
        a = check[name, "tapir"]
        b = check[name, "torch"]
        if (torch != "" && tapir != "" && (a - b > 0.01 * (b < 0 ? -b : b) || b - a > 0.01 * (b < 0 ? -b : b))) {
            printf "%s: the losses differ: Tapir has %s, PyTorch %s\n", name, a, b > "/dev/stderr"
            bad = 1
        }
    }
    if (smoke) print "Tiny sizes: the figures mean nothing."
    exit bad
}' "$results" || failed=1
echo "Trees: $trees."
exit $failed
