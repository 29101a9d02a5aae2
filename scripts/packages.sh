#!/usr/bin/env bash
# Makes Debian packages of what cargo has built, with dpkg's own tools.
#
#   scripts/packages.sh [--architecture NAME] BUILT DIRECTORY [PACKAGE...]
#
# BUILT is where cargo put the commands and the libraries, such as target/dist. The packages, all if none is named:
#
#   taut              the command, its manual pages, completions, systemd units, and the library of `taut exec`
#   taut-lab          the command that measures: lab, benchmarks, the papers' figures, the demonstration
#   libtautline1      the shared library of the C interface
#   libtautline-dev   headers, static library, files for pkg-config and CMake
#
# and, where it is named, since it is built in a workspace of its own (make packages-gateway):
#
#   taut-gateway      the gateway to Zenoh, and its systemd unit
#
# The same files make the same packages, byte for byte: all times are SOURCE_DATE_EPOCH, or the last commit's. Needs
# dpkg-dev and binutils. DEB_MAINTAINER names who answers for the packages, DEB_VERSION another version than that of
# the workspace, DPKG_DEB_COMPRESSOR_LEVEL another level of xz than 1.
set -euo pipefail
export LC_ALL=C
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly maintainer=${DEB_MAINTAINER:-Tautline <tautline@localhost>}
work=
built=
out=
architecture=
multiarch=
version=

main() {
    local package packages=(taut taut-lab libtautline1 libtautline-dev)
    if [[ ${1:-} == --architecture ]]; then
        (($# >= 2)) || usage
        architecture=$2
        shift 2
    fi
    (($# >= 2)) || usage
    built=$1 out=$2
    shift 2
    (($# == 0)) || packages=("$@")
    architecture=${architecture:-$(dpkg --print-architecture)}
    multiarch=$(dpkg-architecture -a"$architecture" -qDEB_HOST_MULTIARCH 2>/dev/null)
    version=${DEB_VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
    # xz at its usual level 6 takes seven times as long over the static library, for a package that is 16 % smaller.
    export DPKG_DEB_COMPRESSOR_LEVEL=${DPKG_DEB_COMPRESSOR_LEVEL:-1}
    export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$out"
    for package in "${packages[@]}"; do
        declare -F "image_$package" >/dev/null || usage
        mkdir -p "$work/$package/DEBIAN"
        "image_$package" "$work/$package"
        pack "$package"
    done
}

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | head -n -1 >&2
    exit 2
}

# Contents of the packages. $1 is the image's root.

image_taut() {
    local root=$1 library=libtautline_awake_preload.so
    install_command taut "$root"
    install -D -m 644 "$(found "$library")" "$root/usr/lib/tautline/$library"
    strip_of --strip-unneeded "$root/usr/lib/tautline/$library"
    install -D -m 644 -t "$root/usr/lib/systemd/system" contrib/systemd/taut-node@.service
    install -D -m 644 contrib/systemd/tautline.sysusers "$root/usr/lib/sysusers.d/tautline.conf"
    install -D -m 644 contrib/systemd/tautline.tmpfiles "$root/usr/lib/tmpfiles.d/tautline.conf"
    # Configurations of control processes, /etc/tautline/INTERFACE.toml.
    mkdir -p "$root/etc/tautline"
    install -D -m 644 -t "$root/usr/share/doc/taut" README.md SECURITY.md
    find docs -name '*.md' -not -path 'docs/vectors/*' -exec install -D -m 644 '{}' "$root/usr/share/doc/taut/{}" ';'
    # The same pages to read in a browser, where `make book` has rendered them.
    if [[ -d $built/../book ]]; then
        cp -r --no-preserve=mode,timestamps "$built/../book" "$root/usr/share/doc/taut/html"
    fi
    install -D -m 644 -t "$root/usr/share/doc/taut/examples" contrib/wireshark/tautline.lua examples/*.toml
    install -D -m 644 -t "$root/usr/share/doc/taut/examples/taut-node@.service.d" contrib/systemd/taut-node@.service.d/*
    scripts/notices.sh taut tautline-awake-preload >"$root/usr/share/doc/taut/notices"
    drop_dead_links "$root/usr/share/doc/taut"
    maintainer_scripts "$root/DEBIAN"
    control taut "$root" <<'END'
Section: net
Priority: optional
Recommends: ethtool, iproute2
Suggests: taut-lab, qemu-system-arm, wireshark
Description: real-time networking on stock Linux
 Carries messages with deadlines past other traffic, on the same cable, with
 the Linux kernel and the network cards that there are. This is the command:
 it sets a machine up, runs what belongs on it, and shows what happens on it.
END
}

image_taut-lab() {
    local root=$1
    install_command taut-lab "$root"
    mkdir -p "$root/usr/share/doc/taut-lab"
    scripts/notices.sh taut-lab >"$root/usr/share/doc/taut-lab/notices"
    control taut-lab "$root" <<END
Section: net
Priority: optional
Depends: taut (= $version)
Recommends: ethtool, iproute2
Suggests: iperf3, qemu-system-arm, qemu-system-x86
Description: real-time networking on stock Linux - measurements
 Measures whether a machine and its kernel hold a deadline, and how fast its
 links are. \`taut lab\`, \`taut bench\`, \`taut experiment\` and \`taut demo\` are
 in this package.
END
}

image_libtautline1() {
    local root=$1
    install_c
    mkdir -p "$root/usr/lib/$multiarch"
    cp -a "$work"/c/usr/lib/"$multiarch"/libtautline.so.* "$root/usr/lib/$multiarch/"
    mkdir -p "$root/usr/share/doc/libtautline1"
    scripts/notices.sh tautline-c >"$root/usr/share/doc/libtautline1/notices"
    echo "libtautline 1 libtautline1 (>= $version)" >"$root/DEBIAN/shlibs"
    echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
    control libtautline1 "$root" <<'END'
Section: libs
Priority: optional
Multi-Arch: same
Description: real-time networking on stock Linux - library
 Carries messages with deadlines past other traffic, on the same cable. This
 is the library that programs in C and C++ are linked with.
END
}

image_libtautline-dev() {
    local root=$1
    install_c
    cp -a "$work/c/." "$root"
    rm "$root/usr/lib/$multiarch"/libtautline.so.*
    install -D -m 644 -t "$root/usr/share/doc/libtautline-dev/examples" bindings/c/examples/*.[ch]
    scripts/notices.sh tautline-c >"$root/usr/share/doc/libtautline-dev/notices"
    control libtautline-dev "$root" <<END
Section: libdevel
Priority: optional
Multi-Arch: same
Depends: libtautline1 (= $version), libc6-dev
Description: real-time networking on stock Linux - headers
 Carries messages with deadlines past other traffic, on the same cable. These
 are the headers for C and C++, the static library, and the files by which
 pkg-config and CMake find them.
END
}

image_taut-gateway() {
    local root=$1
    install -D "$(found taut-gateway)" "$root/usr/bin/taut-gateway"
    strip_of --strip-all "$root/usr/bin/taut-gateway"
    install -D -m 644 -t "$root/usr/lib/systemd/system" contrib/systemd/taut-gateway@.service
    # Configurations of gateways, /etc/tautline/gateway/NAME.toml.
    mkdir -p "$root/etc/tautline/gateway"
    install -D -m 644 -t "$root/usr/share/doc/taut-gateway" docs/how-to/gateway.md docs/reference/gateway.md
    scripts/notices.sh --manifest-path gateway/Cargo.toml taut-gateway >"$root/usr/share/doc/taut-gateway/notices"
    gateway_scripts "$root/DEBIAN"
    control taut-gateway "$root" <<END
Section: net
Priority: optional
Recommends: taut (= $version)
Description: real-time networking on stock Linux - gateway to Zenoh
 Publishes the ports of a cell on Zenoh, delivers what comes from there, and
 tells of the cell to a fleet. The cell never waits for it.
END
}

# The parts of the above.

# cargo leaves libraries of tests in deps/ only.
found() {
    local place
    for place in "$built/$1" "$built/deps/$1"; do
        if [[ -e $place ]]; then
            echo "$place"
            return
        fi
    done
    echo "packages: there is no $1 in $built: make packages builds it" >&2
    return 1
}

# A command, its manual pages and completions.
install_command() {
    local name=$1 root=$2 command shell
    command=$(found "$name")
    install -D "$command" "$root/usr/bin/$name"
    strip_of --strip-all "$root/usr/bin/$name"
    # Of another architecture, the command cannot be asked here.
    if [[ $architecture != "$(dpkg --print-architecture)" ]]; then
        command=${HERE:?names the directory of the commands for this machine, which write manual pages and completions}/$name
    fi
    "$command" man "$root/usr/share/man/man1"
    for shell in bash-completion/completions/NAME zsh/vendor-completions/_NAME fish/vendor_completions.d/NAME.fish; do
        mkdir -p "$root/usr/share/${shell%/*}"
        "$command" completions "${shell%%[-/]*}" >"$root/usr/share/${shell//NAME/$name}"
    done
}

strip_of() {
    "${STRIP:-strip}" "$1" --remove-section=.comment "$2"
}

# Pages link to sources that a package does not contain. Of such a link its text stays.
drop_dead_links() {
    local page target
    find "$1" -name '*.md' | while read -r page; do
        { grep -o ']([^):#][^):]*)' "$page" || true; } | sort -u | while read -r target; do
            target=${target#](} target=${target%)}
            [[ -z ${target%%#*} || -e ${page%/*}/${target%%#*} ]] ||
                sed -i "s|\[\([^]]*\)\]($target)|\1|g" "$page"
        done
    done
}

install_c() {
    [[ ! -d $work/c ]] || return 0
    local library
    library=$(found libtautline_c.so)
    make -s -C bindings/c install BUILT="$(cd "$(dirname "$library")" && pwd)" DESTDIR="$work/c" PREFIX=/usr \
        LIBDIR="/usr/lib/$multiarch"
}

maintainer_scripts() {
    cat >"$1/postinst" <<'END'
#!/bin/sh
set -e
# The user of control processes, and its directories.
if [ "$1" = configure ] && command -v systemd-sysusers >/dev/null; then
    systemd-sysusers tautline.conf
    systemd-tmpfiles --create tautline.conf || true
fi
# New units are seen; none is started, because each belongs to an interface that the administrator names.
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
END
    cat >"$1/prerm" <<'END'
#!/bin/sh
set -e
# An upgrade leaves control processes running: their clients work on, and a restart hands them over.
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop 'taut-node@*.service' || true
fi
END
    cat >"$1/postrm" <<'END'
#!/bin/sh
set -e
# The user stays: a number that is given to somebody else would own what is left of it.
if [ "$1" = purge ]; then
    rmdir /sys/fs/bpf/tautline 2>/dev/null || true
    rm -rf /run/tautline/service
    rmdir /run/tautline 2>/dev/null || true
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
END
    chmod 755 "$1"/post* "$1"/pre*
}

gateway_scripts() {
    cat >"$1/postinst" <<'END'
#!/bin/sh
set -e
# The unit is seen; none is started, because each belongs to a cell that the administrator names.
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
END
    cat >"$1/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop 'taut-gateway@*.service' || true
fi
END
    cat >"$1/postrm" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
END
    chmod 755 "$1"/post* "$1"/pre*
}

# Writes the control file, with the dependencies that the files show. Standard input: the fields after the first four.
control() {
    local package=$1 root=$2 fields needed
    fields=$(cat)
    needed=$(libraries_needed "$root")
    {
        echo "Package: $package"
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Maintainer: $maintainer"
        echo "Source: tautline"
        if [[ -n $needed && $fields == *Depends:\ * ]]; then
            fields=${fields/Depends: /Depends: $needed, }
        elif [[ -n $needed ]]; then
            echo "Depends: $needed"
        fi
        echo "$fields"
    } >"$root/DEBIAN/control"
}

# The packages of shared libraries, in the versions that have the symbols which the files use.
libraries_needed() {
    local files
    mapfile -t files < <(find "$1/usr" -type f \( -path '*/bin/*' -o -name '*.so' -o -name '*.so.*' \))
    ((${#files[@]})) || return 0
    mkdir -p "$work/shlibs/debian"
    printf 'Source: tautline\n\nPackage: any\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && DEB_HOST_ARCH=$architecture dpkg-shlibdeps -O -xlibtautline1 "${files[@]}" 2>/dev/null) |
        sed -n 's/^shlibs:Depends=//p'
}

pack() {
    local package=$1 root=$work/$1 doc=$work/$1/usr/share/doc/$1
    copyright >"$doc/copyright"
    gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
    gzip -9n "$doc/notices"
    [[ ! -d $root/usr/share/man ]] || find "$root/usr/share/man" -type f -exec gzip -9n {} +
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$work/md5sums"
    mv "$work/md5sums" "$root/DEBIAN/md5sums"
    chmod 644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control"
    echo "Installed-Size: $(du -k --apparent-size --exclude=DEBIAN -s "$root" | cut -f 1)" >>"$root/DEBIAN/control"
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$root" "$out/${package}_${version}_$architecture.deb" >/dev/null
    echo "$out/${package}_${version}_$architecture.deb"
}

copyright() {
    cat <<'END'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Tautline
Comment: The binaries contain crates of others; their licences are in notices.gz beside this file.

Files: *
Copyright: the authors of Tautline
License: Apache-2.0 or MIT

Files: bpf/*
Copyright: the authors of Tautline
License: MIT or GPL-2.0-only

License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.

License: GPL-2.0-only
 On Debian systems the text is in /usr/share/common-licenses/GPL-2.

License: MIT
END
    sed -e 's/^$/./' -e 's/^/ /' LICENSE-MIT
}

main "$@"
