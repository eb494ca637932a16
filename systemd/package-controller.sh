#!/bin/sh
# Builds the Debian package of berth-controller and kubectl-berth from a cargo profile. The programs print their own manual pages
# and completion scripts.
# usage: systemd/package-controller.sh PROFILE [CARGO DEB OPTION...]
set -eu
cd "$(dirname "$0")/.."
profile=$1
shift
# cargo's folder of the profile `dev` has another name.
folder=target/$profile
[ "$profile" != dev ] || folder=target/debug
mkdir -p target/package
for program in berth-controller kubectl-berth; do
    "$folder/$program" man >"target/package/$program.1"
    "$folder/$program" completion bash >"target/package/$program.bash"
done
# shellcheck disable=SC2086 # CARGO may be a command with arguments
exec ${CARGO:-cargo} deb --locked --no-build --profile "$profile" -p berth-controller "$@"
