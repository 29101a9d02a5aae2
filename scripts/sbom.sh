#!/usr/bin/env bash
# Writes a software bill of materials (CycloneDX 1.5, JSON) for each package of the workspace: every crate that it is
# built from, with version, licence and digest, for all platforms.
#
#   scripts/sbom.sh DIRECTORY
#
# Crates that only tests need are not in it. Needs cargo-cyclonedx (scripts/setup.sh --for test).
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

(($# == 1)) || {
    echo "usage: scripts/sbom.sh DIRECTORY" >&2
    exit 2
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
# It writes beside each Cargo.toml and nowhere else; so in a copy, in which nobody builds.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
copy=$scratch/tautline
mkdir "$copy"
git ls-files -z | xargs -0 tar -c --null --no-recursion | tar -x -C "$copy"
cd "$copy"
# Without the time and the place of this run, the same sources make the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} cargo cyclonedx --quiet --format json --spec-version 1.5 --target all
find . -name '*.cdx.json' -exec sed -i "s|file://$scratch/|file:///|g" {} \; -exec mv {} "$out" \;
ls "$out"
