#!/bin/sh
# Builds the Kubernetes control plane and the image of emulated hosts for the tests, if this machine does not have them. Both
# report their progress. usage: tests/prepare.sh
set -u
cd "$(dirname "$0")"
begin=$(date +%s)
./host/image.sh >/dev/null &
image=$!
trap 'kill "$image" 2>/dev/null; exit 1' HUP INT TERM
code=0
[ -n "${KUBEBUILDER_ASSETS:-}" ] || ./cluster/assets.sh >/dev/null || code=1
wait "$image" || code=1
duration=$(($(date +%s) - begin))
[ "$duration" -lt 5 ] || echo "prepare.sh: control plane and host image were ready after $duration s" >&2
exit "$code"
