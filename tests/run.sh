#!/bin/sh
# Runs all tests, as `make test` does, when all is built: those that mostly wait for emulated hosts beside all others, as
# neither keeps the processors busy. What the former say comes at the end. usage: tests/run.sh [CARGO TEST OPTION...]
set -u
cd "$(dirname "$0")/.."
log=target/tests-hosts.log
cargo=${CARGO:-cargo}

# They are told apart by name; one that is renamed runs twice, and is not lost.
$cargo test "$@" --no-fail-fast --test shape --test networks >"$log" 2>&1 &
hosts=$!
trap 'kill "$hosts" 2>/dev/null; exit 1' HUP INT TERM
echo "shape and networks run beside the others; they write to $log"
$cargo test "$@" --no-fail-fast -- --skip a_host_is_shaped_as_asked_and_put_back --skip tenants_have_networks_of_their_own
others=$?
echo "the others have ended with $others; shape and networks follow:"
wait "$hosts"
code=$?
cat "$log"
[ "$others" = 0 ] && [ "$code" = 0 ] || {
    echo "not all tests have passed: $code of shape and networks, $others of the others" >&2
    exit 1
}
