#!/usr/bin/env bash
# Writes the licences of all crates that packages of the workspace are built from to standard output: who gets a
# binary gets them too. A text that several crates have is written once.
#
#   scripts/notices.sh [--manifest-path FILE] PACKAGE...
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

workspace=()
if [[ ${1:-} == --manifest-path ]]; then
    workspace=("$1" "${2:-}")
    shift $(($# < 2 ? $# : 2))
fi
(($#)) || {
    echo "usage: scripts/notices.sh [--manifest-path FILE] PACKAGE..." >&2
    exit 2
}
shopt -s nullglob
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src

# Crates of ours are named with their path, and left out.
crates=$(cargo tree "${workspace[@]}" --locked --offline --edges normal --prefix none --format '{p};{l}' "${@/#/--package=}" |
    sed -n -e 's/ (\*)$//' -e 's/^\([^ ]*\) v\([^ ;]*\)\( (proc-macro)\)\{0,1\};\(.*\)$/\1 \2 \4/p' | sort -u)
# cargo unpacks a crate into a directory of its own; one archive of crates may have two names.
directories=()
while read -r name version licence; do
    echo "$name $version: $licence"
    unpacked=("$registry"/*/"$name-$version")
    directories+=("${unpacked[@]:0:1}")
done <<<"$crates"
((${#directories[@]})) || exit 0
find "${directories[@]}" -maxdepth 1 -type f \
    \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'unlicense*' \) -print0 |
    sort -z | xargs -0 sha256sum | awk '
        {
            path = substr($0, 67)
            crate = path
            sub(/\/[^\/]*$/, "", crate)
            sub(/.*\//, "", crate)
            if (!($1 in first)) { first[$1] = path; order[++count] = $1 }
            if (index(", " names[$1] ",", ", " crate ",") == 0)
                names[$1] = names[$1] (names[$1] == "" ? "" : ", ") crate
        }
        END {
            for (number = 1; number <= count; number++) {
                print "\n=== " names[order[number]] "\n"
                while ((getline line < first[order[number]]) > 0) print line
                close(first[order[number]])
            }
        }'
