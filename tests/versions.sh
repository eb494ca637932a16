#!/bin/sh
# Prints the versions of the programs that the tests run against, one `NAME VERSION` for each line. Programs that the
# machine does not have yet are left out. usage: tests/versions.sh [--table COMMAND]
#   --table: as a table in Markdown that tests/compatibility.sh reads; COMMAND has passed with these versions
set -u
if [ "${1:-}" = --table ]; then
    printf '| program | version | passed tests |\n|---|---|---|\n'
    "$0" | sed -E "s/^(host: )?([^ ]+) (.*)/| \1\2 | \3 | \`$2\` |/"
    exit 0
fi
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
assets=${KUBEBUILDER_ASSETS:-$("$here/cluster/assets.sh" --find 2>/dev/null)}
for program in kube-apiserver kube-scheduler kube-controller-manager kubelet etcd; do
    [ -x "$assets/$program" ] &&
        "$assets/$program" --version 2>/dev/null | sed -n "s/^\(Kubernetes\|etcd Version:\) v*/$program /p"
done
if [ -n "${KUBEVIRT_ASSETS:-}" ]; then
    echo "KubeVirt $(cat "$KUBEVIRT_ASSETS/VERSION" 2>/dev/null || echo "unknown: $KUBEVIRT_ASSETS/VERSION is missing")"
fi
if [ -n "${CDI_ASSETS:-}" ]; then
    echo "CDI $(cat "$CDI_ASSETS/VERSION" 2>/dev/null || echo "unknown: $CDI_ASSETS/VERSION is missing")"
fi
qemu-system-x86_64 --version 2>/dev/null | sed -n 's/^QEMU emulator version \([^ ]*\).*/QEMU \1/p'
# The image is named by its Debian suite; the versions of its packages are in a file beside it.
image=$("$here/host/image.sh" --find 2>/dev/null) && [ -f "$image/versions" ] && sed 's/^/host: /' "$image/versions"
exit 0
