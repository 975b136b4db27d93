#!/usr/bin/env bash
# What a replay costs beside counting lines and parsing, in one run on one machine, and that its memory does not grow.
#
#   crates/tollgate-cli/benches/replay.sh [REQUESTS]     10 million if not given
#
# Needs some 3 GB of disk where builds go, and a few minutes. Writes benches/results/replay.md. Ends with 1 if a replay takes
# more than twice what `wc -l` and parsing alone take together, or if four times the log takes more than a tenth more memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

requests="${1:-10000000}"
rounds=5
policy="100/min burst 20; 5000/d"
results=benches/results/replay.md
cargo build --release --quiet -p tollgate-cli
builds="${CARGO_TARGET_DIR:-target}"
tool="$builds/release/tollgate"
# Beside the builds: what is temporary may be kept in memory, and would take it from what is measured.
scratch="$(mktemp -d "$builds/replay.XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
# As many a second, whatever the length.
generated() { "$tool" generate --requests "$2" --duration "$(($2 * 86400 / requests))" "${@:3}" -o "$scratch/$1.log" >/dev/null; }
generated long "$requests"
generated short "$((requests / 4))"

# Seconds that a command takes.
seconds() {
    local start
    start="$(date +%s.%N)"
    "$@" >/dev/null
    awk -v start="$start" -v end="$(date +%s.%N)" 'BEGIN { print end - start }'
}

# The least of the numbers in a file: whatever else the machine does can only add.
least() { sort -g "$1" | head -n 1; }

# Peak memory of a replay, in bytes, as the tool itself reports it.
memory() {
    "$tool" replay "$@" --json | sed -n 's/.*"peak_memory_bytes": \([0-9]*\).*/\1/p'
}

cat "$scratch/long.log" >/dev/null
# In turns, so that slow moments fall on all alike.
for ((round = 0; round < rounds; round++)); do
    seconds wc -l "$scratch/long.log" >>"$scratch/counting"
    seconds "$tool" replay "$scratch/long.log" --parse-only >>"$scratch/parsing"
    seconds "$tool" replay "$scratch/long.log" --policy "$policy" >>"$scratch/replaying"
done
few_short="$(memory "$scratch/short.log" --policy "$policy")"
few_long="$(memory "$scratch/long.log" --policy "$policy")"
bytes="$(stat -c %s "$scratch/long.log")"

# Every client and page a key of its own: far more than there is room for, in the table and in the account.
generated long "$requests" --clients 100000
generated short "$((requests / 4))" --clients 100000
many=(--policy 10/min --key ip/128+path --max-keys 100000)
many_short="$(memory "$scratch/short.log" "${many[@]}")"
many_long="$(memory "$scratch/long.log" "${many[@]}")"

code=0
report="$(awk -v requests="$requests" -v bytes="$bytes" -v rounds="$rounds" -v policy="$policy" \
    -v counting="$(least "$scratch/counting")" -v parsing="$(least "$scratch/parsing")" \
    -v replaying="$(least "$scratch/replaying")" -v few_short="$few_short" -v few_long="$few_long" \
    -v many_short="$many_short" -v many_long="$many_long" 'BEGIN {
    ratio = replaying / (counting + parsing)
    printf "%d lines, %.0f MB; `--policy \"%s\"`; the least of %d rounds in turns.\n\n", requests, bytes / 1e6, policy, rounds
    print "| | seconds |\n|---|--:|"
    printf "| `wc -l` | %.2f |\n", counting
    printf "| parsing alone (`--parse-only`) | %.2f |\n", parsing
    printf "| replay | %.2f |\n", replaying
    printf "| replay / (`wc -l` + parsing), at most 2.0 | %.2f |\n\n", ratio
    printf "%.1f million lines a second.\n\n", requests / replaying / 1e6
    print "| peak memory, MiB | a quarter of the lines | all of them |\n|---|--:|--:|"
    printf "| 30 000 clients, room for a million keys | %.1f | %.1f |\n", few_short / 2^20, few_long / 2^20
    printf "| millions of keys (`--key ip/128+path`), room for 100 000 | %.1f | %.1f |\n", many_short / 2^20, many_long / 2^20
    exit ratio > 2.0 || few_long > 1.1 * few_short || many_long > 1.1 * many_short
}')" || code=$?

{
    printf '# Replay\n\n'
    printf 'What a replay costs beside counting lines and parsing, and that its memory does not grow with the log.\n'
    printf 'Made by `crates/tollgate-cli/benches/replay.sh` on %s. Machine: %s × %s, Linux %s; %s.\n\n' "$(date +%F)" "$(nproc)" \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(uname -r)" "$(rustc --version | cut -d' ' -f1,2)"
    printf '%s\n' "$report"
} | tee "$results"
exit "$code"
