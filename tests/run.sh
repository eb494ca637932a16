#!/bin/sh
# Runs all tests for `make test`, after the build. The tests of emulated hosts mostly wait, so they run in parallel with
# all other tests; their output follows at the end. The last lines count the passed, failed and skipped tests.
# usage: tests/run.sh [CARGO TEST OPTION...]
set -u
cd "$(dirname "$0")/.."
mkdir -p target
log=target/tests.log
hosts_log=target/tests-hosts.log
BERTH_SKIPS=$PWD/target/tests-skipped.log
export BERTH_SKIPS
# Random cases are the same in every run; PROPTEST_RNG_SEED selects other cases, PROPTEST_CASES their number.
: "${PROPTEST_RNG_SEED:=20}"
export PROPTEST_RNG_SEED
: >"$BERTH_SKIPS"
cargo=${CARGO:-cargo}
begin=$(date +%s)

# Selects tests by name; a renamed test runs twice and is not lost.
$cargo test "$@" --no-fail-fast --test shape --test networks >"$hosts_log" 2>&1 &
hosts=$!
trap 'kill "$hosts" 2>/dev/null; exit 1' HUP INT TERM
echo "the tests shape and networks run in parallel with the other tests; their log is $hosts_log"
{
    $cargo test "$@" --no-fail-fast -- --skip host_is_configured_and_restored --skip tenant_networks_are_isolated \
        --skip trunk_is_verified
    echo $? >target/tests.code
} 2>&1 | tee "$log"
others=$(cat target/tests.code)
echo "the other tests ended with exit code $others; the log of shape and networks follows:"
wait "$hosts"
code=$?
cat "$hosts_log"

sum() { # adds the numbers before a word in the result lines of both runs
    sed -n "s/^test result: .* \([0-9]*\) $1.*/\1/p" "$log" "$hosts_log" | awk '{ n += $1 } END { print n + 0 }'
}
listed() { # prints a heading and the lines of standard input
    lines=$(sort -u)
    [ -z "$lines" ] || printf '\n%s\n%s\n' "$1" "$(echo "$lines" | sed 's/^/  /')"
}
grep '^part: ' "$BERTH_SKIPS" | sed 's/^part: //' | listed "Parts of tests, skipped because this Kubernetes version does not support them:"
grep -v '^part: ' "$BERTH_SKIPS" | listed "Tests, skipped because this machine does not meet their requirements:"
sed -n 's/^test \(.*\) \.\.\. ignored, \(.*\)/\1: \2/p' "$log" "$hosts_log" | listed "Tests, skipped because another make target runs them:"
skipped=$(grep -cv '^part: ' "$BERTH_SKIPS")
[ "$others" = 0 ] && [ "$code" = 0 ] || {
    printf '\n' >&2
    echo "tests failed: exit code $code for shape and networks, $others for the other tests" >&2
    grep -hE '^test .* FAILED|^error: test failed' "$log" "$hosts_log" | sort -u >&2
}
# The tests with KubeVirt belong to `make test-current`.
printf '\nVersions of the programs on this machine:\n%s\n' "$(KUBEVIRT_ASSETS='' ./tests/versions.sh | sed 's/^/  /')"
echo
echo "all tests took $((($(date +%s) - begin) / 60)) min"
echo "$(($(sum passed) - skipped)) passed, $(sum failed) failed, $(($(sum ignored) + skipped)) skipped"
[ "$others" = 0 ] && [ "$code" = 0 ]
