#!/bin/sh
# Runs both programs, and counts instructions a call, as the results page was made.
# Usage: ./run.sh [--quick]     (prints markdown)
set -eu
cd "$(dirname "$0")"
target="${CARGO_TARGET_DIR:-/tmp/layouts-target}"
CARGO_TARGET_DIR="$target" cargo build --release --quiet \
    --config 'profile.release.lto="fat"' --config 'profile.release.codegen-units=1'
bin="$target/release/tollgate-layouts"

echo "## Geometry"
"$target/release/geometry" "$@"
echo
echo "## Layouts"
"$bin" "$@"

command -v valgrind >/dev/null || exit 0
echo
echo "## Instructions a call (1 k keys, counter, ahash and loop included)"
echo
echo "| contender | instructions |"
echo "|---|---|"
# Only the timed loop is counted: the clock calibrates itself at start-up for as long as it takes, so a count
# of the whole program differs by millions from run to run.
calls=40000
"$bin" --list | while IFS="$(printf '\t')" read -r number name; do
    total=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*clock_first*' \
        "$bin" --count "$number" "$calls" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
    echo "| $name | $(((total + calls / 2) / calls)) |"
done
