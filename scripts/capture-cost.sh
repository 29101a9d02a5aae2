#!/usr/bin/env bash
# Cost of `taut capture` for a port that is watched: round trips of `taut ping` to an echo in a network namespace of its
# own, with a capture on the echo's interface and without, in turns.
#
#   sudo scripts/capture-cost.sh [ROUNDS [COUNT [INTERVAL]]]
#
# Prints the median of each turn in microseconds, and the median of both columns with their ratio. Needs root, ip, and
# `taut` built for release (TAUT names another one).
set -euo pipefail

rounds=${1:-20}
count=${2:-3000}
interval=${3:-1ms}
root=$(cd "$(dirname "$0")/.." && pwd)
taut=${TAUT:-${CARGO_TARGET_DIR:-$root/target}/release/taut}
near=taut-cost-$$-a
far=taut-cost-$$-b
work=$(mktemp -d)
children=()

clean_up() {
    for child in "${children[@]}"; do
        kill "$child" 2>/dev/null || true
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
ip -n "$near" link add taut0 type veth peer name taut0 netns "$far"
for name in "$near" "$far"; do
    ip -n "$name" link set taut0 up
done
address=$(ip -n "$far" -brief link show taut0 | awk '{ print $3 }')
ip netns exec "$far" "$taut" echo --interface taut0 >/dev/null &
children+=($!)
sleep 1

# The median of one turn, in nanoseconds.
turn() {
    ip netns exec "$near" "$taut" ping "$address" --interface taut0 --count "$count" --interval "$interval" --json |
        sed -n 's/.*"p50_ns": *\([0-9]*\).*/\1/p' | head -1
}

median() {
    sort -n "$1" | awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int((NR + 2) / 2)]) / 2 }'
}

turn >/dev/null
echo "without   with a capture (us)"
for ((round = 0; round < rounds; round++)); do
    without=$(turn)
    ip netns exec "$far" "$taut" capture --interface taut0 --write "$work/f.pcapng" --overwrite 2>/dev/null &
    capture=$!
    children+=("$capture")
    sleep 0.5
    with=$(turn)
    kill -INT "$capture"
    wait "$capture" || true
    echo "$without" >>"$work/without"
    echo "$with" >>"$work/with"
    awk -v a="$without" -v b="$with" 'BEGIN { printf "%7.2f   %7.2f\n", a / 1000, b / 1000 }'
done
awk -v a="$(median "$work/without")" -v b="$(median "$work/with")" \
    'BEGIN { printf "median: %.2f us without, %.2f us with a capture, ", a / 1000, b / 1000
             printf "%+.1f %%\n", (b / a - 1) * 100 }'
