#!/bin/sh
# Installs the missing requirements of the tests and benchmarks on Debian and Ubuntu. Requires root only
# if a program is missing. Arguments name additional programs: PROGRAM=PACKAGE, or PROGRAM=cargo:CRATE. With --build, it
# installs only the requirements of a build, and fails if the others cannot be installed.
set -eu

build_only=
[ "${1:-}" != --build ] || {
    build_only=1
    shift
}
missing=
crates=
want() { # adds the package to the missing packages if the program is missing; usage: want PROGRAM PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
want cc gcc
for_build=$missing
want tar tar
want bzip2 bzip2
want xz xz-utils
want groff groff-base
want lscpu util-linux
want lstopo-no-graphics hwloc-nox
want virt-host-validate libvirt-clients
want setpriv util-linux
want ip iproute2
want curl curl
want openssl openssl
want jq jq
want udhcpc udhcpc
want chromium chromium
want chromedriver chromium-driver
want dhclient isc-dhcp-client
want /usr/lib/systemd/systemd-networkd systemd
for pair in "$@"; do
    case ${pair#*=} in
    cargo:*) command -v "${pair%%=*}" >/dev/null 2>&1 || crates="$crates ${pair#*=cargo:}" ;;
    *) want "${pair%%=*}" "${pair#*=}" ;;
    esac
done

if [ -n "$crates" ] && [ -z "$build_only" ]; then
    echo "setup: installing$crates"
    # These programs run for seconds, so they are built in less time, without the optimisations of their own profiles.
    # shellcheck disable=SC2086 # a list of words
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --locked $crates
fi

[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: this is not Debian or Ubuntu, install these yourself:$missing" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "setup: run as root once: apt-get install -y$missing" >&2
    exit 1
fi
[ -z "$build_only" ] || missing=$for_build
[ -n "$missing" ] || exit 0
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
