#!/usr/bin/env bash
# Runs link `xsk` where the driver works in the process's memory: in a virtual machine with two network cards
# joined by a cable, under a kernel whose drivers have zero-copy AF_XDP. The conformance suite of the link, its
# own tests and those of fragments of plain UDP must pass there, and every native node must be zero-copy.
#
#   DRIVER       virtio_net (needs Linux 6.13) or igb (needs Linux 6.14 and QEMU 8)
#   KERNEL_DEBS  the kernel's packages, image and modules; if not set, the newest of SUITE is downloaded
#   SUITE        trixie-backports
#   QEMU         qemu-system-x86_64, with options if need be
set -euo pipefail
cd "$(dirname "$0")/.."

driver=${DRIVER:-virtio_net}
suite=${SUITE:-trixie-backports}
read -ra qemu <<<"${QEMU:-qemu-system-x86_64}"
seconds_max=${SECONDS_MAX:-900}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tautline/xsk-zero-copy
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() {
	echo "SKIPPED: $*"
	exit 0
}

for tool in "${qemu[0]}" busybox dpkg-deb ip xz; do
	command -v "$tool" >/dev/null || skip "$tool is not installed (apt-get install qemu-system-x86 busybox-static iproute2 xz-utils)"
done
[ "$(uname -m)" = x86_64 ] || skip "the virtual machine is made for x86_64"

# apt with lists of its own: nothing of the system changes.
apt_of_suite() {
	local tool=$1
	shift
	"$tool" -o "Dir::Etc::sourcelist=$cache/sources.list" -o Dir::Etc::sourceparts=- \
		-o "Dir::State::Lists=$cache/lists" -o "Dir::Cache=$cache/apt" \
		-o Acquire::Languages=none -o APT::Sandbox::User=root -qq "$@"
}

depends_on() { # PACKAGE PATTERN
	apt_of_suite apt-cache depends "$1" | sed -n "s/^ *Depends: \($2\)$/\1/p" | head -n 1
}

download() {
	local mirror image part
	mkdir -p "$cache"/{lists/partial,apt/archives/partial,packages}
	# shellcheck disable=SC2016 # apt's own variables
	mirror=$(apt-get indextargets --format '$(REPO_URI) $(SUITE)' 'Origin: Debian' | awk '$2 !~ /-/ { print $1; exit }')
	[ -n "$mirror" ] || skip "apt knows no Debian archive: set KERNEL_DEBS"
	echo "deb $mirror $suite main" >"$cache/sources.list"
	apt_of_suite apt-get update >/dev/null || skip "$suite of $mirror cannot be read: set KERNEL_DEBS"
	image=$(depends_on "linux-image-amd64/$suite" 'linux-image-[0-9].*')
	[ -n "$image" ] || skip "$suite has no linux-image-amd64"
	cd "$cache/packages"
	# From Linux 7 on the image package only names two others.
	for part in "$image" "$(depends_on "$image" 'linux-binary-.*')" "$(depends_on "$image" 'linux-modules-.*')"; do
		[ -n "$part" ] || continue
		compgen -G "${part}_*.deb" >/dev/null ||
			apt_of_suite apt-get download "$part" || skip "$part cannot be downloaded"
		compgen -G "$PWD/${part}_*.deb" | tail -n 1
	done
	cd - >/dev/null
}

debs=${KERNEL_DEBS:-$(download)}
case $debs in SKIPPED*) echo "$debs"; exit 0 ;; esac
case $driver in
virtio_net)
	modules=(failover net_failover virtio_net)
	# Without the IOMMU's rules the driver gives its ring physical addresses of its own making, and no zero-copy.
	cards=(-device 'virtio-net-pci,netdev=a,iommu_platform=on,disable-legacy=on'
		-device 'virtio-net-pci,netdev=b,iommu_platform=on,disable-legacy=on,mac=52:54:00:12:34:57')
	;;
igb)
	modules=(dca i2c-algo-bit igb)
	"${qemu[@]}" -machine none -device igb,help >/dev/null 2>&1 || skip "this QEMU has no igb (needs QEMU 8)"
	cards=(-device 'pcie-root-port,id=p1,chassis=1,slot=1' -device 'igb,netdev=a,bus=p1'
		-device 'pcie-root-port,id=p2,chassis=2,slot=2' -device 'igb,netdev=b,bus=p2,mac=52:54:00:12:34:57')
	;;
*)
	echo "DRIVER is virtio_net or igb, not $driver" >&2
	exit 2
	;;
esac

# Beside the card's: what the tests make themselves.
modules+=(veth llc stp bridge)

mkdir "$work/kernel" "$work/root"
for deb in $debs; do
	dpkg-deb --fsys-tarfile "$deb" | tar --extract --directory "$work/kernel" --wildcards \
		--no-anchored 'vmlinuz*' "${modules[@]/%/.ko*}" 2>/dev/null || true
done
kernel=$(find "$work/kernel" -name 'vmlinuz*' -type f | head -n 1)
[ -n "$kernel" ] || { echo "there is no kernel in: $debs" >&2; exit 1; }

with_libraries() { # PROGRAM PATH
	local library
	mkdir -p "$work/root$(dirname "$2")"
	cp -L "$1" "$work/root$2"
	for library in $(ldd "$1" 2>/dev/null | grep -oE '/[^ ]+' || true); do
		mkdir -p "$work/root$(dirname "$library")"
		cp -L "$library" "$work/root$library"
	done
}

cargo test --locked -p tautline --test conformance --test xsk --test udp_fragments --no-run --message-format json 2>"$work/cargo" |
	sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' >"$work/tests" || { cat "$work/cargo" >&2; exit 1; }
mkdir -p "$work"/root/{bin,dev,proc,sys,tmp,run,modules}
while read -r program; do
	name=$(basename "$program")
	with_libraries "$program" "/bin/${name%-*}"
	strip "$work/root/bin/${name%-*}"
done <"$work/tests"
with_libraries "$(command -v ip)" /sbin/ip
cp -L "$(command -v busybox)" "$work/root/bin/busybox"
for module in "${modules[@]}"; do
	found=$(find "$work/kernel" -name "$module.ko*" | head -n 1)
	case $found in
	'') ;; # built in
	*.xz) xz -dc "$found" >"$work/root/modules/$module.ko" ;;
	*) cp "$found" "$work/root/modules/$module.ko" ;;
	esac
done

cat >"$work/root/init" <<EOF
#!/bin/busybox sh
export PATH=/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
ip link set lo up
for module in ${modules[*]}; do [ -e /modules/\$module.ko ] && insmod /modules/\$module.ko; done
export TAUTLINE_TEST_INTERFACES=eth0,eth1 TAUTLINE_TEST_ZERO_COPY=1
echo "kernel \$(uname -r), driver \$(basename \$(readlink /sys/class/net/eth0/device/driver))"
conformance xsk:: --test-threads=1 --skip to_xsk:: --show-output 2>&1
xsk --test-threads=1 --show-output 2>&1
# Without the tests that need programs which are not in this machine.
udp_fragments xsk:: --test-threads=1 --skip python --skip socat --show-output 2>&1
echo "the end"
echo b >/proc/sysrq-trigger
EOF
chmod +x "$work/root/init"
(cd "$work/root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initramfs"

console=$work/console
timeout "$seconds_max" "${qemu[@]}" -accel tcg,thread=multi -machine q35 -cpu max -smp 2 -m 768 \
	-nodefaults -no-user-config -display none -monitor none -no-reboot \
	-netdev hubport,id=a,hubid=0 -netdev hubport,id=b,hubid=0 "${cards[@]}" \
	-kernel "$kernel" -initrd "$work/initramfs" \
	-append "console=ttyS0 panic=-1 mitigations=off quiet loglevel=4" -serial stdio 2>"$work/qemu" |
	tee "$console" || true
cat "$work/qemu" >&2
# A test that was skipped has shown nothing.
[ "$(grep -c '^test result: ok' "$console")" = 3 ] && ! grep -q SKIPPED "$console"
