#!/usr/bin/env bash
# Runs commands on a clone of this checkout in a fresh minimal Debian root, so that no step of
# the set-up hides behind what a machine happens to have.
#
#   scripts/fresh-root.sh [--suite NAME] [--mirror URL] [--only DIRECTORY] [--keep] [-- COMMAND...]
#
# The root holds debootstrap's minbase, git, make, and this machine's Rust toolchain (mounted
# read-only); nothing else. Each COMMAND is one argument, run by sh in the clone; without any
# they are `make demo` and `make test`. Only what is committed is cloned.
#
#   --suite NAME  the Debian release; bookworm if not given
#   --mirror URL  where to take it from; if not given, from where this machine's apt does
#   --only DIRECTORY
#                 copy this directory in place of the clone, and leave git, make and the toolchain out
#   --keep        leave the root where it is, and say where
#
# apt and cargo work inside as they do on this machine: apt's sources, keys and download
# options, cargo's configuration, proxies and local root certificates are taken over. Nothing
# else of the machine is visible. Everything happens in mount and process namespaces of its own:
# when the run ends, in whatever way, its processes and mounts are gone with them, and the
# root, a plain directory then, is deleted.
#
# Needs root, debootstrap, about 6 GB under ${TMPDIR:-/tmp}, and the network.
set -euo pipefail
export LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin

# Where things lie inside.
readonly toolchain=/opt/rust
readonly clone=/root/tautline
# Variables that are taken over from this machine's environment, where they are set.
readonly environment_kept='^(https?_proxy|no_proxy|all_proxy|HTTPS?_PROXY|NO_PROXY|ALL_PROXY|CARGO_(HTTP|NET|REGISTRIES|REGISTRY|SOURCE)_[A-Z0-9_]+|TAUTLINE_[A-Z_]+)$'

self=$(readlink -f "${BASH_SOURCE[0]}")
checkout=$(dirname "$(dirname "$self")")
suite=bookworm
mirror=
only=
keep=no
commands=("make demo" "make test")
root=
job=

main() {
    if [[ ${1:-} == --inside ]]; then
        shift
        inside "$@"
        return
    fi
    parse_arguments "$@"
    check_machine

    root=$(mktemp -d "${TMPDIR:-/tmp}/tautline-fresh-root.XXXXXX")
    chmod 755 "$root"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP

    # A process group of its own: ^C reaches this shell alone, which then ends all the rest;
    # and bash does not start the commands with SIGINT ignored, as it does otherwise.
    set -m
    unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
        "$self" --inside "$root" "$suite" "$mirror" "$only" "${commands[@]}" </dev/null &
    job=$!
    set +m
    local status=0
    wait "$job" || status=$?
    job=
    return "$status"
}

parse_arguments() {
    while (($#)); do
        case $1 in
        --suite | --mirror | --only)
            (($# >= 2)) || usage
            case $1 in
            --suite) suite=$2 ;;
            --mirror) mirror=$2 ;;
            --only) only=$(readlink -f "$2") ;;
            esac
            shift 2
            ;;
        --keep)
            keep=yes
            shift
            ;;
        --)
            shift
            (($#)) || usage
            commands=("$@")
            return
            ;;
        *) usage ;;
        esac
    done
}

usage() {
    echo "usage: scripts/fresh-root.sh [--suite NAME] [--mirror URL] [--only DIRECTORY] [--keep] [-- COMMAND...]" >&2
    exit 2
}

check_machine() {
    local command missing=()
    ((EUID == 0)) || fail "needs root: it makes namespaces, mounts and a chroot"
    for command in debootstrap unshare git rustc; do
        command -v "$command" >/dev/null || missing+=("$command")
    done
    ((${#missing[@]} == 0)) || fail "not installed: ${missing[*]}"
    if [[ -z $mirror ]]; then
        mirror=$(mirror_of_this_machine)
        [[ -n $mirror ]] || fail "this machine's apt has no source for $suite: give --mirror URL"
    fi
    [[ -z $only ]] || return 0
    [[ -x $(toolchain_here)/bin/cargo ]] || fail "no cargo in $(toolchain_here)"
    [[ $(toolchain_here) != /usr ]] || fail "needs a toolchain in a directory of its own, as rustup's are"
    if [[ -n $(git -C "$checkout" status --porcelain) ]]; then
        echo "fresh-root: note: changes that are not committed are not tested" >&2
    fi
}

toolchain_here() {
    (cd "$checkout" && rustc --print sysroot)
}

mirror_of_this_machine() {
    # apt's own placeholders, not the shell's.
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite="$suite" '$1 == suite && $2 == "main" { print $3; exit }'
}

clean_up() {
    trap '' INT TERM HUP
    if [[ -n $job ]]; then
        # unshare's child is the first process of the namespace and dies with unshare; with it
        # die all the others.
        kill -KILL "$job" 2>/dev/null || true
        wait "$job" 2>/dev/null || true
    fi
    rm -f "$root.log"
    if [[ $keep == yes ]]; then
        echo "fresh-root: kept in $root"
        return
    fi
    # The kernel may take a moment to end the last process.
    local attempt
    for attempt in 1 2 3 4 5; do
        rm -rf --one-file-system "$root" 2>/dev/null && return
        sleep "$attempt"
    done
    echo "fresh-root: could not delete $root" >&2
}

# From here on: what runs inside the namespaces, as their first process.

inside() {
    root=$1 suite=$2 mirror=$3 only=$4
    shift 4
    make_root
    take_over_apt
    take_over_certificates
    if [[ -n $only ]]; then
        cp -r "$only" "$root$clone"
    else
        take_over_cargo
        git clone -q --no-hardlinks "$checkout" "$root$clone"
    fi
    mount_inside

    local command started
    for command in "$@"; do
        started=$SECONDS
        echo "fresh-root: $command"
        run_inside "$command" || fail "'$command' failed with status $? after $((SECONDS - started)) s"
        echo "fresh-root: '$command' passed in $((SECONDS - started)) s"
    done
    report_packages
}

make_root() {
    local include=git,make
    [[ -z $only ]] || include=apt
    # Without root certificates apt could not even fetch the package that has them.
    [[ $mirror != https:* ]] || include+=,ca-certificates
    echo "fresh-root: debootstrap $suite into $root"
    if ! debootstrap --variant=minbase --include="$include" "$suite" "$root" "$mirror" \
        >"$root.log" 2>&1; then
        cat "$root.log" >&2
        fail "debootstrap failed; what it said is above"
    fi
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    packages >"$root/root/packages-before"
}

# apt's sources and keys, and of its configuration what concerns downloads: the rest may call
# programs that are not there.
take_over_apt() {
    local path
    if grep -qsx "VERSION_CODENAME=$suite" /etc/os-release; then
        rm -f "$root/etc/apt/sources.list"
        for path in sources.list sources.list.d preferences preferences.d auth.conf auth.conf.d \
            trusted.gpg trusted.gpg.d keyrings; do
            [[ ! -e /etc/apt/$path ]] || cp -a "/etc/apt/$path" "$root/etc/apt/"
        done
        cp -an /usr/share/keyrings/. "$root/usr/share/keyrings/"
    fi
    apt-config dump | grep '^Acquire::' | grep -vi 'proxy-\?auto-\?detect' \
        >"$root/etc/apt/apt.conf.d/90taken-over" || true
}

# Local root certificates go where the ca-certificates package looks for them when the set-up
# installs it. A bundle that the environment names elsewhere is taken to the same place.
take_over_certificates() {
    local bundle
    if [[ -d /usr/local/share/ca-certificates ]]; then
        mkdir -p "$root/usr/local/share/ca-certificates"
        cp -aL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
    fi
    bundle=${CARGO_HTTP_CAINFO:-}
    if [[ -n $bundle && $bundle != /etc/ssl/certs/* ]]; then
        mkdir -p "$root$(dirname "$bundle")"
        cp -L "$bundle" "$root$bundle"
    fi
}

take_over_cargo() {
    local home=${CARGO_HOME:-$HOME/.cargo} name
    mkdir -p "$root/root/.cargo" "$root$toolchain"
    for name in config config.toml; do
        [[ ! -e $home/$name ]] || cp -L "$home/$name" "$root/root/.cargo/$name"
    done
}

# A chroot's "/" must be a mount: `ip netns exec` changes its propagation.
mount_inside() {
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    # Instances of its own, where this machine's would be shared.
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    [[ ! -d $root/sys/fs/bpf ]] || mount -t bpf bpf "$root/sys/fs/bpf"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    [[ -z $only ]] || return 0
    mount --bind "$(toolchain_here)" "$root$toolchain"
    mount -o remount,bind,ro "$root$toolchain"
}

run_inside() {
    local name variables=()
    while read -r name; do
        variables+=("$name=${!name}")
    done < <(compgen -e | grep -E "$environment_kept" || true)
    env -i "${variables[@]}" HOME=/root TERM=dumb \
        PATH="$toolchain/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        chroot "$root" sh -c "cd $clone && $1"
}

# Packages that the commands had installed: those asked for, and the number with all that they pulled in.
report_packages() {
    packages >"$root/root/packages-after"
    printf 'fresh-root: packages installed, %d in all; asked for:\n' \
        "$(comm -13 "$root/root/packages-before" "$root/root/packages-after" | wc -l)"
    comm -13 "$root/root/packages-before" "$root/root/packages-after" |
        comm -12 - <(chroot "$root" apt-mark showmanual | sort) | sed 's/^/  /'
}

packages() {
    # dpkg's own placeholders, not the shell's.
    # shellcheck disable=SC2016
    chroot "$root" dpkg-query -W -f '${Package}\n' | sort
}

fail() {
    echo "fresh-root: $1" >&2
    exit 1
}

main "$@"
