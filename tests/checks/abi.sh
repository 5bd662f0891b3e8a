#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# abi.sh - what programs were compiled against is still there: no public function has gone, no type has
# changed but those that grow, at their end. Compared with tests/data/libdualpipe.abi, which
# `tests/checks/abi.sh write` makes anew where a change is meant (CONTRIBUTING, "Releases").
: "${DP_TOP_SRCDIR:=$(cd "$(dirname "$0")/../.." && pwd)}" "${DP_TOP_BUILDDIR:=$DP_TOP_SRCDIR/build}"
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

library=$DP_TOP_BUILDDIR/libdualpipe/.libs/libdualpipe.so
for tool in abidw abidiff readelf; do
    command -v $tool >/dev/null || {
        echo "skipped: no $tool here (libabigail, Debian's abigail-tools)"
        exit 77
    }
done
[ -e "$library" ] && readelf -S "$library" | grep -q debug_info || {
    echo "skipped: no shared library was built, or without debugging information"
    exit 77
}
case ${DP_CC:-} in
*-fsanitize* | *--coverage*)
    echo 'skipped: this build is instrumented; types are compared in a plain one'
    exit 77
    ;;
esac
[ "$(uname -m)" = x86_64 ] || {
    echo "skipped: $(uname -m): the file is of x86_64"
    exit 77
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/headers"
cp libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h "$work/headers"
abidw --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed --no-architecture \
    --no-parameter-names --exported-interfaces-only --drop-private-types --headers-dir "$work/headers" \
    --out-file "$work/now" "$library"
if [ "${1:-}" = write ]; then
    sed 's/^ *//' "$work/now" >tests/data/libdualpipe.abi
    exit
fi
grep -ho 'sizeof(struct dpo\{0,1\}_[a-z0-9_]*)' "$work"/headers/*.h | sort -u |
    sed 's/.*struct \(.*\))/[suppress_type]\nname = \1\nhas_data_member_inserted_at = end\n/' >"$work/growing"
# abidiff takes a file that is cut off for one with less in it.
status=0
changes=$(abidiff --no-added-syms --suppressions "$work/growing" tests/data/libdualpipe.abi "$work/now" 2>&1) ||
    status=$?
if [ "$(tail -n 1 tests/data/libdualpipe.abi)" != '</abi-corpus>' ]; then
    changes='tests/data/libdualpipe.abi is not whole'
elif [ $status = 0 ]; then
    changes=
fi
case_is 'the public interface has changed; if it is meant, tests/checks/abi.sh write, and CHANGELOG' "$changes"
cases_end
