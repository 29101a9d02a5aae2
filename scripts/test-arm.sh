#!/usr/bin/env bash
# Compiles everything for ARM without linking it (cargo check), and runs the tests of the protocol and of port memory
# there, each program in QEMU's user-mode emulation. `make test-arm` also boots a machine with a kernel for arm64.
#
#   scripts/test-arm.sh [--no-check] [ARCHITECTURE...]
#
# The architectures are arm64 and armhf (ARMv7 with hardware floating point), both if none is named. For armhf the
# library of `taut exec` is left out: it is for 64-bit processors. --no-check runs the tests only. The tests of links
# are not run in this way: the emulation lacks bpf(2), AF_XDP, asynchronous I/O, by which V-Bus wakes, and
# options of sockets that link udp needs (QEMU 7.2).
set -euo pipefail
export LC_ALL=C CARGO_TERM_COLOR=never
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Seeds of the simulated networks. Lower: less is tried. Higher: an emulated processor takes longer; the same code runs
# with many seeds on the machine's own.
readonly seeds=100

# Static programs: an emulated one would look for its libraries below the emulator's prefix, and for all other files
# too.
readonly static="-C target-feature=+crt-static -C strip=debuginfo"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64-static
export CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_RUNNER=qemu-arm-static

check=yes
architectures=()
while (($#)); do
    case $1 in
    --no-check) check=no ;;
    arm64 | armhf) architectures+=("$1") ;;
    *)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2
        exit 2
        ;;
    esac
    shift
done
((${#architectures[@]})) || architectures=(arm64 armhf)

for architecture in "${architectures[@]}"; do
    case $architecture in
    arm64) whole=aarch64-unknown-linux-gnu target=aarch64-unknown-linux-musl linker=rust-lld left_out=() ;;
    armhf)
        whole=armv7-unknown-linux-gnueabihf target=$whole linker=arm-linux-gnueabihf-gcc
        left_out=(--exclude tautline-awake-preload)
        ;;
    esac
    if [[ $check == yes ]]; then
        echo "test-arm: $architecture: the whole workspace"
        cargo check --locked --workspace "${left_out[@]}" --target "$whole"
    fi
    echo "test-arm: $architecture: tests of the protocol and of port memory"
    flags=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$target")_RUSTFLAGS
    # Not the cells of the smoother, which an emulated processor computes for many minutes.
    env TAUTLINE_SIM_SEEDS=$seeds "$flags=-C linker=$linker $static" \
        cargo test --locked --target "$target" -p tautline-proto -p tautline-shm \
        --lib --test wire -- --skip smoother::
done
