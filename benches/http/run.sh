#!/usr/bin/env bash
# What the layer costs an axum service: wrk on loopback against examples/axum_service.rs, with the layer and without,
# in turns. Then a run against a limit, which has to be met to the request.
#
#   benches/http/run.sh [rounds] [seconds] [connections]        15 rounds of 4 s with 32 connections unless given
#
# Some four minutes. Prints requests a second of each run, the medians and their ratio, and the processor time a request
# takes of the server, and writes them to benches/results/http.md, or to $RESULTS. Fails if the median of the rounds'
# ratios is below 0.98, if what was admitted is not what the rule allows, or if fewer than a million requests were made
# with the layer, without it, or against the limit. The ratio takes a machine that does nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

rounds="${1:-15}" seconds="${2:-4}" connections="${3:-32}"
results="${RESULTS:-benches/results/http.md}"
requests_min=1000000 ratio_min=0.98 rounds_max=$((rounds * 4))
command -v wrk >/dev/null || { echo "run.sh: wrk is missing" >&2; exit 1; }

cargo build --release --quiet --example axum_service --features axum
server="${CARGO_TARGET_DIR:-target}/release/examples/axum_service"
scratch="$(mktemp -d)"
pids=()
# By their ids: nothing else on the machine is ours to end.
trap 'for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; rm -rf "$scratch"' EXIT

# Starts a server, with the rules of a file or with `--no-limits`; sets `url`.
start() {
    local log="$scratch/log.${#pids[@]}"
    "$server" 127.0.0.1:0 "$@" >"$log" &
    pids+=("$!")
    for _ in $(seq 100); do
        url="$(sed -n 's/^listening on //p' "$log")"
        if [[ -n "$url" ]]; then return; fi
        sleep 0.05
    done
    echo "run.sh: the server does not listen" >&2
    exit 1
}

rules() {
    printf '[[rule]]\nname = "default"\nlimit = "%s"\n\n' "$1"
    printf '[[rule]]\nname = "login"\nmatch = { path = "/login", method = "POST" }\nlimit = "log 5/15min"\n'
}

# Sets `total` and `refused`.
load() {
    local report
    report="$(wrk -t 1 -c "$connections" -d "${2}s" "$1/")"
    total="$(sed -n 's/^ *\([0-9]*\) requests in .*/\1/p' <<<"$report")"
    refused="$(sed -n 's/.*Non-2xx or 3xx responses: \([0-9]*\).*/\1/p' <<<"$report")"
    refused="${refused:-0}"
    if grep -q 'Socket errors' <<<"$report"; then echo "$report" >&2; exit 1; fi
}

# What a server has used of the processors, in ticks of a hundredth of a second.
ticks() { sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }

median() { sort -n | awk '{ at[NR] = $1 } END { print (at[int((NR + 1) / 2)] + at[int(NR / 2) + 1]) / 2 }'; }

rules "1000000000/min" >"$scratch/open.toml"
start "$scratch/open.toml" && with="$url" with_pid="${pids[-1]}"
start --no-limits && without="$url" without_pid="${pids[-1]}"
for url in "$with" "$without"; do load "$url" 1; done

with_ticks="$(ticks "$with_pid")" without_ticks="$(ticks "$without_pid")"
with_total=0 without_total=0 round=0
while ((round < rounds || with_total < requests_min || without_total < requests_min)); do
    round=$((round + 1))
    ((round <= rounds_max)) || { echo "run.sh: too slow for $requests_min requests" >&2; exit 1; }
    # Who goes first changes: the machine is not the same at the beginning of a round and at its end.
    order=(with without)
    if ((round % 2 == 0)); then order=(without with); fi
    for side in "${order[@]}"; do
        load "${!side}" "$seconds"
        ((refused == 0)) || { echo "run.sh: $refused refused that should have passed" >&2; exit 1; }
        echo "$((total / seconds))" >>"$scratch/$side"
        sum="${side}_total"
        printf -v "$sum" '%d' "$((${!sum} + total))"
    done
    with_rate="$(tail -n 1 "$scratch/with")" without_rate="$(tail -n 1 "$scratch/without")"
    printf 'round %2d  with %8d/s  without %8d/s\n' "$round" "$with_rate" "$without_rate"
    awk -v round="$round" -v with="$with_rate" -v without="$without_rate" \
        'BEGIN { printf "| %d | %d | %d | %.4f |\n", round, with, without, with / without }' >>"$scratch/table"
done
with_median="$(median <"$scratch/with")" without_median="$(median <"$scratch/without")"
ratio="$(paste "$scratch/with" "$scratch/without" | awk '{ print $1 / $2 }' | median)"
{
    printf 'requests: %d with the layer, %d without\n' "$with_total" "$without_total"
    printf 'medians: %.0f/s with, %.0f/s without, ratio %.4f; **median of the ratios %.4f**\n' \
        "$with_median" "$without_median" "$(awk "BEGIN { print $with_median / $without_median }")" "$ratio"
    awk -v with="$(($(ticks "$with_pid") - with_ticks))" -v without="$(($(ticks "$without_pid") - without_ticks))" \
        -v with_total="$with_total" -v without_total="$without_total" 'BEGIN {
            a = with * 10000 / with_total; b = without * 10000 / without_total
            printf "processor: %.2f us a request with, %.2f us without, ratio %.4f\n", a, b, a / b
        }'
} | tee "$scratch/summary"

# To the request: a quota that is used up long before the first run ends, so that none of those that wrk gives up on at
# its end is among them. In half a year no window ends meanwhile.
quota=50000
rules "fixed $quota/26w" >"$scratch/quota.toml"
start "$scratch/quota.toml"
asked=0 admitted=0
while ((asked < requests_min)); do
    load "$url" "$((seconds * 2))"
    ((refused > 0)) || { echo "run.sh: the quota outlasts a run, give it more seconds" >&2; exit 1; }
    asked=$((asked + total)) admitted=$((admitted + total - refused))
done
printf 'quota: %d of %d requests admitted under `fixed %d/26w`\n' "$admitted" "$asked" "$quota" | tee -a "$scratch/summary"

version() { cargo pkgid -p "$1" | sed 's/.*[#@]//'; }
{
    echo "# What the layer costs an axum service"
    echo
    echo "Written by \`benches/http/run.sh $rounds $seconds $connections\` on $(date -u +%F): wrk on loopback against"
    echo "\`examples/axum_service.rs\`, \`GET /\` with a rule for everything and one for logins, with the layer and without it in"
    echo "turns. Only the ratios mean anything: client and server share the machine."
    echo
    echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, Linux $(uname -r)  "
    # wrk says its version and fails.
    echo "versions: $(rustc --version | cut -d ' ' -f 1-2), tollgate $(version tollgate), axum $(version axum), $({ wrk -v || true; } 2>&1 | sed -n '1s/ \[.*//p')"
    echo
    sed 's/$/  /' "$scratch/summary"
    echo
    echo "| round | with, requests/s | without | ratio |"
    echo "|---|---|---|---|"
    cat "$scratch/table"
} >"$results"
echo "written to $results"

((admitted == quota)) || { echo "run.sh: admitted $admitted, the rule allows $quota" >&2; exit 1; }
awk "BEGIN { exit !($ratio >= $ratio_min) }" || { echo "run.sh: a ratio of $ratio, which is below $ratio_min" >&2; exit 1; }
