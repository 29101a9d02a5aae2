#!/bin/sh
# Uses the systemd unit of control processes on a machine of its own: run by scripts/test-unit.sh in a virtual machine.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd /root

main() {
    step "$(uname -r), $(systemctl --version | head -n 1)"
    dpkg -i taut.deb >dpkg.log 2>&1 || fail_with dpkg.log
    [ "$(stat -c %U:%a /run/tautline)" = root:755 ] || fail "/run/tautline is not root's"
    [ "$(stat -c %U:%a /run/tautline/service)" = tautline:755 ] || fail "/run/tautline/service is not its user's"
    make_cables
    useradd robot
    # An emulated machine is slow.
    mkdir -p /etc/systemd/system/taut-node@.service.d
    printf '[Service]\nTimeoutStartSec=10min\n' >/etc/systemd/system/taut-node@.service.d/slow.conf
    systemctl daemon-reload

    systemctl enable --now taut-node@taut0 >enable.log 2>&1 || show_unit taut0
    systemctl is-active taut-node@taut0 >/dev/null || show_unit taut0
    [ "$(stat -c %U "/proc/$(pid taut0)")" = tautline ] || fail "it runs as $(stat -c %U "/proc/$(pid taut0)")"
    ! journalctl -u taut-node@taut0 | grep 'not confined' || fail "it is not confined"
    step "serves as tautline: $(journalctl -o cat -u taut-node@taut0 | grep -m 1 '^confined')"
    step "$(systemd-analyze security --no-pager taut-node@taut0 | tail -n 1)"

    # A client of another user, and datagrams on a port below 1024 for it.
    setpriv --reuid robot --regid robot --clear-groups --inh-caps=-all taut echo --interface taut0 >echo.log 2>&1 &
    echo=$!
    answers || fail_with echo.log
    step "a client of another user answers"
    as_robot taut status >status.log 2>&1 || fail_with status.log
    grep -q 4095 status.log || fail_with status.log

    kill -9 "$(pid taut0)"
    answers || fail "no answer after kill -9"
    wait_for "a successor" is_restarted
    answers || fail "no answer with a successor"
    journalctl -o cat -u taut-node@taut0 | grep -q '^taken over from a predecessor: 1 open port' || show_unit taut0
    step "killed with -9: the client's port works on and is taken over"

    # A second interface: the same user, and another; with a [tune] section, and root's.
    systemctl start taut-node@taut1 || show_unit taut1
    mkdir -p /etc/systemd/system/taut-node@taut1.service.d
    cp /usr/share/doc/taut/examples/taut-node@.service.d/tune.conf /etc/systemd/system/taut-node@taut1.service.d/
    printf '[tune]\nthreaded = true\n' >>/etc/tautline/taut1.toml
    systemctl daemon-reload
    systemctl restart taut-node@taut1 || show_unit taut1
    [ "$(stat -c %U "/proc/$(pid taut1)")" = root ] || fail "with the drop-in it is not root's"
    [ "$(cat /sys/class/net/taut1/threaded)" = 1 ] || show_unit taut1
    [ "$(stat -c %U /run/tautline/service)" = tautline ] || fail "the drop-in has changed the owner of the directory"
    systemctl stop taut-node@taut1
    [ "$(cat /sys/class/net/taut1/threaded)" = 0 ] || fail "the tuning is not undone"
    step "a second instance, then with a [tune] section as root"

    systemctl stop taut-node@taut0
    answers || fail "no answer after systemctl stop"
    attached || fail "the demux is gone before its last client"
    kill "$echo"
    wait "$echo" || true
    wait_for "the demux to be detached" is_detached
    [ -z "$(ls /sys/fs/bpf/tautline)" ] || fail "a pin is left"
    step "stopped: the client worked on, and with it the demux went"
    echo "use-unit: all is well"
}

make_cables() {
    ip netns add far
    for number in 0 1; do
        ip link add "taut$number" type veth peer name "far$number" netns far
        ip address add "10.9.$number.1/24" dev "taut$number"
        ip link set "taut$number" up
        ip -n far address add "10.9.$number.2/24" dev "far$number"
        ip -n far link set "far$number" up
        printf 'interface = "taut%s"\n\n[[allow]]\nuser = "robot"\nports = [4095]\nudp_ports = [53]\n' "$number" \
            >"/etc/tautline/taut$number.toml"
    done
    sed -i 's/"robot"/"root"/' /etc/tautline/taut1.toml
    printf 'interface = "far0"\n\n[[neighbour]]\nname = "near"\nmac = "%s"\nip = "10.9.0.1"\n' \
        "$(cat /sys/class/net/taut0/address)" >far.toml
}

# Whether the client's port answers from the other end of the cable.
answers() {
    for _ in 1 2 3 4 5; do
        if ip netns exec far taut ping near --config far.toml --count 3 >ping.log 2>&1; then
            return
        fi
        sleep 1
    done
    cat ping.log
    return 1
}

as_robot() {
    setpriv --reuid robot --regid robot --clear-groups --inh-caps=-all "$@"
}

attached() {
    ip link show taut0 | grep -q xdp
}

is_restarted() {
    [ "$(systemctl show -p NRestarts --value taut-node@taut0)" -ge 1 ] && systemctl is-active -q taut-node@taut0
}

is_detached() {
    ! attached
}

pid() {
    systemctl show -p MainPID --value "taut-node@$1"
}

wait_for() {
    what=$1
    shift
    for _ in $(seq 400); do
        ! "$@" || return 0
        sleep 1
    done
    journalctl --no-pager -n 40 -u taut-node@taut0
    fail "waited for $what"
}

show_unit() {
    systemctl status --no-pager -l "taut-node@$1" || true
    journalctl --no-pager -n 40 -u "taut-node@$1" || true
    fail "see above"
}

step() {
    echo "use-unit: $1"
}

fail() {
    echo "use-unit: failed: $1"
    exit 1
}

fail_with() {
    cat "$1"
    fail "see above"
}

main "$@"
