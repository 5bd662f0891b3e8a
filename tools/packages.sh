#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh build|test|guests - install the distribution's packages that are missing: `build` those
# that configure and make want, `test` also those of the tests, `guests` those of the virtual machines
# in which some tests run. Debian 12, Ubuntu 22.04 and 24.04; RHEL 9 and its relatives, with EPEL and
# CRB, and SLES 15 and openSUSE, without `guests`. As root or through sudo. Does nothing, and needs no
# rights, where nothing is missing.
#
# packages.sh --print build|test FAMILY - only say which: of debian, rhel or sles.
set -eu

die()
{
    echo "packages.sh: $*" >&2
    exit 1
}

# names FAMILY WHAT - the packages, by what they are called there.
names()
{
    case $1:$2 in
    debian:build) echo autoconf automake gcc libc6-dev libdlpack-dev libexpat1-dev libhwloc-dev \
        libibverbs-dev libjansson-dev libopenblas-dev libopenmpi-dev libtool liburing-dev make \
        pkg-config ;;
    debian:test) echo g++ jq libcmocka-dev libxml2-utils mandoc openmpi-bin patchelf python3-dev \
        abigail-tools python3-venv shellcheck ;;
    debian:guests) echo busybox-static ibverbs-providers ibverbs-utils iproute2 kmod perftest \
        qemu-system-x86 xz-utils ;;
    rhel:build) echo autoconf automake gcc glibc-devel dlpack-devel expat-devel hwloc-devel \
        rdma-core-devel jansson-devel openblas-devel openmpi-devel libtool liburing-devel make \
        pkgconf-pkg-config ;;
    rhel:test) echo gcc-c++ jq libcmocka-devel libxml2 mandoc openmpi patchelf python3-devel ShellCheck \
        hwloc ;;
    sles:build) echo autoconf automake gcc glibc-devel dlpack-devel libexpat-devel hwloc-devel \
        rdma-core-devel libjansson-devel openblas-devel openmpi4-devel libtool liburing-devel make \
        pkg-config ;;
    sles:test) echo gcc-c++ jq libcmocka-devel libxml2-tools mandoc openmpi4 patchelf python3-devel \
        ShellCheck hwloc ;;
    *) die "expected 'build', 'test' or 'guests', not '$2', and for 'guests' Debian or Ubuntu" ;;
    esac
}

# The family that this system is of, by os-release(5).
family_of()
{
    # shellcheck disable=SC1090 # of the system
    (. "$1" 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}") | tr ' ' '\n' | while read -r id; do
        case $id in
        debian | ubuntu) echo debian ;;
        rhel | fedora | centos | rocky | almalinux) echo rhel ;;
        sles | suse | opensuse*) echo sles ;;
        esac
    done | head -n 1
}

# is_installed FAMILY PACKAGE
is_installed()
{
    case $1 in
    debian) [ "$(dpkg-query -W -f '${db:Status-Status}' "$2" 2>/dev/null)" = installed ] ;;
    *) rpm -q --quiet --whatprovides "$2" ;;
    esac
}

if [ "${1-}" = --print ]; then
    wanted=$(names "${3-}" build)
    [ "${2-}" = build ] || wanted="$wanted $(names "${3-}" "${2-}")"
    echo "$wanted"
    exit 0
fi
what=${1-}
family=$(family_of "${DP_OS_RELEASE:-/etc/os-release}")
# shellcheck disable=SC2046 # words
case $what in
build) set -- $(names "${family:-debian}" build) ;;
test)
    set -- $(names "${family:-debian}" build) $(names "${family:-debian}" test)
    # Not beside hwloc, which it would push out, and which has the same tools.
    if [ "${family:-debian}" = debian ] && ! command -v lstopo-no-graphics >/dev/null; then
        set -- "$@" hwloc-nox
    fi
    ;;
guests) set -- $(names "${family:-debian}" guests) ;;
*) die "expected 'build', 'test' or 'guests', not '$what'" ;;
esac
[ $# -gt 0 ] || exit 1

[ "$family" ] ||
    die "knows only Debian, Ubuntu, RHEL, SLES and their relatives; elsewhere install what these" \
        "packages hold and give --no-install: $*"

for package; do
    shift
    is_installed "$family" "$package" || set -- "$@" "$package"
done
[ $# -gt 0 ] || exit 0

case $family in
debian) install='apt-get install --no-install-recommends' ;;
rhel) install='dnf install' ;;
sles) install='zypper install' ;;
esac
by_hand="as root run: $install $*"
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
case $family in
debian)
    # Lists that cannot be refreshed may still be good enough.
    apt update || true
    apt install -y --no-install-recommends "$@"
    ;;
rhel) as_root dnf -q -y --setopt=install_weak_deps=False install "$@" >>"$log" 2>&1 ;;
sles) as_root zypper -q -n install --no-recommends "$@" >>"$log" 2>&1 ;;
esac || {
    tail -n 15 "$log" >&2
    case $family in
    debian) where="Ubuntu has some in 'universe'" ;;
    rhel) where="some are in EPEL, and in CRB: dnf config-manager --set-enabled crb" ;;
    sles) where="some are in PackageHub: SUSEConnect -p PackageHub/15.6/x86_64" ;;
    esac
    die "they could not be installed; what was said is above ($where)"
}
