#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh build|test|guests - install the distribution's packages that are missing: `build` those
# that configure and make want, `test` also those of the tests, `guests` those of the virtual machines
# in which some tests run. Debian 12, Ubuntu 22.04 and 24.04, as root or through sudo. Does nothing,
# and needs no rights, where nothing is missing.
set -eu

die()
{
    echo "packages.sh: $*" >&2
    exit 1
}

what=${1-}
set -- autoconf automake gcc libc6-dev libdlpack-dev libexpat1-dev libhwloc-dev libibverbs-dev \
    libjansson-dev libopenblas-dev libtool liburing-dev make pkg-config
case $what in
build) ;;
test)
    set -- "$@" g++ jq libcmocka-dev libopenmpi-dev libxml2-utils mandoc openmpi-bin shellcheck
    # Not beside hwloc, which it would push out, and which has the same tools.
    command -v lstopo-no-graphics >/dev/null || set -- "$@" hwloc-nox
    ;;
guests) set -- busybox-static ibverbs-providers ibverbs-utils iproute2 kmod perftest \
    qemu-system-x86 xz-utils ;;
*) die "expected 'build', 'test' or 'guests', not '$what'" ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    die "knows only Debian, Ubuntu and their relatives; elsewhere install what these packages hold" \
        "and give --no-install: $*"
fi

for package; do
    shift
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || true
    [ "$state" = installed ] || set -- "$@" "$package"
done
[ $# -gt 0 ] || exit 0

by_hand="as root run: apt-get install --no-install-recommends $*"
if [ "$(id -u)" = 0 ]; then
    as_root()
    {
        "$@"
    }
elif command -v sudo >/dev/null; then
    sudo -n true 2>/dev/null || [ -t 0 ] ||
        die "sudo wants a password and there is no terminal to type it; $by_hand"
    as_root()
    {
        sudo "$@"
    }
else
    die "not root, and no sudo; $by_hand"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt()
{
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1
}

echo "Installing $*"
# Lists that cannot be refreshed may still be good enough.
apt update || true
if ! apt install -y --no-install-recommends "$@"; then
    tail -n 15 "$log" >&2
    die "apt-get could not install them; what it said is above (Ubuntu has some in 'universe')"
fi
