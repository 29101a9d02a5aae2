#!/usr/bin/env bash
# Round trips of sockperf at 1 kHz between two network namespaces: as it is, under `taut exec`, and under `taut exec
# --interface`, where its datagrams also come past the kernel's stack while it looks.
#
#   sudo scripts/exec-speed.sh [ROUNDS [SECONDS]]
#
# The ways take turns, on cables of their own. Prints the medians over the rounds of p50, p99 and p99.9 of half a round
# trip, as sockperf gives it, in microseconds. Needs root, ip, taskset, sockperf, and `taut` and its library built for
# release (TAUT names another one). Both ends run at SCHED_FIFO 50; PRIORITY names another priority, 0 the ordinary
# policy. With LOAD=1 stress-ng is busy on both CPUs.
set -euo pipefail

rounds=${1:-7}
seconds=${2:-10}
root=$(cd "$(dirname "$0")/.." && pwd)
taut=${TAUT:-${CARGO_TARGET_DIR:-$root/target}/release/taut}
priority=${PRIORITY:-50}
near=taut-speed-$$-a
far=taut-speed-$$-b
ways=(kernel awake past)
work=$(mktemp -d)
running=()

clean_up() {
    local one
    for one in "${running[@]}"; do
        kill -KILL "$one" 2>/dev/null || true
    done
    wait
    ip netns delete "$near" 2>/dev/null || true
    ip netns delete "$far" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip netns add "$near"
ip netns add "$far"
for cable in 0 1 2; do
    ip -n "$near" link add "taut$cable" type veth peer name "taut$cable" netns "$far"
    ip -n "$near" address add "10.78.$cable.1/24" dev "taut$cable"
    ip -n "$far" address add "10.78.$cable.2/24" dev "taut$cable"
    ip -n "$near" link set "taut$cable" up
    ip -n "$far" link set "taut$cable" up
done
if [[ -n ${LOAD:-} ]]; then
    stress-ng --cpu 2 --timeout 0 --quiet &
    running+=($!)
fi

# How a program is started on a CPU, by way: each has a cable.
command_of() {
    local policy=
    [[ $priority == 0 ]] || policy="chrt -f $priority"
    case $1 in
    0) echo "taskset -c $2 $policy" ;;
    1) echo "taskset -c $2 $policy $taut exec --" ;;
    2) echo "taskset -c $2 $policy $taut exec --interface taut2 --" ;;
    esac
}

turn() {
    local way=$1 address=10.78.$1.2 server
    # Word splitting is meant: the commands are plain words.
    # shellcheck disable=SC2046
    ip netns exec "$far" $(command_of "$way" 1) sockperf server -i "$address" -p 9001 >/dev/null 2>&1 &
    server=$!
    running+=("$server")
    sleep 0.8
    # shellcheck disable=SC2046
    ip netns exec "$near" $(command_of "$way" 0) sockperf ping-pong -i "$address" -p 9001 --mps 1000 -m 64 \
        -t "$seconds" 2>&1 |
        sed 's/\x1b\[[0-9;]*m//g' |
        awk '/percentile 50.000/ { p50 = $NF } /percentile 99.000/ { p99 = $NF } /percentile 99.900/ { p999 = $NF }
             END { print p50, p99, p999 }' >>"$work/$way"
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
}

median() {
    awk -v column="$2" '{ print $column }' "$work/$1" | sort -n |
        awk '{ value[NR] = $1 } END { printf "%.1f", (value[int((NR + 1) / 2)] + value[int((NR + 2) / 2)]) / 2 }'
}

for ((round = 0; round < rounds; round++)); do
    for way in 0 1 2; do
        turn "$way"
    done
done
printf '%-8s %8s %8s %8s\n' "" p50 p99 p99.9
for way in 0 1 2; do
    printf '%-8s %8s %8s %8s\n' "${ways[$way]}" "$(median $way 1)" "$(median $way 2)" "$(median $way 3)"
done
