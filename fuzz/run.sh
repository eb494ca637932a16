#!/bin/sh
# Fuzzes every parser and writes a dated result. usage: fuzz/run.sh SECONDS RESULTS
set -eu
seconds=$1
results=$2
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

command -v cargo-fuzz >/dev/null 2>&1 || cargo install cargo-fuzz --locked
# The sanitizers require unstable compiler flags: use a nightly compiler, or enable the flags in the stable compiler.
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
    fuzz() { cargo +nightly fuzz "$@"; }
else
    fuzz() { RUSTC_BOOTSTRAP=1 cargo fuzz "$@"; }
fi

date=$(date -u +%Y-%m-%d)
out="$results/$date-fuzz.md"
{
    echo "# Fuzzing, $date"
    echo
    echo "Command: \`make fuzz FUZZ_SECONDS=$seconds\`. libFuzzer with AddressSanitizer, limits: 1 s and 512 MiB for an input."
    echo
    echo "| target | runs | seconds | coverage (edges) | corpus | result |"
    echo "|---|---|---|---|---|---|"
} > "$out"
failed=0
for target in $(fuzz list); do
    log=$(mktemp)
    # New inputs are written to a separate folder; a developer adds useful inputs to the corpus (CONTRIBUTING.md).
    grown="fuzz/target/grown/$target"
    mkdir -p "$grown"
    if fuzz run "$target" "$grown" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -timeout=1 -rss_limit_mb=512 -max_len=4096 -print_final_stats=1 > "$log" 2>&1
    then result=ok; else result=FAILED; failed=1; tail -40 "$log"; fi
    runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log" | tail -1)
    cov=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    count=$(find "$grown" "fuzz/corpus/$target" -type f | wc -l)
    echo "| $target | ${runs:-?} | $seconds | ${cov:-?} | $count | $result |" >> "$out"
    echo "$target: $result, ${runs:-?} runs"
    rm -f "$log"
done
echo "the result is in $out"
exit $failed
