#!/usr/bin/env bash
# Tests the packages as those who get them would use them.
#
#   scripts/test-packages.sh [--built DIRECTORY] [--suite NAME] [--no-crates]
#
# - Each published crate is built alone, from its package and the packages of ours that it needs.
# - The Debian packages, made of what cargo built, are installed in a fresh Debian root, used there without a compiler,
#   and purged (scripts/use-packages.sh). A program in C that was built here runs there with the library.
# - The static command, if `make static` has made one, runs in a root that has nothing else.
#
#   --built DIRECTORY  where cargo put the commands and the libraries; if not given, target/dist and target/release, as
#                      make packages leaves them
#   --suite NAME       the Debian release; bookworm if not given
#   --no-crates        leave the first part out
#
# Needs root, debootstrap, and the network for Debian's archive; the first part, crates that cargo has fetched.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
built=
suite=bookworm
crates=yes
while (($#)); do
    case $1 in
    --built | --suite)
        (($# >= 2)) || exit 2
        [[ $1 == --built ]] && built=$2 || suite=$2
        shift 2
        ;;
    --no-crates)
        crates=no
        shift
        ;;
    *)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2
        exit 2
        ;;
    esac
done

if [[ $crates == yes ]]; then
    # Those that are not published; cargo would build them too.
    mapfile -t excluded < <(grep -l '^publish = false' {crates,measure,show,bindings}/*/Cargo.toml |
        xargs sed -s -n '0,/^name = /s/^name = "\(.*\)"/--exclude=\1/p')
    cargo package --workspace --offline --locked --allow-dirty --quiet "${excluded[@]}"
    echo "test-packages: every published crate builds from its package"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/packages"
scripts/packages.sh "${built:-$target/dist}" "$work/packages" taut taut-lab
scripts/packages.sh "${built:-$target/release}" "$work/packages" libtautline1 libtautline-dev
for package in "$work"/packages/libtautline*.deb; do
    dpkg-deb --extract "$package" "$work/image"
done
printf '#include <stdio.h>\n#include <tautline.h>\nint main(void) { return puts(tautline_version()) < 0; }\n' >"$work/version.c"
lib=$(dirname "$(find "$work/image/usr/lib" -name libtautline.so)")
cc -I"$work/image/usr/include" -o "$work/packages/version" "$work/version.c" -L"$lib" -ltautline
cp scripts/use-packages.sh "$work/packages"
[[ ! -e $target/static/taut ]] || cp "$target/static/taut" "$work/packages/taut-static"
scripts/fresh-root.sh --suite "$suite" --only "$work/packages" -- ./use-packages.sh
