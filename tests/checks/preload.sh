#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# preload.sh - the preload library exports what it interposes and nothing else, without symbol versions,
# and brings no library along.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"

library=$DP_TOP_BUILDDIR/offload/.libs/libdualpipe-preload.so
for tool in nm readelf; do
    command -v $tool >/dev/null || {
        echo "skipped: no $tool here"
        exit 77
    }
done
[ -e "$library" ] || {
    echo "skipped: no shared library was built"
    exit 77
}
case_is 'exports something that is no function of CUDA' \
    "$(nm -D --defined-only "$library" | awk '{ print $3 }' | grep -vE '^(cuda|cu)[A-Z][A-Za-z]+(_v2)?(_ptds|_ptsz)?$' || :)"
case_is 'has symbol versions, which a program of CUDA would not match' \
    "$(readelf -V "$library" | grep 'version definition' || :)"
case $DP_CC in
*-fsanitize* | *--coverage*) case_skipped 'libraries: this build is instrumented' ;;
*)
    case_is 'needs a library besides those of C' \
        "$(readelf -d "$library" | grep NEEDED |
            grep -vE '\[(libc|libm|libpthread|libdl|ld-linux[^]]*)\.so[^]]*\]' || :)"
    ;;
esac
case_is 'can be unloaded' "$(readelf -d "$library" | grep -q NODELETE || echo 'no NODELETE')"
cases_end
