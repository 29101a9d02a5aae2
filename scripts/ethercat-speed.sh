#!/usr/bin/env bash
# Cycles of an EtherCAT main device that nobody here wrote (ethercrab) between two network namespaces, against a chain
# of simulated sub-devices: through its own packet socket, through the same socket under `taut exec`, and through a raw
# port; each also beside a TCP stream on the same cable, or beside a busy process on each CPU.
#
#   sudo scripts/ethercat-speed.sh [ROUNDS [CYCLES]]
#
# The ways take turns; the packet socket, with and without `taut exec`, has a cable that nothing is attached to. Prints
# the medians over the rounds of p50, p99 and p99.9 of a cycle's round trip in microseconds, how many of all
# cycles had no answer when the next one began, how many came back with a wrong working counter, and how many turns
# failed. Needs root, ip, taskset, iperf3 for the stream, `taut` and its library, and the programs of
# measure/ethercrab. Release builds, if TAUT and ETHERCRAB (a directory) do not name others. MODE is the demux's:
# native, generic or tc. HOWS, LOADS and WAYS name fewer of them; DEVICES is the length of the chain. With PRIORITY,
# main device and sub-devices run at that real-time priority (SCHED_FIFO).
set -euo pipefail

rounds=${1:-5}
cycles=${2:-2000}
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
taut=${TAUT:-$target/release/taut}
programs=${ETHERCRAB:-$target/ethercrab/release}
mode=${MODE:-native}
near=taut-ethercat-$$-a
far=taut-ethercat-$$-b
work=$(mktemp -d)
above=${PRIORITY:+chrt -f $PRIORITY}
running=()

end_running() {
    local one
    for one in "${running[@]}"; do
        kill -KILL "$one" 2>/dev/null || true
        wait "$one" 2>/dev/null || true
    done
    running=()
}

clean_up() {
    end_running
    ip netns delete "$near" 2>/dev/null || true
    ip netns delete "$far" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip netns add "$near"
ip netns add "$far"
for cable in 0 1; do
    ip -n "$near" link add "taut$cable" numrxqueues 2 numtxqueues 2 type veth \
        peer name "taut$cable" netns "$far" numrxqueues 2 numtxqueues 2
    ip -n "$near" address add "10.79.$cable.1/24" dev "taut$cable"
    ip -n "$far" address add "10.79.$cable.2/24" dev "taut$cable"
    ip -n "$near" link set "taut$cable" up
    ip -n "$far" link set "taut$cable" up
done

# The words by which the main device is started, by way.
command_of() {
    local main="$programs/main_device --cycles $cycles"
    case $1 in
    socket) echo "$main --interface taut1" ;;
    exec) echo "$taut exec -- $main --interface taut1" ;;
    port) echo "$main --interface taut0 --way port --xdp-mode $mode" ;;
    esac
}

cable_of() {
    case $1 in
    port) echo 0 ;;
    *) echo 1 ;;
    esac
}

# One turn: way, wait, load. The stream goes both ways at once, so that questions and answers meet it.
turn() {
    local way=$1 how=$2 load=$3 cable spin='' command
    cable=$(cable_of "$way")
    command=$(command_of "$way")
    [[ $how != spin ]] || spin=--spin
    # Word splitting is meant: the commands are plain words.
    # shellcheck disable=SC2086
    ip netns exec "$far" taskset -c 1 $above "$programs/sub_device" --interface "taut$cable" \
        --count "${DEVICES:-1}" $spin >/dev/null &
    running+=($!)
    if [[ $load == tcp ]]; then
        ip netns exec "$far" iperf3 -s -1 >/dev/null &
        running+=($!)
        sleep 0.3
        ip netns exec "$near" iperf3 -c "10.79.$cable.2" -t 600 --bidir >/dev/null 2>&1 &
        running+=($!)
    fi
    if [[ $load == busy ]]; then
        for one in 0 1; do
            taskset -c $one sh -c 'while :; do :; done' &
            running+=($!)
        done
    fi
    sleep 0.5
    # shellcheck disable=SC2086
    if ! ip netns exec "$near" taskset -c 0 $above timeout 300 $command $spin >>"$work/$how-$load-$way"; then
        # The main device gives up when an answer comes after it has counted the frame as lost.
        echo '{"failed":1}' >>"$work/$how-$load-$way"
    fi
    end_running
}

# A field of each line.
field() {
    grep -o "\"$2\":[0-9]*" "$1" | cut -d: -f2
}

# The median of a field, in microseconds.
median() {
    { field "$1" "$2" || true; } | sort -n |
        awk '{ value[NR] = $1 } END { printf "%.1f", (value[int((NR + 1) / 2)] + value[int((NR + 2) / 2)]) / 2000 }'
}

sum() {
    { field "$1" "$2" || true; } | awk '{ sum += $1 } END { printf "%d", sum }'
}

for ((round = 0; round < rounds; round++)); do
    for load in ${LOADS:-none tcp busy}; do
        for how in ${HOWS:-spin sleep}; do
            for way in ${WAYS:-socket exec port}; do
                turn "$way" "$how" "$load"
            done
        done
    done
done
printf '%-24s %10s %10s %10s %8s %8s %9s %8s\n' "$(uname -r), $mode" "p50 us" "p99 us" "p99.9 us" \
    missed lost uncounted failed
for load in ${LOADS:-none tcp busy}; do
    for how in ${HOWS:-spin sleep}; do
        for way in ${WAYS:-socket exec port}; do
            file=$work/$how-$load-$way
            printf '%-24s %10s %10s %10s %8s %8s %9s %8s\n' "$load $how $way" "$(median "$file" p50_ns)" \
                "$(median "$file" p99_ns)" "$(median "$file" p999_ns)" "$(sum "$file" missed)" "$(sum "$file" lost)" \
                "$(sum "$file" uncounted)" "$(sum "$file" failed)"
        done
    done
done
