#!/bin/sh
# Late commands of a robot that sends its state each millisecond and wants the command within 300 µs: loops in Rust, C++
# and Python, each asleep as the kernel has it, the same under `taut exec`, and awake by its own call, in turns,
# alongside a busy process on each CPU.
#
#   scripts/robot-loops.sh PROGRAMS [STATES [ROUNDS]]
#
# PROGRAMS is a directory with robot_peer and robot_loop (cargo build --examples), robot_loop_cpp, robot_loop.py, and a
# link to taut; those that are not there are left out. Both sides have SCHED_FIFO: root, or ulimit -r 99.
set -eu
programs=$1 states=${2:-10000} rounds=${3:-3}
port=7391
load=
trap 'kill $load 2>/dev/null || true' EXIT
for cpu in 0 1; do
    taskset -c $cpu sh -c 'while :; do :; done' &
    load="$load $!"
done
for _ in $(seq "$rounds"); do
    for program in robot_loop robot_loop_cpp robot_loop.py; do
        [ -e "$programs/$program" ] || continue
        for way in kernel exec awake; do
            under=
            if [ $way = exec ]; then
                [ -e "$programs/taut" ] || continue
                under="$programs/taut exec --"
            fi
            case $program in
            robot_loop) set -- "$programs/$program" 127.0.0.1:$port ;;
            *.py) set -- python3 "$programs/$program" $port ;;
            *) set -- "$programs/$program" $port ;;
            esac
            [ $way = awake ] || set -- "$@" kernel
            # shellcheck disable=SC2086 # words of a command, or none
            taskset -c 1 chrt -f 80 $under "$@" >/dev/null &
            sleep 0.5
            printf '%s %s: ' "$program" "$way"
            taskset -c 0 "$programs/robot_peer" 127.0.0.1:$port "$states"
            wait $!
        done
    done
done
