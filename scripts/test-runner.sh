#!/usr/bin/env bash
# Starts one program for cargo: `scripts/test.sh` names this script as cargo's runner.
#
#   TAUTLINE_TESTS    `beside`: only programs that may run beside others; `alone`: only the rest; not set: all
#   TAUTLINE_CLAIMS   directory in which one of several runs of cargo claims each program; the others leave it out
set -euo pipefail

# Programs that compute, compile, run kernels in virtual time, or wait for the kernel with minutes to spare. Listed are
# only programs that neither judge measured times nor change or look at the whole machine. Directory of the crate, and
# name of the program without cargo's hash.
is_beside() {
    case $1 in

    taut/prose | taut/rooms) ;;
    c/header | c/packages | c/random_calls | c/tautline_c | mcu/* | python/*) ;;

    tautline-preload/conformance | tautline-preload/packets) ;;
    tautline-capture/* | tautline-derive/* | tautline-exec/* | tautline-flight/* | tautline-proto/* | tautline-shm/*) ;;
    *) return 1 ;;
    esac
}

program=${PWD##*/}/${1##*/}
program=${program%-*}
class=alone
! is_beside "$program" || class=beside
if [[ $class != "${TAUTLINE_TESTS:-$class}" ]] ||
    ! { [[ -z ${TAUTLINE_CLAIMS:-} ]] || mkdir "$TAUTLINE_CLAIMS/${1##*/}" 2>/dev/null; }; then
    echo "left to another run"
    exit 0
fi

# Tests of the conformance suite make hosts of their own and wait for the kernel for most of the time, so four of them
# run at once, on however few CPUs. Others measure time, and keep libtest's default of one for each CPU.
case $program in
*/conformance) export RUST_TEST_THREADS=4 ;;
# Flights look first for what killed ones left, and one in a process namespace sees no process outside.
taut/flight) export RUST_TEST_THREADS=1 ;;
esac
exec "$@"
