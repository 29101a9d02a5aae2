#!/bin/sh
# The rate of a TCP stream over a virtual cable, untouched and with a demux at both ends, in turns.
#
#   scripts/tcp-beside-demux.sh TAUT [TURNS [MEGABYTES]]
#
# Needs root, ip and iperf3. It is meant for a guest of the lab, where time is counted in instructions
# (docs/explanation/performance.md): on a real machine, `taut bench ordinary` does the same and more.
set -eu
taut=$1
turns=${2:-3}
megabytes=${3:-60}

ip netns add taut-a
ip netns add taut-b
trap 'ip netns del taut-a; ip netns del taut-b' EXIT
ip link add va netns taut-a type veth peer name vb netns taut-b
for end in a b; do
    ip -n taut-$end link set lo up
    ip -n taut-$end link set v$end up
done
ip -n taut-a addr add 10.0.0.1/24 dev va
ip -n taut-b addr add 10.0.0.2/24 dev vb
sleep 1

stream() {
    ip netns exec taut-b iperf3 --server --one-off >/dev/null 2>&1 &
    server=$!
    sleep 1
    ip netns exec taut-a iperf3 --client 10.0.0.2 --bytes "${megabytes}M" --format m | grep receiver |
        sed "s/^/$1: /"
    kill $server 2>/dev/null || true
    wait $server || true
}

stream 'not counted' # the first one fills caches
while [ "$turns" -gt 0 ]; do
    stream untouched
    ip netns exec taut-a "$taut" recv 7 --interface va --link xdp --timeout 1000s &
    one=$!
    ip netns exec taut-b "$taut" recv 7 --interface vb --link xdp --timeout 1000s &
    other=$!
    sleep 3
    stream 'with demux'
    kill $one $other
    wait $one || true
    wait $other || true
    turns=$((turns - 1))
done
