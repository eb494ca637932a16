#!/bin/sh
# Unpacks the captured 80-CPU server that the benchmark reads. usage: benches/tree.sh FOLDER
set -eu
folder=$1
capture="$(cd "$(dirname "$0")/.." && pwd)/../shared/peers/nto/worker1.sysinfo.tgz"
[ ! -d "$folder/sys" ] || exit 0
if [ ! -f "$capture" ]; then
    echo "bench: no capture at shared/peers/nto/worker1.sysinfo.tgz beside this repository; put any" >&2
    echo "bench: captured tree (proc/, sys/) in $folder, for example by hwloc-gather-topology" >&2
    exit 1
fi
mkdir -p "$folder"
tar -xzf "$capture" -C "$folder"
