#!/usr/bin/env bash
# Instructions that watchers cost a port: those of an exchange over a bus in one thread, sent and read, by valgrind.
# They do not depend on what else the machine does. scripts/capture-cost.sh measures the time of captures.
#
#   scripts/watching-cost.sh [EXCHANGES]
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
exchanges=${1:-50000}
bench=$(cd "$root" && cargo bench --locked -p tautline --bench watched --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*watched[^"]*\)".*/\1/p')

# Those of a run of twice as many exchanges less those of a run, so that starting does not count.
exchange() {
    local counts=() times
    for times in 1 2; do
        counts+=("$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bench" "$1" "$((times * exchanges))" "$2" 2>&1 |
            awk '/Collected/ { print $NF }')")
    done
    awk -v a="${counts[0]}" -v b="${counts[1]}" -v n="$exchanges" 'BEGIN { printf "%.1f", (b - a) / n }'
}

printf '%-10s %10s %10s %10s\n' port nothing status latencies
for kind in queuing sampling; do
    printf '%-10s' "$kind"
    for wish in nothing status latencies; do
        printf ' %10s' "$(exchange "$kind" "$wish")"
    done
    echo
done
