#!/usr/bin/env bash
# What a replay costs beside reading and parsing, in one run on one machine, and that its memory does not grow.
#
#   crates/tollgate-cli/benches/replay.sh [REQUESTS]     10 million if not given
#
# Ends with 1 if a replay takes more than twice what `wc -l` and parsing alone take together, or if ten times the log
# takes more than a tenth more memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

requests="${1:-10000000}"
policy="100/min burst 20; 5000/d"
cargo build --release --quiet -p tollgate-cli
tool="${CARGO_TARGET_DIR:-target}/release/tollgate"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$tool" generate --requests "$requests" --duration 86400 -o "$scratch/long.log"
"$tool" generate --requests "$((requests / 10))" --duration 86400 -o "$scratch/short.log"

# Seconds that a command takes, the best of three: whatever else the machine does can only add.
seconds() {
    local start took best=""
    for _ in 1 2 3; do
        start="$(date +%s.%N)"
        "$@" >/dev/null
        took="$(awk -v start="$start" -v end="$(date +%s.%N)" 'BEGIN { print end - start }')"
        best="$(awk -v took="$took" -v best="${best:-$took}" 'BEGIN { print (took < best ? took : best) }')"
    done
    echo "$best"
}

# Peak memory of a replay, in bytes, as the tool itself reports it.
memory() {
    "$tool" replay "$1" --policy "$policy" --json | sed -n 's/.*"peak_memory_bytes": \([0-9]*\).*/\1/p'
}

cat "$scratch/long.log" >/dev/null
counting="$(seconds wc -l "$scratch/long.log")"
parsing="$(seconds "$tool" replay "$scratch/long.log" --parse-only)"
replaying="$(seconds "$tool" replay "$scratch/long.log" --policy "$policy")"
short="$(memory "$scratch/short.log")" long="$(memory "$scratch/long.log")"

awk -v requests="$requests" -v counting="$counting" -v parsing="$parsing" -v replaying="$replaying" \
    -v short="$short" -v long="$long" 'BEGIN {
    ratio = replaying / (counting + parsing)
    printf "wc -l            %7.2f s\n", counting
    printf "parsing alone    %7.2f s\n", parsing
    printf "replay           %7.2f s   %.1f million lines a second\n", replaying, requests / replaying / 1e6
    printf "ratio            %7.2f     (at most 2.0)\n", ratio
    printf "peak memory      %7.1f MiB for a tenth of the log, %.1f MiB for all of it\n", short / 2^20, long / 2^20
    exit ratio > 2.0 || long > 1.1 * short
}'
