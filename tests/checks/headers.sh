#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# headers.sh - every public header is installed and compiles alone, twice, in C11, C++17 and C++20; the
# library knows the size of every struct in them.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

# compiles COMPILER... - what it says to a file that includes the header only.
compiles()
{
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" |
        "$@" -Wall -Wextra -Wpedantic -Wredundant-decls -Werror -Ilibdualpipe/include -Ioffload/include \
            -fsyntax-only - 2>&1 || echo "status $?"
}

cxx=
for compiler in ${DP_CXX:-} c++; do
    case $compiler in -*) continue ;; esac
    command -v "$compiler" >/dev/null && cxx=$compiler && break
done

for file in libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h; do
    header=dualpipe/${file##*/}
    # shellcheck disable=SC2086 # words
    case_is "$header in C11" "$(compiles $DP_CC -std=c11 -x c)"
    for standard in ${cxx:+17 20}; do
        case_is "$header in C++$standard" "$(compiles "$cxx" -std=c++$standard -x c++)"
    done
    case_is "$header is not installed" \
        "$(grep -qF "$file" "${file%%/*}/Makefile.inc" || echo "$header")"
done

# Bindings ask for each struct by name.
defined=$(sed -n 's/^struct \(dp[a-z_0-9]*\) {.*/\1/p' libdualpipe/include/dualpipe/*.h \
    offload/include/dualpipe/*.h | sort -u)
known=$(sed -n 's/^    [A-Z]*(\(dp.*\)),$/\1/p' libdualpipe/structs.c)
case_is 'structs of public headers, and those in libdualpipe/structs.c' \
    "$([ "$defined" = "$known" ] || printf '%s\n' "$defined" "$known" | sort | uniq -u)"

# Structs that grow (DP_SIZED): those whose size is told, without holes that a later member could fill.
growing=$(grep -ho 'sizeof(struct dp_[a-z_]*)' libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h |
    sed 's/.*struct //; s/)//' | sort -u)
case_is 'structs that grow, and those in libdualpipe/structs.c' \
    "$(printf '%s\n' "$growing" "$(sed -n 's/^    GROWS(\(.*\)),$/\1/p' libdualpipe/structs.c)" | sort | uniq -u)"
case_is 'padding in structs that grow, expected reserved members' "$(
    for file in libdualpipe/include/dualpipe/*.h offload/include/dualpipe/*.h; do
        echo "#include <dualpipe/${file##*/}>"
    done | $DP_CC -std=c11 -Wpadded -Ilibdualpipe/include -Ioffload/include -x c -fsyntax-only - 2>&1 |
        sed -n 's/^\([^:]*\):\([0-9]*\):.*Wpadded.*/\1 \2/p' | sort -u | while read -r file line; do
        name=$(head -n "$line" "$file" | sed -n 's/^struct \(dp_[a-z_]*\) {.*/\1/p' | tail -n 1)
        printf '%s\n' "$growing" | grep -qx "$name" && echo "$file:$line: $name"
    done || :
)"
[ -n "$cxx" ] || case_skipped 'C++: no C++ compiler here'
cases_end
