#!/bin/sh
# Builds the Debian package from target/PROFILE/berth-agent, which prints its own manual page and completion script.
# Passes further arguments to cargo-deb.
set -eu
cd "$(dirname "$0")/.."
profile=$1
shift
mkdir -p target/package
"target/$profile/berth-agent" man >target/package/berth-agent.1
"target/$profile/berth-agent" completion bash >target/package/berth-agent.bash
# shellcheck disable=SC2086 # CARGO may be a command with arguments
exec ${CARGO:-cargo} deb --locked --no-build --profile "$profile" -p berth-agent "$@"
