#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# build.sh DIR [CONFIGURE-OPTION...] - configure and build the tree in DIR, beside the sources.
# A DIR that is configured already keeps its options unless others are given, and is configured
# anew if packages have been installed or removed since it looked for libraries.
set -eu

die()
{
    echo "build.sh: $*" >&2
    exit 1
}

[ $# -ge 1 ] || die "expected a directory to build in"
top=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
cd "$1"
shift
log=$PWD/build.log
: >"$log"

# configure prefers bash, with which libtool takes twice as long for every file.
CONFIG_SHELL=${CONFIG_SHELL:-/bin/sh}
export CONFIG_SHELL

# run WHAT COMMAND... - keeps the output for the case that the command fails.
run()
{
    what=$1
    shift
    "$@" >>"$log" 2>&1 || {
        case $what in
        configure) tail -n 1 "$log" ;;
        *) tail -n 25 "$log" ;;
        esac >&2
        die "$what failed in $PWD; the whole output is in $log"
    }
}

if [ ! -x "$top/configure" ] || [ ! -f "$top/Makefile.in" ]; then
    run autoreconf autoreconf -fi "$top"
fi

if [ ! -f config.status ] || { [ $# -gt 0 ] && [ "$*" != "$(cat configure.options 2>/dev/null)" ]; }
then
    run configure "$top/configure" "$@"
    echo "$*" >configure.options
elif [ -n "$(find /var/lib/dpkg/status -newer config.status 2>/dev/null)" ]; then
    run configure ./config.status --recheck
    run configure ./config.status
fi
run make make -j "$(nproc)"
