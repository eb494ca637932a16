#!/bin/sh
# Runs the tests of emulated hosts on the Debian suite of BERTH_HOST_SUITE (bookworm if unset), with the kernel and the
# container runtime of BERTH_HOST_NEWER_SUITE if it is set. Writes a dated result with the versions of kernel,
# containerd and CNI plugins. No test may be skipped. The log is target/tests-hosts-SUITE.log.
# usage: tests/hosts.sh FOLDER-OF-RESULTS
set -eu
cd "$(dirname "$0")/.."
results=$1
cargo=${CARGO:-cargo}
suite=${BERTH_HOST_SUITE:-bookworm}
mkdir -p target "$results"
newer=${BERTH_HOST_NEWER_SUITE:-}
name=$suite${newer:+-$newer}
log=target/tests-hosts-$name.log
begin=$(date +%s)

BERTH_NO_SKIP=1 $cargo test --locked --workspace --no-fail-fast --test bed --test emulated --test kubelet --test networks \
    --test shape -- --include-ignored --skip faults_ --nocapture --test-threads 1 >"$log" 2>&1 || {
    grep -E '^test .* FAILED|^error: test failed' "$log" >&2 || tail -5 "$log" >&2
    echo "make hosts: failed on Debian $name; the log is $log" >&2
    exit 1
}
result=$results/$(date -u +%F)-hosts-$name.md
{
    printf '# Emulated hosts with Debian %s, %s\n\n' "$suite${newer:+ and $newer}" "$(date -u +%F)"
    printf 'Command: `BERTH_HOST_SUITE=%s make hosts`, %s min on %s cores.\n\n' \
        "$suite${newer:+ BERTH_HOST_NEWER_SUITE=$newer}" "$((($(date +%s) - begin) / 60))" "$(nproc)"
    # No test of this command runs KubeVirt.
    KUBEVIRT_ASSETS='' ./tests/versions.sh --table 'make hosts'
    printf '\nPassed:\n\n'
    # A test with --nocapture prints between its name and its result.
    sed -n 's/^test \([a-z_:]*\) \.\.\..*/* `\1`/p' "$log"
} >"$result"
[ "$results" != docs/results ] || ./tests/compatibility.sh
echo "the result is in $result"
