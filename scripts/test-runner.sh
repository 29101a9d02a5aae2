#!/usr/bin/env bash
# Starts one program for cargo: `scripts/test.sh` names this script as cargo's runner.
#
# Tests of the conformance suite make hosts of their own and wait for the kernel for most of the time, so four of them
# run at once, on however few CPUs. Others measure time, and keep libtest's default of one for each CPU.
set -euo pipefail

case ${1##*/} in
conformance-*) export RUST_TEST_THREADS=4 ;;
# Flights look first for what killed ones left, and one in a process namespace sees no process outside.
flight-*) export RUST_TEST_THREADS=1 ;;
esac
exec "$@"
