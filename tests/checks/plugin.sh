#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# plugin.sh - the plugin is a good guest: it exports what NCCL looks for and nothing else, brings no
# library along, and stays once it is loaded.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"

plugin=$DP_TOP_BUILDDIR/nccl-plugin/.libs/libnccl-net-dualpipe.so
for tool in nm readelf; do
    command -v $tool >/dev/null || {
        echo "skipped: no $tool here"
        exit 77
    }
done

expected=$(
    for v in 10 11 12 6 7 8 9; do echo ncclNetPlugin_v$v; done
    for v in 1 2 3 4 5 6; do echo ncclTunerPlugin_v$v; done
)
exported=$(nm -D --defined-only "$plugin" | awk '{ print $3 }' | sort)
[ "$exported" = "$expected" ] || different=$exported
case_is 'exports something else than ncclNetPlugin_v6 to _v12 and ncclTunerPlugin_v1 to _v6' "${different:-}"

# A sanitizer and coverage need libraries of their own.
case $DP_CC in
*-fsanitize* | *--coverage*) case_skipped 'libraries: this build is instrumented' ;;
*)
    case_is 'needs a library besides those of C' \
        "$(readelf -d "$plugin" | grep NEEDED |
            grep -vE '\[(libc|libm|libpthread|libdl|ld-linux[^]]*)\.so[^]]*\]' || :)"
    ;;
esac
case_is 'can be unloaded' "$(readelf -d "$plugin" | grep -q NODELETE || echo 'no NODELETE')"
cases_end
