#!/usr/bin/env bash
# partition.sh PROGRAM [MPIEXEC|go_on]: ranks 0 and 1 are on one machine, rank 2 on another; the link between the machines is cut in the middle of training.
# Every rank names who is missing, its host and the line, and ends with code 75; with go_on, ranks 0 and 1 go on without rank 2, which ends. Machines are
# network namespaces, joined by a bridge. Without MPIEXEC: on Gloo. Ends with code 77 where namespaces cannot be made.
set -euo pipefail
program=$1 mpiexec=${2:-} what=train
[[ $mpiexec != go_on ]] || what=go_on mpiexec=
folder=$(mktemp -d)
id=tapir$$
export folder program what id OMP_NUM_THREADS=1

clean_up() {
    local name
    for name in "$id"n "$id"1 "$id"2; do
        kill -KILL $(ip netns pids "$name" 2>/dev/null) 2>/dev/null || true
        ip netns delete "$name" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap clean_up EXIT
fail() {
    echo "$1" && tail -n +1 "$folder"/said* && exit 1
}

make_machines() {
    local i
    for i in n 1 2; do ip netns add $id$i || return; done
    ip -n "$id"n link add bridge type bridge && ip -n "$id"n link set bridge up || return
    for i in 1 2; do
        ip -n "$id"n link add port$i type veth peer name eth0 netns $id$i || return
        ip -n "$id"n link set port$i master bridge up || return
        ip -n $id$i address add 10.77.0.$i/24 dev eth0 && ip -n $id$i link set eth0 up && ip -n $id$i link set lo up || return
        ip netns exec $id$i unshare -u true || return
    done
}
make_machines || { echo "no network namespaces here" && exit 77; }

# on MACHINE COMMAND...: runs it there, where the host's name is node1 or node2.
cat >"$folder/on" <<'END'
#!/usr/bin/env bash
machine=${1##*.}  # mpirun gives its address
shift
exec ip netns exec "$id$machine" unshare -u bash -c 'hostname "node$0" && eval "$*"' "$machine" "$@"
END
# A rank that mpirun starts: leaves what it says, and its code.
cat >"$folder/rank" <<'END'
#!/usr/bin/env bash
"$program" "$what" "$folder/under_way" >"$folder/said.$1" 2>&1
code=$?
echo $code >"$folder/code.$1"
exit $code
END
chmod +x "$folder/on" "$folder/rank"

if [[ $mpiexec ]]; then
    # mpirun and its daemon do not end before the system has given up to send again what they sent: by default, after a quarter of an hour.
    for i in 1 2; do ip netns exec $id$i bash -c 'echo 5 >/proc/sys/net/ipv4/tcp_retries2'; done
    "$folder/on" 1 "$mpiexec" --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 --mca plm_rsh_agent "$folder/on" \
        --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 --mca btl tcp,self \
        -x folder -x program -x what -x OMP_NUM_THREADS \
        -host 10.77.0.1:2,10.77.0.2:1 -n 3 bash -c "'$folder/rank \$OMPI_COMM_WORLD_RANK'" >"$folder/said" 2>&1 &
else
    export WORLD_SIZE=3 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 TAPIR_GLOO_INTERFACE=eth0
    for i in 0 1 2; do
        RANK=$i "$folder/on" $((i / 2 + 1)) "$folder/rank" $i &
    done
fi

# within SECONDS COMMAND...: waits until it is true.
within() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < end)) || return
        sleep 0.1
    done
}
within 40 test -e "$folder/under_way" || fail "training does not begin"
ip -n "$id"n link set port2 down
for i in 0 1 2; do
    within 30 test -s "$folder/code.$i" || fail "rank $i does not end"
done
left() {
    local process
    for process in $(ip netns pids "$id"1) $(ip netns pids "$id"2); do
        { tr '\0' ' ' <"/proc/$process/cmdline"; } 2>/dev/null || true  # it may have ended
    done
}
nobody_is_left() { [[ ! $(left) ]]; }
within 40 nobody_is_left || fail "processes are left: $(left)"
if [[ $what == go_on ]]; then
    for i in 0 1; do
        [[ $(<"$folder/code.$i") == 0 ]] || fail "rank $i ends with $(<"$folder/code.$i")"
        grep -qE "^rank $i: failures_main.cpp:[0-9]+: all_reduce: .*waited 5 s for rank 2 \(node2\) \(.*step [0-9]+\)" "$folder/said.$i" ||
            fail "rank $i does not name rank 2"
        grep -qF "rank $i has gone on as rank $i of 2" "$folder/said.$i" || fail "rank $i has not gone on"
    done
    [[ $(<"$folder/code.2") == 1 ]] || fail "rank 2 ends with $(<"$folder/code.2")"
    grep -qF "survivors: rank 0, by which the ranks find each other, does not answer" "$folder/said.2" || fail "rank 2 does not say why"
    echo "ranks 0 and 1 have gone on, and rank 2 has not"
    exit
fi
for i in 0 1 2; do
    [[ $(<"$folder/code.$i") == 75 ]] || fail "rank $i ends with $(<"$folder/code.$i")"
    ((i == 2)) && missing="rank 0 (node1), rank 1 (node1)" || missing="rank 2 (node2)"
    grep -qE "^failures_main.cpp:[0-9]+: all_reduce of gradients, .* \((bucket [0-9] of 4, )?step [0-9]+\) waits" "$folder/said.$i" ||
        fail "rank $i does not name its call"
    grep -qF " waits 5 s for $missing: rank $i ends the program" "$folder/said.$i" || fail "rank $i does not name $missing"
done
grep -h " waits " "$folder"/said.*
