#!/bin/sh
# Runs all tests against a current Kubernetes and the real KubeVirt, and writes a dated result. No test may be skipped,
# except the slow ones of other make targets. usage: tests/current.sh FOLDER-OF-RESULTS | --check
#   --check: only checks that the programs are there
set -eu
cd "$(dirname "$0")/.."
results=$1
cargo=${CARGO:-cargo}

require() { # a variable, then the files that its folder must have
    variable=$1
    shift
    eval "folder=\${$variable:-}"
    [ -n "$folder" ] || {
        echo "make test-current: set $variable to a folder with: $*" >&2
        exit 1
    }
    for name in "$@"; do
        [ -e "$folder/$name" ] || {
            echo "make test-current: $variable=$folder has no $name" >&2
            exit 1
        }
    done
}
require KUBEBUILDER_ASSETS etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet
require KUBEVIRT_ASSETS VERSION virt-api virt-controller manifests/crds.yaml manifests/webhooks.yaml \
    virt-handler virt-chroot launcher-image.tar guest-image.tar manifests/rbac.yaml

[ -z "${CDI_ASSETS:-}" ] || require CDI_ASSETS VERSION cdi-controller cdi-apiserver manifests/crds.yaml manifests/webhooks.yaml

[ "$1" != --check ] || exit 0

mkdir -p target
log=target/tests-current.log
begin=$(date +%s)
code=0
export BERTH_NO_SKIP=1
./tests/run.sh --locked --workspace >"$log" 2>&1 || code=1
tail -30 "$log"
# tests/run.sh writes its skipped tests to the same file, which it empties when it starts.
export BERTH_SKIPS="$PWD/target/tests-skipped.log" PROPTEST_RNG_SEED=20
tests="kubevirt vm demo${CLOUD_CONTROLLER_MANAGER:+ cloud_controller}${METALLB_CONTROLLER:+ metallb}${CDI_ASSETS:+ cdi}"
for test in $tests; do
    $cargo test --locked --workspace --test "$test" -- --include-ignored --nocapture >"$log.$test" 2>&1 || code=1
    echo "$test: $(grep '^test result:' "$log.$test" || tail -3 "$log.$test")"
done
if grep -q '^part: ' target/tests-skipped.log; then
    echo "make test-current: parts of tests were skipped because of the version of Kubernetes:" >&2
    grep '^part: ' target/tests-skipped.log >&2
    code=1
fi
[ "$code" = 0 ] || {
    echo "make test-current: failed; the logs are $log and $log.*" >&2
    exit 1
}
versions=$(./tests/versions.sh)
for name in kube-apiserver kube-scheduler kube-controller-manager kubelet etcd KubeVirt 'host: kernel-stable'; do
    echo "$versions" | grep -q "^$name " || {
        echo "make test-current: the version of $name is unknown" >&2
        exit 1
    }
done
ignored() { # prints the number of ignored tests for each make target that runs them
    sed -n 's/^test .* \.\.\. ignored, .*: \(make [a-z-]*\)$/\1/p' "$log" | sort | uniq -c |
        awk '{ printf "%s%s of `%s %s`", (NR > 1 ? ", " : ""), $1, $2, $3 }'
}
mkdir -p "$results"
result=$results/$(date -u +%F)-current.md
{
    printf '# All tests on a current Kubernetes and the real KubeVirt, %s\n\n' "$(date -u +%F)"
    printf 'Command: `make test-current`, %s min on %s cores.\n\n' "$((($(date +%s) - begin) / 60))" "$(nproc)"
    printf 'The skipped tests are run by other commands: %s. Those of `make test-current` have rows of their own below, if their programs were given.\n\n' "$(ignored)"
    ./tests/versions.sh --table 'make test-current'
    printf '\n| tests | result |\n|---|---|\n'
    printf '| all but the next | %s |\n' "$(tail -1 "$log")"
    for test in $tests; do
        printf '| `%s`, ignored tests included | %s |\n' "$test" "$(sed -n 's/^test result: ok. \(.*\); 0 measured.*/\1/p' "$log.$test")"
    done
} >"$result"
[ "$results" != docs/results ] || ./tests/compatibility.sh
echo "the result is in $result"
