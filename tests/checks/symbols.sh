#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# symbols.sh - libdualpipe.so exports the functions that its headers mark DP_PUBLIC, and nothing
# else, and stays loaded.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

library=$DP_TOP_BUILDDIR/libdualpipe/.libs/libdualpipe.so
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

# A declaration a line, without comments; its name stands before the first parenthesis.
declared()
{
    for header in libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h; do
        # shellcheck disable=SC2086 # words
        $DP_CC -fpreprocessed -E -P -x c "$header" 2>/dev/null
    done | sed -e ':a' -e '/\\$/N; s/\\\n//; ta' -e '/##/d' | tr '\n;{}' ' \n\n\n' |
        sed -n 's/^.*DP_PUBLIC \([^(]*\)(.*$/\1/p; s/^.*DP_SIZED[A-Z_]*(\(dp_[a-z_]*\),.*$/\1_sized/p' |
        sed 's/.*[ *]//' | sort
}

exported()
{
    nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
declared >"$work/declared"
exported >"$work/exported"
[ -s "$work/declared" ]
case_is 'exported but not DP_PUBLIC in a header' "$(comm -13 "$work/declared" "$work/exported")"
case_is 'DP_PUBLIC in a header but not exported' "$(comm -23 "$work/declared" "$work/exported")"
case_is 'DP_PUBLIC more than once' "$(uniq -d "$work/declared")"
case_is 'can be unloaded, though the end of the process calls it' \
    "$(readelf -d "$library" | grep -q NODELETE || echo 'no NODELETE')"
case_is 'without the prefix dp_' "$(grep -v '^dp_' "$work/declared" || :)"
cases_end
