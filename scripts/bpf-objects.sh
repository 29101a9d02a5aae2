#!/bin/sh
# Compiles the BPF programs with every clang that is installed, each into a directory of its name.
#
#   scripts/bpf-objects.sh DIRECTORY [CLANG...]
#
# The flags are those of bpf/src/compile.rs. crates/tautline/tests/machine/bpf_load.rs loads what this makes:
#
#   TAUTLINE_BPF_OBJECTS=DIRECTORY cargo test -p tautline --test machine bpf_load:: -- --nocapture
set -eu

[ $# -ge 1 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/.." && pwd)
triple=$(uname -m)-linux-gnu

# No arguments: clang-N of any N that is in the PATH.
if [ $# -eq 0 ]; then
    for version in $(seq 11 40); do
        ! command -v "clang-$version" >/dev/null || set -- "$@" "clang-$version"
    done
fi
[ $# -gt 0 ] || {
    echo "bpf-objects: no clang-N is installed: apt-get install clang-14 clang-16" >&2
    exit 1
}
for clang in "$@"; do
    to=$directory/$(basename "$clang")
    mkdir -p "$to"
    # The directory of the sources is not in the objects: the same compiler makes the same bytes anywhere.
    cd "$root/bpf"
    for source in *.bpf.c; do
        # Debian keeps asm/ under the multiarch triple, which the BPF target does not search.
        "$clang" -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -fdebug-compilation-dir=. \
            "-I/usr/include/$triple" -c "$source" -o "$to/${source%.c}.o"
    done
    echo "$to"
done
