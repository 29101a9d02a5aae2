#!/usr/bin/env bash
# Boots Debian with systemd under QEMU, installs the package of the command there, and uses its unit for control
# processes (scripts/use-unit.sh): a client of another user keeps its messages while the control process is killed,
# started again and stopped.
#
#   scripts/test-unit.sh [--built DIRECTORY] [--suite NAME] [--root DIRECTORY]
#
#   --built DIRECTORY  where cargo put the command; target/dist if not given
#   --suite NAME       the Debian release; bookworm if not given
#   --root DIRECTORY   keep the Debian root here, and take it from here if it is there
#
# Needs root, debootstrap, QEMU for this architecture (x86-64), mke2fs, 3 GB under
# ${TMPDIR:-/tmp}, and the network for Debian's archive.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

built=${CARGO_TARGET_DIR:-$PWD/target}/dist
suite=bookworm
root=
while (($#)); do
    case $1 in
    --built | --suite | --root)
        (($# >= 2)) || exit 2
        case $1 in
        --built) built=$2 ;;
        --suite) suite=$2 ;;
        --root) root=$2 ;;
        esac
        shift 2
        ;;
    *)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2
        exit 2
        ;;
    esac
done

# Longest time in the virtual machine. Beside a build, each start of a control process takes more than a minute there.
readonly time_max=30m
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=${root:-$work/root}

if [[ ! -e $root/sbin/init ]]; then
    # apt's own placeholders, not the shell's.
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite="$suite" '$1 == suite && $2 == "main" { print $3; exit }')
    [[ -n $mirror ]] || { echo "test-unit: this machine's apt has no source for $suite" >&2 && exit 1; }
    debootstrap --variant=minbase --include=systemd-sysv,udev,dbus,iproute2,kmod,linux-image-cloud-amd64 \
        "$suite" "$root" "$mirror" >"$work/debootstrap.log" ||
        { tail "$work/debootstrap.log" >&2 && exit 1; }
fi
mkdir "$work/image"
cp -a "$root/." "$work/image"
scripts/packages.sh "$built" "$work" taut >/dev/null
cp "$work"/taut_*.deb "$work/image/root/taut.deb"
cp scripts/use-unit.sh "$work/image/root/"
cat >"$work/image/etc/systemd/system/use-unit.service" <<'END'
[Service]
Type=oneshot
ExecStart=/bin/sh -c '/root/use-unit.sh >/dev/ttyS0 2>&1; systemctl poweroff'
END
mkdir -p "$work/image/etc/systemd/system/multi-user.target.wants"
ln -sf ../use-unit.service "$work/image/etc/systemd/system/multi-user.target.wants/use-unit.service"
# A login on the console would take it from the test.
ln -sf /dev/null "$work/image/etc/systemd/system/serial-getty@ttyS0.service"
kernel=$(echo "$work"/image/boot/vmlinuz-*)
initrd=$(echo "$work"/image/boot/initrd.img-*)
cp "$kernel" "$work/vmlinuz"
cp "$initrd" "$work/initrd"
mke2fs -q -t ext4 -d "$work/image" "$work/disk" 3G

timeout "$time_max" qemu-system-x86_64 -accel tcg -cpu max -M q35 -m 1024 -smp 2 -nodefaults -no-reboot -display none \
    -serial stdio -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" -kernel "$work/vmlinuz" -initrd "$work/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=no loglevel=3" </dev/null | tee "$work/console" |
    grep --line-buffered -a 'use-unit: ' || true
if ! grep -qa 'use-unit: all is well' "$work/console"; then
    tail -n 60 "$work/console" >&2
    echo "test-unit: it did not come to its end" >&2
    exit 1
fi
