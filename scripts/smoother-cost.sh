#!/usr/bin/env bash
# CPU time that a smoother costs one TCP stream of 884 Mbit/s between two network namespaces on a virtual cable of a
# gigabit: both ends, all interrupts, in rounds of each kind, as the time that no CPU was idle. Needs root and iperf3.
#
#   scripts/smoother-cost.sh TAUT [ROUNDS [SECONDS]]
set -euo pipefail
export LC_ALL=C

taut=${1:?which taut? for example target/release/taut}
rounds=${2:-3}
seconds=${3:-5}
readonly sizes=(1 4 8 16 64)
readonly away=tautcost-$$-a here=tautcost-$$-b
directory=$(mktemp --directory)
server=
smoothers=()

clean_up() {
    smoothers_off
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    ip netns delete "$away" || true
    ip netns delete "$here" || true
    rm -r "$directory"
}
inside() { ip netns exec "$@"; }
smoothers_on() {
    for side in "$away" "$here"; do
        inside "$side" "$taut" smooth run --config "$directory/$side.toml" >"$directory/$side.log" 2>&1 &
        smoothers+=($!)
    done
    sleep 2
}
smoothers_off() {
    for side in "$away" "$here"; do
        inside "$side" "$taut" smooth stop taut0 >/dev/null 2>&1 || true
    done
    ((${#smoothers[@]} == 0)) || wait "${smoothers[@]}" || true
    smoothers=()
}

ip netns add "$away"
ip netns add "$here"
trap clean_up EXIT
ip link add taut0 netns "$away" type veth peer name taut0 netns "$here"
number=0
for side in "$away" "$here"; do
    number=$((number + 1))
    ip -n "$side" link set taut0 address "02:00:00:00:00:0$number"
    ip -n "$side" address add "10.8.0.$number/24" dev taut0
    ip -n "$side" link set taut0 up
    cat >"$directory/$side.toml" <<FILE
interface = "taut0"
[smoother]
capacity_bps = 1_000_000_000
[[neighbour]]
name = "other"
mac = "02:00:00:00:00:0$((3 - number))"
FILE
done
ip netns exec "$here" iperf3 --server >/dev/null 2>&1 &
server=$!
sleep 1
sleep 2

# The most frames of a segment; TCP asks for it when a route is looked up.
segments() {
    ip -n "$away" link set taut0 gso_max_segs "$1"
    inside "$away" sysctl --quiet --write net.ipv4.route.flush=1
}
idle_ticks() { awk '/^cpu / { print $5 + $6 }' /proc/stat; }
measure() {
    local name=$1 idle start
    shift
    idle=$(idle_ticks)
    start=$(date +%s%N)
    "$@" >"$directory/output"
    awk -v name="$name" -v idle=$(($(idle_ticks) - idle)) -v ns=$(($(date +%s%N) - start)) \
        -v cpus="$(nproc)" -v hz="$(getconf CLK_TCK)" -v rate="$(awk '/receiver/ { print $7 }' "$directory/output")" \
        'BEGIN { printf "%-24s %6.1f %% of a CPU %8s Mbit/s\n", name, 100 * (cpus - idle / hz / (ns / 1e9)), rate }'
}
stream() {
    inside "$away" iperf3 --client 10.8.0.2 --congestion cubic --bitrate 884M --time "$seconds" --format m
}

for _ in $(seq "$rounds"); do
    segments 65535
    measure "nothing" sleep "$seconds"
    measure "no smoother" stream
    segments 4
    measure "no smoother, 4 frames" stream
    smoothers_on
    measure "smoothers alone" sleep "$seconds"
    for size in "${sizes[@]}"; do
        segments "$size"
        measure "smoothers, $size frames" stream
    done
    smoothers_off
done
