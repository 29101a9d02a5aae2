#!/usr/bin/env bash
# Round trips of an unmodified UDP program between two network namespaces: with its sockets taken by `taut exec`, with
# the library loaded and its sockets left to the kernel, and without. Both ends spin, or both wait: in recvfrom, or in
# one of poll, select and epoll_wait before it.
#
#   sudo scripts/exec-speed.sh [ROUNDS [COUNT]]
#
# The ways take turns; the kernel's have a cable that nothing is attached to. Prints the medians over the rounds of
# p50 and p99 in microseconds, and the ratios of p50. Needs root, ip, taskset, a C compiler, and `taut` and its library
# built for release (TAUT names another one). With SOCKPERF=1 sockperf measures besides, HOWS names fewer ways to wait,
# and MODE is the demux's: native, generic or tc.
set -euo pipefail

rounds=${1:-11}
count=${2:-20000}
root=$(cd "$(dirname "$0")/.." && pwd)
taut=${TAUT:-${CARGO_TARGET_DIR:-$root/target}/release/taut}
near=taut-speed-$$-a
far=taut-speed-$$-b
work=$(mktemp -d)
server=

clean_up() {
    [[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
    wait
    ip netns delete "$near" 2>/dev/null || true
    ip netns delete "$far" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"${CC:-cc}" -O2 -o "$work/round_trip" "$root/crates/tautline-preload/tests/round_trip.c"
ip netns add "$near"
ip netns add "$far"
for cable in 0 1; do
    ip -n "$near" link add "taut$cable" numrxqueues 2 numtxqueues 2 type veth \
        peer name "taut$cable" netns "$far" numrxqueues 2 numtxqueues 2
    ip -n "$near" address add "10.78.$cable.1/24" dev "taut$cable"
    ip -n "$far" address add "10.78.$cable.2/24" dev "taut$cable"
    ip -n "$near" link set "taut$cable" up
    ip -n "$far" link set "taut$cable" up
done

printf 'interface = "taut0"\nlink = "xdp"\nxdp_mode = "%s"\n' "${MODE:-native}" >"$work/node.toml"

# How a program is started, and at which address its server is, by way: port, left, kernel.
command_of() {
    case $1 in
    kernel) ;;
    *) echo "$taut exec --config $work/node.toml --" ;;
    esac
}

address_of() {
    case $1 in
    port) echo 10.78.0.2 ;;
    *) echo 10.78.1.2 ;;
    esac
}

# One turn: way, server and client, of which the client writes its figures.
turn() {
    local way=$1 serves=$2 asks=$3 command
    command=$(command_of "$way")
    # Word splitting is meant: the commands are plain words.
    # shellcheck disable=SC2086
    ip netns exec "$far" taskset -c 1 $command $serves >/dev/null 2>&1 &
    server=$!
    sleep 0.6
    # shellcheck disable=SC2086
    ip netns exec "$near" taskset -c 0 timeout 60 $command $asks
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    server=
}

round_trip() {
    local way=$1 how=$2 bytes=$3 address
    address=$(address_of "$way")
    turn "$way" "$work/round_trip echo $address 9000 $how" \
        "$work/round_trip ask $address 9000 $how $bytes $count" >>"$work/$how-$bytes-$way"
}

# sockperf's own figures, doubled: median and 99th percentile of a round trip in nanoseconds.
sockperf_turn() {
    local way=$1 how=$2 bytes=$3 address
    local options=
    [[ $how == spin || $how == block ]] || return 0
    [[ $how == block ]] || options=--nonblocked
    address=$(address_of "$way")
    turn "$way" "sockperf server -i $address -p 9001 $options" \
        "sockperf ping-pong -i $address -p 9001 -t 1 -m $bytes $options" |
        awk '/percentile 50.000/ { p50 = $NF } /percentile 99.000/ { p99 = $NF }
             END { printf "%d %d\n", p50 * 2000, p99 * 2000 }' >>"$work/sockperf-$how-$bytes-$way"
}

# The median of a column, in microseconds.
median() {
    awk -v column="$2" '{ print $column }' "$1" | sort -n |
        awk '{ value[NR] = $1 } END { printf "%.2f", (value[int((NR + 1) / 2)] + value[int((NR + 2) / 2)]) / 2000 }'
}

table() {
    local name way
    printf '%-20s %8s %8s %8s %8s %8s %8s %12s %12s\n' "" port p99 left p99 kernel p99 port/kernel left/kernel
    for name in "$@"; do
        printf '%-20s' "$name"
        for way in port left kernel; do
            printf ' %8s %8s' "$(median "$work/$name-$way" 1)" "$(median "$work/$name-$way" 2)"
        done
        awk -v port="$(median "$work/$name-port" 1)" -v left="$(median "$work/$name-left" 1)" \
            -v kernel="$(median "$work/$name-kernel" 1)" \
            'BEGIN { printf " %12.2f %12.2f\n", port / kernel, left / kernel }'
    done
}

names=()
for how in ${HOWS:-spin block poll select epoll}; do
    for bytes in 64 1400; do
        for ((round = 0; round < rounds; round++)); do
            for way in port left kernel; do
                round_trip "$way" "$how" "$bytes"
                [[ -z ${SOCKPERF:-} ]] || sockperf_turn "$way" "$how" "$bytes"
            done
        done
        names+=("$how-$bytes")
        [[ ! -e $work/sockperf-$how-$bytes-kernel ]] || names+=("sockperf-$how-$bytes")
    done
done
table "${names[@]}"
