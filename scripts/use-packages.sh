#!/bin/sh
# Installs the packages beside this file, uses them, and purges them: run by scripts/test-packages.sh in a fresh root,
# which has no compiler.
set -eu
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive

main() {
    for compiler in cc gcc clang rustc cargo; do
        ! command -v "$compiler" >/dev/null || fail "there is a $compiler"
    done
    apt-get -q update >apt.log 2>&1 || fail_with apt.log
    all_files >before
    # Named, because apt keeps some of what others recommend beyond the purge.
    apt-get -q install -y --no-install-recommends ./*.deb ethtool iproute2 >apt.log 2>&1 || fail_with apt.log
    ! command -v cc >/dev/null || fail "the packages brought a compiler"
    step "installed: $(dpkg-query -W -f '${Package} ${Version}, ' taut 'libtautline*')"

    use_the_command
    use_a_bus
    use_the_library

    apt-get -q purge -y --autoremove taut taut-lab libtautline1 libtautline-dev ethtool iproute2 >apt.log 2>&1 || fail_with apt.log
    all_files >after
    if comm -13 before after | grep .; then
        fail "left behind by the purge"
    fi
    step "purged: nothing left"
    use_the_static_command
}

# apt's own lists, caches and logs are not of the packages; nor is what systemd and dpkg note about them.
all_files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path "$PWD" -o -path /var/lib/apt -o -path /var/cache \
        -o -path /var/log -o -path /var/lib/dpkg \) -prune -o -print | sort
    dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n' | sort
}

use_the_command() {
    taut --version
    taut doctor >doctor.log || fail_with doctor.log
    grep -q 'Best link here: ' doctor.log || fail_with doctor.log
    step "taut doctor: $(grep -o 'Best link here: .*' doctor.log)"
    for page in taut taut-node-run taut-lab-bench-rtt; do
        gzip -dc "/usr/share/man/man1/$page.1.gz" | grep -q '^\.SH OPTIONS' || fail "no page for $page"
    done
    # Hosts with the demux, then as anybody.
    taut demo --for 2s --out /root/demo >demo.log 2>&1 || fail_with demo.log
    rm -r /root/demo
    step "taut demo, as root: $(grep -m 1 -o 'xdp.*' demo.log || true)"
    as_nobody taut demo --for 2s --out /tmp/demo >demo.log 2>&1 || fail_with demo.log
    rm -r /tmp/demo
    step "taut demo, as nobody"
    taut exec -- true >exec.log 2>&1 || true
    ! grep -q 'is neither in' exec.log || fail_with exec.log
}

use_a_bus() {
    cp /usr/share/doc/taut/examples/a*_vbus.toml .
    taut recv 9 --config answer_vbus.toml --count 1 --timeout 20s >received 2>recv.log &
    receiver=$!
    sent=no
    for _ in $(seq 100); do
        if echo hello | taut send answerer 9 --config ask_vbus.toml >send.log 2>&1; then
            sent=yes
            break
        fi
        sleep 0.1
    done
    [ "$sent" = yes ] || fail_with send.log
    wait "$receiver" || fail_with recv.log
    grep -q hello received || fail_with received
    step "two nodes on a bus: $(cat received)"
}

use_the_library() {
    ldconfig -p | grep -q 'libtautline\.so\.1 ' || fail "the dynamic linker does not know the library"
    step "a program in C with libtautline.so.1: $(./version)"
}

use_the_static_command() {
    [ -e taut-static ] || return 0
    mkdir empty
    cp taut-static empty/taut
    step "static, alone in a root: $(chroot empty /taut --version)"
    chroot empty /taut types --help >/dev/null || fail "the static command does not run alone"
    rm -r empty
}

as_nobody() {
    setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all env HOME=/tmp "$@"
}

step() {
    echo "use-packages: $1"
}

fail() {
    echo "use-packages: $1" >&2
    exit 1
}

fail_with() {
    cat "$1" >&2
    fail "see above"
}

main "$@"
