#!/bin/sh
# Finds what the machine lacks to build, demonstrate or test Tautline, and installs it.
#
#   scripts/setup.sh [--for build|check|packages|arm|demo|test] [--check]
#
# Looks for the commands, headers and compiler targets themselves, never for package names, so
# it is content with whatever provides them. What is missing is installed with apt where this
# runs as root on a Debian-like system; everywhere else the exact command is printed and the
# exit status is 1. It prints one line when nothing is missing.
#
#   --for SET       build: compilers and headers. check: build, and the runner of the tests.
#                   packages: build, and what packages are made and tried with.
#                   arm: build, and what builds and emulates programs for ARM.
#                   demo (default): build, and what the demo runs.
#                   test: demo, and what the tests run.
#   --check         only look: print what is missing and install nothing.
#
# Assumes a POSIX shell, coreutils, sed and grep, and nothing else. A Rust toolchain is never
# installed: how to get one is the user's choice, and this says what the choices are.
set -eu

LC_ALL=C
export LC_ALL
# Administrators' directories are missing from an ordinary user's PATH on Debian, and rustup's
# until the next login.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
export PATH

root=$(cd "$(dirname "$0")/.." && pwd)
set_name=demo
check_only=no
missing_packages=
missing_what=
work=

# Longest wait for another package manager. Lower: the first update of a fresh machine is not waited for. Higher: one
# that hangs is found later.
lock_seconds_max=${TAUTLINE_LOCK_SECONDS_MAX:-900}
# Time between two looks at its lock.
lock_look_seconds=2

main() {
    parse_arguments "$@"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    # First what cannot be installed here, before much else is.
    check_rust
    find_missing
    if [ -n "$missing_packages" ]; then
        report_missing
        [ "$check_only" = no ] || exit 1
        install_packages
        find_missing
        if [ -n "$missing_packages" ]; then
            report_missing
            fail "still missing after the installation of the packages above"
        fi
    fi
    check_bpf_compiles
    if [ "$set_name" = check ]; then
        check_cargo_tools cargo-nextest@0.9.114
    elif [ "$set_name" = test ]; then
        find_fast_dds
        check_rust_components
        check_rust_targets
        check_cargo_tools cargo-nextest@0.9.114 cargo-deny@0.20.2 cargo-cyclonedx@0.5.9
    fi
    echo "set-up: all there for $set_name"
}

parse_arguments() {
    while [ $# -gt 0 ]; do
        case "$1" in
        --for)
            [ $# -ge 2 ] || usage
            case "$2" in
            build | check | packages | arm | demo | test) set_name=$2 ;;
            *) usage ;;
            esac
            shift 2
            ;;
        --check)
            check_only=yes
            shift
            ;;
        *) usage ;;
        esac
    done
}

usage() {
    echo "usage: scripts/setup.sh [--for build|check|packages|arm|demo|test] [--check]" >&2
    exit 2
}

# The one table of needs: Debian's packages, what for, and how to tell that it is there.
find_missing() {
    missing_packages=
    missing_what=
    need "gcc libc6-dev" "a C compiler that links (cc)" links_c
    need "clang" "clang with the bpf target" clang_targets_bpf
    need "libbpf-dev" "libbpf's headers (bpf/bpf_helpers.h)" has_header bpf/bpf_helpers.h
    need "linux-libc-dev" "the kernel's headers (linux/bpf.h, asm/types.h)" has_kernel_headers
    need "ca-certificates" "root certificates, for cargo's downloads" has_certificates
    case "$set_name" in build | check) return 0 ;; esac
    if [ "$set_name" = arm ]; then
        need "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross" "a C compiler for armhf" has_commands arm-linux-gnueabihf-gcc
        need "qemu-user-static" "qemu-aarch64-static and qemu-arm-static" has_commands qemu-aarch64-static qemu-arm-static
        return 0
    fi
    if [ "$set_name" != demo ]; then
        need "dpkg-dev" "dpkg-shlibdeps" has_commands dpkg-shlibdeps
        need "binutils" "strip and nm" has_commands strip nm
    fi
    if [ "$set_name" = packages ]; then
        need "debootstrap" "debootstrap" has_commands debootstrap
        return 0
    fi

    need "iproute2" "ip and ss" has_commands ip ss
    need "iperf3" "iperf3" has_commands iperf3
    need "ethtool" "ethtool" has_commands ethtool
    [ "$set_name" = test ] || return 0

    need "shellcheck" "shellcheck" has_commands shellcheck
    need "iputils-ping" "ping" has_commands ping
    # Ordinary peers of plain UDP.
    need "python3" "python3" has_commands python3
    # A simulator and a ground station that the flight is held against run in virtual environments.
    need "python3-venv" "Python's venv" makes_environments
    need "socat" "socat" has_commands socat
    # Programs that the tests run under `taut exec`.
    need "bind9-dnsutils" "dig" has_commands dig
    need "dnsmasq-base" "dnsmasq" has_commands dnsmasq
    need "sockperf" "sockperf" has_commands sockperf
    need "cyclonedds-tools" "ddsperf" has_commands ddsperf
    need "can-utils" "candump and cangen" has_commands candump cangen
    # A container without a daemon.
    need "crun" "crun" has_commands crun
    # C programs are compiled as their authors would, and run under valgrind.
    need "pkgconf" "pkg-config" has_commands pkg-config
    # So are C++ programs, by cmake.
    need "g++" "g++" has_commands g++
    need "cmake make" "cmake and make" has_commands cmake make
    need "valgrind" "valgrind" has_commands valgrind
    # The unit of the control process is read by it.
    need "systemd" "systemd-analyze" has_commands systemd-analyze
    # Captured files are read by it, with our dissector.
    need "tshark" "tshark" has_commands tshark
    # The pages are looked at in a real browser, kernels are booted, the probe is held against another.
    need "chromium" "a headless browser (chromium)" has_browser
    need "qemu-system-x86" "qemu-system-x86_64" has_commands qemu-system-x86_64
    # Guests are built and run, and firmware on a simulated board.
    need "qemu-system-arm" "qemu-system-aarch64 and qemu-system-arm" has_commands qemu-system-aarch64 qemu-system-arm
    need "qemu-system-misc" "qemu-system-riscv32" has_commands qemu-system-riscv32
    need "lld" "ld.lld" has_commands ld.lld
    # The header for firmware is run beside it.
    need "liblwip-dev" "lwIP (lwip/lwip/netif.h)" has_header lwip/lwip/netif.h
    need "rt-tests" "cyclictest" has_commands cyclictest
}

# A second implementation of DDS for the topics of ROS 2. Not a need: not every distribution has its version 2, which
# has this header.
find_fast_dds() {
    has_header fastrtps/config.h && return 0
    if [ "$check_only" = no ] && [ "$(id -u)" = 0 ] && has_commands apt-get apt-cache; then
        apt-cache show libfastrtps-dev >/dev/null 2>&1 || run_apt update
        if apt-cache show libfastrtps-dev >/dev/null 2>&1; then
            echo "set-up: apt-get install -y --no-install-recommends libfastrtps-dev"
            run_apt install -y --no-install-recommends libfastrtps-dev
            return 0
        fi
    fi
    echo "set-up: no Fast DDS 2 (Debian: libfastrtps-dev); what needs it will be skipped"
}

need() {
    need_packages=$1
    need_what=$2
    shift 2
    "$@" && return 0
    missing_packages="$missing_packages $need_packages"
    missing_what="$missing_what
  $need_what"
}

has_commands() {
    for command_name in "$@"; do
        command -v "$command_name" >/dev/null 2>&1 || return 1
    done
}

links_c() {
    echo 'int main(void) { return 0; }' >"$work/link.c"
    "${CC:-cc}" -o "$work/link" "$work/link.c" >/dev/null 2>&1
}

clang_targets_bpf() {
    : >"$work/empty.c"
    "${CLANG:-clang}" -target bpf -O2 -c -o "$work/empty.o" "$work/empty.c" >/dev/null 2>&1
}

has_kernel_headers() {
    has_header linux/bpf.h && has_header asm/types.h
}

has_header() {
    for directory in /usr/local/include /usr/include /usr/include/*-linux-*; do
        [ ! -r "$directory/$1" ] || return 0
    done
    return 1
}

has_certificates() {
    for file in "${CARGO_HTTP_CAINFO:-}" "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt \
        /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
        [ -z "$file" ] || [ ! -s "$file" ] || return 0
    done
    return 1
}

makes_environments() {
    has_commands python3 && python3 -c 'import ensurepip, venv' 2>/dev/null
}

has_browser() {
    has_commands chromium || has_commands chromium-browser || has_commands google-chrome
}

report_missing() {
    echo "set-up: missing for $set_name:$missing_what"
}

install_packages() {
    # Word splitting is meant: the list holds plain package names.
    # shellcheck disable=SC2086
    set -- $missing_packages
    install="apt-get install -y --no-install-recommends $*"
    if ! has_commands apt-get; then
        fail "install what is missing with this system's package manager (on Debian: $install)"
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "set-up: to install it, run" >&2
        echo "  sudo sh -c 'apt-get update && $install'" >&2
        exit 1
    fi
    echo "set-up: apt-get update && $install"
    run_apt update
    run_apt install -y --no-install-recommends "$@"
}

# Runs apt-get, which is asked to be quiet; its whole output is shown when it fails. While another package manager
# holds one of apt's locks (package lists, archives, dpkg), it is run again and again: a fresh cloud machine updates
# itself in its first minutes. apt's own DPkg::Lock::Timeout does not wait for the lock of the package lists.
run_apt() {
    waited=0
    until DEBIAN_FRONTEND=noninteractive apt-get -q "$@" >"$work/apt.log" 2>&1 </dev/null; do
        if [ "$waited" -ge "$lock_seconds_max" ] || ! grep -q '^E: .*[Cc]ould not get lock' "$work/apt.log"; then
            cat "$work/apt.log" >&2
            fail "apt-get $1 failed; what it said is above"
        fi
        if [ "$waited" = 0 ]; then
            sed -n 's/^E: .*[Cc]ould not get lock \([^ ]*\)\. It is held by \(.*\)$/set-up: waiting for \2, which holds \1/p' \
                "$work/apt.log"
            echo "set-up: apt-get $1 waits for another package manager, at most $lock_seconds_max s"
        fi
        sleep "$lock_look_seconds"
        waited=$((waited + lock_look_seconds))
    done
}

# Compiler and headers may each be there and still not fit together.
check_bpf_compiles() {
    cat >"$work/probe.c" <<'END'
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int probe(struct xdp_md *context) { return XDP_PASS; }
END
    set --
    for directory in /usr/include/*-linux-*; do
        [ ! -d "$directory/asm" ] || set -- "$@" -idirafter "$directory"
    done
    if ! "${CLANG:-clang}" -target bpf -O2 -g "$@" -c -o "$work/probe.o" "$work/probe.c" \
        2>"$work/clang.log"; then
        cat "$work/clang.log" >&2
        fail "clang does not compile a three-line BPF program; what it said is above"
    fi
}

check_rust() {
    oldest=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
    if ! has_commands cargo rustc; then
        no_rust "there is no Rust toolchain (cargo, rustc)"
    fi
    if ! version=$(cd "$root" && rustc --version 2>&1); then
        echo "$version" >&2
        no_rust "rustc does not run; what it said is above"
    fi
    version=$(echo "$version" | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
    if ! at_least "$version" "$oldest"; then
        no_rust "rustc ${version:-of unknown version} is too old"
    fi
}

no_rust() {
    echo "set-up: $1; Tautline needs Rust $oldest or newer." >&2
    if has_commands rustup; then
        echo "  rustup is here: rustup toolchain install stable && rustup default stable" >&2
    else
        echo "  See https://rustup.rs, or install your distribution's cargo if it is new enough." >&2
    fi
    exit 1
}

# Whether version $1 is at least version $2; only the first two numbers count.
at_least() {
    major=${1%%.*}
    rest=${1#*.}
    minor=${rest%%.*}
    oldest_major=${2%%.*}
    rest=${2#*.}
    oldest_minor=${rest%%.*}
    [ -n "$major" ] || return 1
    [ "$major" -gt "$oldest_major" ] ||
        { [ "$major" -eq "$oldest_major" ] && [ "$minor" -ge "$oldest_minor" ]; }
}

check_rust_components() {
    components=
    (cd "$root" && cargo fmt --version) >/dev/null 2>&1 || components="$components rustfmt"
    (cd "$root" && cargo clippy --version) >/dev/null 2>&1 || components="$components clippy"
    [ -n "$components" ] || return 0
    if ! has_commands rustup; then
        fail "the Rust toolchain lacks$components: install them from where it came"
    fi
    if [ "$check_only" = yes ]; then
        fail "missing: rustup component add$components"
    fi
    echo "set-up: rustup component add$components"
    # Word splitting is meant: the list holds plain component names.
    # shellcheck disable=SC2086
    (cd "$root" && rustup component add $components) >"$work/rustup.log" 2>&1 || {
        cat "$work/rustup.log" >&2
        fail "rustup component add$components failed; what it said is above"
    }
}

# Processors without an operating system, for which programs of guests are compiled.
check_rust_targets() {
    for target in aarch64-unknown-none x86_64-unknown-none; do
        [ ! -d "$(cd "$root" && rustc --print target-libdir --target "$target" 2>/dev/null)" ] || continue
        if ! has_commands rustup; then
            echo "set-up: no $target in the Rust toolchain; what needs it will be skipped"
            continue
        fi
        if [ "$check_only" = yes ]; then
            fail "missing: rustup target add $target"
        fi
        echo "set-up: rustup target add $target"
        (cd "$root" && rustup target add "$target") >"$work/rustup.log" 2>&1 || {
            tail -n 3 "$work/rustup.log" >&2
            echo "set-up: no $target; what needs it will be skipped"
        }
    done
}

# Commands of cargo that the tests run. Compiled from the registry without optimisation, once: cargo-nextest takes 150 s
# of CPU time, which is 80 s on two CPUs.
check_cargo_tools() {
    for tool in "$@"; do
        name=${tool%@*}
        (cd "$root" && cargo "${name#cargo-}" --version) >/dev/null 2>&1 && continue
        if [ "$check_only" = yes ]; then
            fail "missing: cargo install --locked $tool"
        fi
        echo "set-up: cargo install --locked $tool"
        CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$work/$name" \
            cargo install --locked --debug "$tool" >"$work/$name.log" 2>&1 || {
            tail -n 3 "$work/$name.log" >&2
            echo "set-up: no $tool; what needs it will be skipped"
        }
        rm -rf "${work:?}/$name"
    done
}

fail() {
    echo "set-up: $1" >&2
    exit 1
}

main "$@"
