#!/bin/sh
# Builds the Debian package from the agent of a cargo profile, which prints its own manual page and completion script.
# usage: systemd/package.sh PROFILE [CARGO DEB OPTION...]
set -eu
cd "$(dirname "$0")/.."
profile=$1
shift
# cargo's folder of the profile `dev` has another name.
program=target/$profile/berth-agent
[ "$profile" != dev ] || program=target/debug/berth-agent
mkdir -p target/package
"$program" man >target/package/berth-agent.1
"$program" completion bash >target/package/berth-agent.bash
# shellcheck disable=SC2086 # CARGO may be a command with arguments
exec ${CARGO:-cargo} deb --locked --no-build --profile "$profile" -p berth-agent "$@"
