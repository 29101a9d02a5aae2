#!/bin/sh
# Frames on a virtual CAN interface, one each millisecond, for candump and for a reader that measures how late it is: on
# the kernel, under `taut exec`, and on the kernel again. Then calls on CAN sockets with and without it.
#
#   scripts/can.sh TAUT CAN [FRAMES [CASES]]
#
# CAN is measure/programs/can.c, CASES crates/tautline-awake-preload/tests/semantics/cases.c, both compiled. Needs root,
# two CPUs, ip, taskset, can-utils, and a kernel with vcan: it is meant for a guest of the lab, which
# `cargo test -p taut-lab --test long can::` makes.
set -eu
taut=$1
can=$2
frames=${3:-1000}
cases=${4:-}
interface=vcan0
exec="$taut exec --report --"
watch="$taut exec --watch --"

work=$(mktemp -d)
ip link add $interface type vcan
trap 'ip link del $interface; rm -r "$work"' EXIT
ip link set $interface up

# Runs a program on the second CPU while a sender works on the first one.
# shellcheck disable=SC2086 # words
receive() {
    sender=$1 way=$2
    shift 2
    taskset -c 1 $way "$@" &
    receiver=$!
    sleep 0.5 # until it listens
    case $sender in
    cangen) taskset -c 0 cangen $interface -g 1 -I i -L 8 -D i -n "$frames" ;;
    clock) taskset -c 0 "$can" send $interface "$frames" ;;
    esac
    wait $receiver
}

# candump must print what it prints on the kernel.
dump() {
    receive "$1" "$3" candump -n "$frames" $interface >"$work/$1-$2"
    echo "candump, $1, $2: $(grep -c ' \[8\] ' "$work/$1-$2") frames"
    cmp "$work/$1-kernel" "$work/$1-$2"
}

measure() {
    echo "read, $1:"
    receive clock "$2" "$can" read $interface "$frames"
}

for sender in cangen clock; do
    dump "$sender" kernel ''
    dump "$sender" exec "$exec"
    dump "$sender" watch "$watch"
done
measure kernel ''
measure exec "$exec"
measure 'kernel again' ''

[ -n "$cases" ] || exit 0
export CASES_CAN=$interface
for case in receives timeout eintr restart close dup2 shutdown cancel fork two_threads dontwait nonblocking peek truncated \
    recvmsg recvmmsg readv poll_timeout poll_finds poll_signal select select_receives pselect epoll epoll_edge \
    option_later copies polled_twice; do
    expected=$("$cases" $case)
    found=$("$taut" exec -- "$cases" $case)
    if [ "$found" != "$expected" ]; then
        echo "$case: '$expected' became '$found'" >&2
        exit 1
    fi
    echo "$case: $expected"
done
