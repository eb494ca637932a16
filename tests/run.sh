#!/bin/sh
# Runs all tests for `make test`, after the build. Most test programs wait most of the time, so four run in parallel, of
# which at most three use emulated hosts. The last lines count the passed, failed and skipped tests.
# usage: tests/run.sh [CARGO TEST OPTION...]
set -u
cd "$(dirname "$0")/.."
PROGRAM_LOGS=$PWD/target/tests-logs
BERTH_SKIPS=$PWD/target/tests-skipped.log
: "${CARGO:=cargo}"
# Random cases are the same in every run; PROPTEST_RNG_SEED selects other cases, PROPTEST_CASES their number.
: "${PROPTEST_RNG_SEED:=20}"
# Kubernetes and etcd collect garbage less often (percent of growth; default 100): tests need CPU time more than memory.
: "${GOGC:=400}"
export PROGRAM_LOGS BERTH_SKIPS CARGO PROPTEST_RNG_SEED GOGC
rm -rf "$PROGRAM_LOGS"
mkdir -p "$PROGRAM_LOGS"
: >"$BERTH_SKIPS"
: >"$PROGRAM_LOGS/results"
log=target/tests.log
begin=$(date +%s)

$CARGO test "$@" --no-run --message-format json >"$PROGRAM_LOGS/programs.json" || exit 1
# Lines are `FOLDER NAME PROGRAM`.
sed -n '/"profile":{[^}]*"test":true/ s#.*"manifest_path":"\([^"]*\)/Cargo.toml".*"name":"\([^"]*\)","src_path.*"executable":"\([^"]*\)".*#\1 \2 \3#p' \
    "$PROGRAM_LOGS/programs.json" >"$PROGRAM_LOGS/programs"
# A job is a folder, and programs that run one after the other. The longest jobs are first: `long` has those of the folder
# tests, and `long_rest` those of other folders, where some programs have the same names. A name that is missing here only
# makes the run longer. A program with two long tests can be in two jobs, `NAME=TEST` and `NAME!TEST` (see tests/job.sh).
awk -v long_rest=' berth_controller dhcp kubevirt_vectors ' -v long='networks!addresses_ networks=addresses_+kubelet shape degraded self_service tenants addresses tenant_nodes node_drain assign drain_faults host_drain_faults cluster hostile_tenant host_drain tenant_storage host_loss exposure images image_obstacles image_faults console' '
    $1 ~ /\/tests$/ { program[$2] = $3; folder = $1; next }
    index(long_rest, " " $2 " ") { early[++m] = $1 " " $3; next }
    { rest[++n] = $1 " " $3 }
    END {
        jobs = split(long, job, " ")
        for (i = 1; i <= jobs; i++) {
            line = ""
            parts = split(job[i], part, "+")
            for (j = 1; j <= parts; j++) {
                name = test = part[j]
                sub(/[=!].*/, "", name)
                sub(/^[^=!]*/, "", test)
                if (name in program) { line = line " " program[name] test; listed[name] }
            }
            if (line) { print folder line }
        }
        for (i = 1; i <= m; i++) { print early[i] }
        for (name in program) { if (!(name in listed)) { print folder, program[name] } }
        for (i = 1; i <= n; i++) { print rest[i] }
    }' "$PROGRAM_LOGS/programs" >"$PROGRAM_LOGS/jobs"
# Documentation tests have no program.
echo "$PWD doc $*" >>"$PROGRAM_LOGS/jobs"
count=$(($(wc -l <"$PROGRAM_LOGS/programs") + 1 + $(grep -c '!' "$PROGRAM_LOGS/jobs")))
echo "running $count test programs, four in parallel; each shows its results when it ends"
xargs -P 4 -L 1 ./tests/job.sh <"$PROGRAM_LOGS/jobs" 2>&1 | tee "$log"

results=$PROGRAM_LOGS/results
sum() { # adds the numbers before a word in the result lines
    sed -n "s/^test result: .* \([0-9]*\) $1.*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }'
}
listed() { # prints a heading and the lines of standard input
    lines=$(sort -u)
    [ -z "$lines" ] || printf '\n%s\n%s\n' "$1" "$(echo "$lines" | sed 's/^/  /')"
}
grep '^part: ' "$BERTH_SKIPS" | sed 's/^part: //' | listed "Parts of tests, skipped because this Kubernetes version does not support them:"
grep -v '^part: ' "$BERTH_SKIPS" | listed "Tests, skipped because this machine does not meet their requirements:"
sed -n 's/^test \(.*\) \.\.\. ignored, \(.*\)/\1: \2/p' "$log" | listed "Tests, skipped because another make target runs them:"
skipped=$(grep -cv '^part: ' "$BERTH_SKIPS")
printf '\nSlowest programs, with their seconds and core seconds:\n%s\n' "$(sort -rn "$results" | head -10 | awk '{ print "  " $2, $1, $4 }')"
awk '{ core += $4 } END { print "  all programs: " core " core seconds" }' "$results"
ended=$(wc -l <"$results")
failed=$(awk '$3 != 0 { print $2 " ended with exit code " $3 }' "$results")
[ "$ended" = "$count" ] || failed="$failed
$ended of $count programs have ended"
[ -z "$failed" ] || {
    printf '\ntests failed:\n%s\n' "$failed" >&2
    grep -hE '^test .* FAILED' "$log" | sort -u >&2
}
# The tests with KubeVirt belong to `make test-current`.
printf '\nVersions of the programs on this machine:\n%s\n' "$(KUBEVIRT_ASSETS='' ./tests/versions.sh | sed 's/^/  /')"
echo
echo "all tests took $((($(date +%s) - begin) / 60)) min"
echo "$(($(sum passed) - skipped)) passed, $(sum failed) failed, $(($(sum ignored) + skipped)) skipped"
[ -z "$failed" ]
