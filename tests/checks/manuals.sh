#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# manuals.sh - every public header has a manual page without faults, and every public function a page
# that names it.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

# They lie in the tarball, or were built.
pages=$DP_TOP_BUILDDIR/tools/man
[ -e "$pages/dualpipe.3" ] || pages=tools/man

# Public functions are declared as such, or inline in the headers.
functions()
{
    for header in libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h; do
        # shellcheck disable=SC2086 # words
        $DP_CC -fpreprocessed -E -P -x c "$header"
    done | tr '\n;{}' ' \n\n\n' | sed -nE 's/^.*(DP_PUBLIC|static inline) ([^(]*)\(.*$/\2/p' |
        sed 's/.*[ *]//' | sort
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
functions >"$work/functions"
[ -s "$work/functions" ]
sed -n 's/^\.Nm \([a-z0-9_]*\).*/\1/p' "$pages"/*.3 | sort >"$work/named"

for header in libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h; do
    page=dualpipe_$(basename "$header" .h).3
    [ "$page" != dualpipe_dualpipe.3 ] || page=dualpipe.3
    case_is "$header has a page" "$([ -s "$pages/$page" ] || echo "$pages/$page is not there")"
    # A page that is made but not in the list is neither installed nor cleaned.
    case_is "$page is in the list" "$(grep -q "tools/man/$page" tools/man/Makefile.inc ||
        echo "add tools/man/$page to tools/man/Makefile.inc")"
    command -v mandoc >/dev/null || continue
    case_is "$page is without faults" "$(mandoc -Tlint -Wwarning "$pages/$page" 2>&1)"
done
case_is 'a function is in no page' "$(comm -23 "$work/functions" "$work/named")"
case_is 'a function is in several pages' "$(uniq -d "$work/named")"
command -v mandoc >/dev/null || case_skipped 'the faults of manual pages: mandoc is not installed'
cases_end
