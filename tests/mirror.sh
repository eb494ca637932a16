#!/bin/sh
# Prints the mirror that this machine's apt configuration has for a Debian suite. Requires no package lists and no
# root; fails with a message if apt has no such source. usage: tests/mirror.sh SUITE
set -eu

suite=$1
command -v apt-get >/dev/null 2>&1 || {
    echo "mirror.sh: apt-get is missing: run this on Debian, with a source for $suite" >&2
    exit 1
}
# Each line is 'URI' FILE SIZE. The release file of a suite is MIRROR/dists/SUITE/InRelease.
mirror=$(apt-get update --print-uris 2>/dev/null |
    sed -n "s,^'\(.*\)/dists/$suite/InRelease'.*,\1,p" | head -n 1)
[ -n "$mirror" ] || {
    echo "mirror.sh: apt has no source for Debian $suite: add one to /etc/apt/sources.list.d, then try again" >&2
    exit 1
}
echo "$mirror"
