#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# manuals.sh - every public header has a manual page without faults, and every public function and type
# a page that names it; of a type the page has the members with what is said of them.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

# They lie in the tarball, or were built.
pages=$DP_TOP_BUILDDIR/tools/man
[ -e "$pages/dualpipe.3" ] || pages=tools/man

# Public functions are declared as such, or inline in the headers; types have a body, or are pointers.
public_names()
{
    for header in libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h; do
        # shellcheck disable=SC2086 # words
        $DP_CC -fpreprocessed -E -P -x c "$header" 2>/dev/null
    done | sed -e ':a' -e '/\\$/N; s/\\\n//; ta' -e '/##/d' | tr '\n' ' ' | sed 's/{/{\n/g' | tr ';}' '\n\n' |
        sed -nE -e 's/^.*(DP_PUBLIC|static inline) ([^(]*)\(.*$/\2/p' \
            -e 's/^.*DP_SIZED[A-Z_]*\((dp_[a-z0-9_]*),.*$/\1/p' \
            -e 's/^ *((struct|enum|union) dpo?_[a-z0-9_]*) \{$/\1/p' \
            -e 's/^ *typedef [^(]*\(?\*?(dpo?_[a-z0-9_]*_fn)\)?\(.*$/\1/p' |
        sed 's/.*[ *]//' | sort -u
}

# A struct of the headers on its page, from its first line to its last.
has_members()
{
    for header in libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h; do
        sed -nE '/^(struct|enum|union) dpo?_[a-z0-9_]+( \{)?$/,/^}/p' "$header"
    done | sed 's/\\/\\e/g' | grep -vE '^(struct|enum|union) dpo?_[a-z0-9_]+;' | sort -u >"$work/members"
    sort -u "$pages"/*.3 | comm -23 "$work/members" -
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
public_names >"$work/public"
for name in dp_comm_split dp_execution dp_log_fn dp_pipeline_config; do
    case_is "$name is public" "$(grep -qx $name "$work/public" || echo 'the check does not see it')"
done
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
case_is 'a function or type is in no page' "$(comm -23 "$work/public" "$work/named")"
case_is 'a function or type is in several pages' "$(uniq -d "$work/named")"
case_is 'a member of a type is on no page' "$(has_members)"
command -v mandoc >/dev/null || case_skipped 'the faults of manual pages: mandoc is not installed'
cases_end
