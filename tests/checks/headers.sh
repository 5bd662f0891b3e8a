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
        "$@" -Wall -Wextra -Wpedantic -Werror -Ilibdualpipe/include -Ioffload/include \
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
known=$(sed -n 's/^    KNOWN(\(.*\)),$/\1/p' libdualpipe/structs.c)
case_is 'structs of public headers, and those in libdualpipe/structs.c' \
    "$([ "$defined" = "$known" ] || printf '%s\n' "$defined" "$known" | sort | uniq -u)"
[ -n "$cxx" ] || case_skipped 'C++: no C++ compiler here'
cases_end
