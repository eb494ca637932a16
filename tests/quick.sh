#!/bin/sh
# Runs the tests of `make quick`, which require no server and no emulated host, and prints the slowest programs.
set -u
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"
log=target/tests-quick.log
mkdir -p target

run_tests() {
    $CARGO test --locked --workspace --exclude berth-tests --exclude berth-benches &&
        $CARGO test --locked -p berth-tests --test tidy --test documents --test source
}
# The exit code of a pipeline is that of its last program, so the exit code of the tests is stored in a file.
{
    run_tests 2>&1
    echo $? >"$log.code"
} | tee "$log"

printf '\nSlowest programs, in seconds:\n'
# Cargo prints `Running FILE (target/debug/deps/PROGRAM-HASH)` or `Doc-tests CRATE` before the output of a program, whose
# last line is `test result: ok. 12 passed; ...; finished in 1.23s`.
awk '
    $1 == "Running" { name = $NF; sub(/.*\//, "", name); sub(/-[0-9a-f]*\)$/, "", name); name = name ", " $(NF - 1) }
    $1 == "Doc-tests" { name = $2 ", documentation" }
    /^test result: .* finished in [0-9.]*s$/ { seconds = $NF; sub(/s$/, "", seconds); printf "%9s  %s\n", seconds, name }
' "$log" | sort -rn | head -10
exit "$(cat "$log.code")"
