#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh - names of packages for each family of systems; with --full, a Debian package that is
# built and installed in a clean root, and an RPM that is built.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL

# names_packages_for WHAT FAMILY PACKAGE - which is among them.
names_packages_for()
{
    sh "$DP_TOP_SRCDIR/tools/packages.sh" --print "$1" "$2" >out || return
    grep -qw -e "$3" out || wrong "no $3 among $(cat out)" || return
    [ "$(wc -w <out)" -ge 12 ] || wrong "few packages: $(cat out)"
}

refuses_an_unknown_system()
{
    echo 'ID=plan9' >os-release
    DP_OS_RELEASE=$work/os-release sh "$DP_TOP_SRCDIR/tools/packages.sh" build >out 2>&1 &&
        wrong 'an unknown system is taken' && return
    grep -q 'knows only Debian, Ubuntu, RHEL, SLES' out || wrong "it says: $(cat out)"
}

# Every command of the package runs where nothing else was installed by hand.
a_debian_package_is_installed_in_a_clean_root()
{
    [ "$(id -u)" = 0 ] || skip 'a clean root: only root can make one'
    command -v debootstrap >/dev/null ||
        skip 'a clean root: there is no debootstrap (apt-get install debootstrap)'
    command -v dpkg-shlibdeps >/dev/null || skip 'a Debian package: there is no dpkg-dev'
    make -s -C "$DP_TOP_BUILDDIR" deb >log 2>&1 || wrong "make deb fails: $(tail -n 20 log)" ||
        return
    package=$(tail -n 1 log)
    dpkg-deb -c "$package" | grep -q 'share/zsh/vendor-completions/_dualpipe$' ||
        wrong 'no completion where zsh looks' || return
    # shellcheck disable=SC1091 # of the system
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    debootstrap --variant=minbase "$suite" root >log 2>&1 ||
        skip "a clean root: debootstrap fails: $(tail -n 1 log)"
    cp "$package" root/dualpipe.deb
    chroot root apt-get -qq update >log 2>&1
    chroot root apt-get -qq install -y --no-install-recommends /dualpipe.deb >log 2>&1 ||
        wrong "it is not installed: $(tail -n 20 log)" || return
    chroot root dualpipe --version || return
    chroot root dualpipe schedule check dualpipe -P 4 -M 8 || return
    chroot root dualpipe train --data /usr/share/common-licenses/GPL-3 --steps 3 --width 16 \
        --layers 8 --sample 0 || return
    chroot root apt-get -qq purge -y dualpipe >log 2>&1 ||
        wrong "it is not removed: $(tail -n 5 log)" || return
    left=$(find root/usr root/etc -name '*dualpipe*' ! -path '*/dpkg/*')
    [ -z "$left" ] || wrong "purge leaves $left"
}

an_rpm_is_built()
{
    command -v rpmbuild >/dev/null || skip 'an RPM: there is no rpmbuild (apt-get install rpm)'
    make -s -C "$DP_TOP_BUILDDIR" rpm RPMBUILD_FLAGS=--nodeps >log 2>&1 ||
        wrong "make rpm fails: $(tail -n 20 log)" || return
    rpm -qlp "$DP_TOP_BUILDDIR"/dualpipe-*.rpm >files 2>>log || return
    for file in bin/dualpipe dualpipe/pipeline.h libnccl-net-dualpipe.so man1/dualpipe.1; do
        grep -qF "$file" files || wrong "no $file in the RPM" || return
    done
}

it names_packages_for test debian libcmocka-dev
it names_packages_for test rhel libcmocka-devel
it names_packages_for build sles libjansson-devel
it refuses_an_unknown_system
if [ "${DP_TEST_FULL:-}" ]; then
    it a_debian_package_is_installed_in_a_clean_root
    it an_rpm_is_built
fi
finish
