#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# plugin.sh - each plugin exports what NCCL looks for and nothing else, needs no library but those of C,
# and stays once it is loaded.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"

for tool in nm readelf; do
    command -v $tool >/dev/null || {
        echo "skipped: no $tool here"
        exit 77
    }
done

# check FILE SYMBOL VERSION... - the plugin in this file has this symbol of these versions.
check()
{
    plugin=$DP_TOP_BUILDDIR/nccl-plugin/.libs/$1
    expected=$(
        symbol=$2
        shift 2
        for v; do echo "$symbol$v"; done | sort
    )
    different=$(nm -D --defined-only "$plugin" | awk '{ print $3 }' | sort)
    [ "$different" != "$expected" ] || different=
    case_is "$1 exports something else than $2N" "$different"

    # A sanitizer and coverage need libraries of their own.
    case $DP_CC in
    *-fsanitize* | *--coverage*) case_skipped "libraries of $1: this build is instrumented" ;;
    *)
        case_is "$1 needs a library besides those of C" \
            "$(readelf -d "$plugin" | grep NEEDED |
                grep -vE '\[(libc|libm|libpthread|libdl|ld-linux[^]]*)\.so[^]]*\]' || :)"
        ;;
    esac
    case_is "$1 can be unloaded" "$(readelf -d "$plugin" | grep -q NODELETE || echo 'no NODELETE')"
}

check libnccl-net-dualpipe.so ncclNetPlugin_v 6 7 8 9 10 11 12
check libnccl-tuner-dualpipe.so ncclTunerPlugin_v 1 2 3 4 5 6
cases_end
