#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# words.sh - what no file may lack or contain.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

# clang-format aims at 100 columns; a few more are better than an ugly break, and tests have tables.
longest=105

# files PATTERN... - those written by hand; what a build in the tree leaves has other names.
files()
{
    for dir in .ci libdualpipe nccl-plugin offload tools tests; do
        [ ! -d $dir ] || find $dir -type f ! -path '*/.libs/*' ! -path '*/data/*'
    done | sort | grep -E "$1"
    printf '%s\n' Makefile.am configure.ac m4/dualpipe.m4 ./*.md | grep -E "$1" || :
}

# found PATTERN FILE... - the lines that match.
found()
{
    pattern=$1
    shift
    grep -nE -e "$pattern" "$@" /dev/null || :
}

code=$(files '\.(c|h|sh|awk|py)$')
text=$(files '(\.(c|h|sh|awk|py|inc|am|ac|m4|md|map|pc\.in|[1-9]|bash)|/run)$')
# shellcheck disable=SC2046,SC2086 # words
{
    case_is 'without the line SPDX-License-Identifier: Apache-2.0' \
        "$(awk 'FNR <= 3 && /SPDX-License-Identifier: Apache-2\.0/ { has[FILENAME] = 1 }
            END { for (i = 1; i < ARGC; i++) if (!(ARGV[i] in has)) print ARGV[i] }' $code)"
    case_is 'unfinished' "$(found '\<(TO''DO|FIX''ME|XX''X|HA''CK|W''IP)\>' $text)"
    case_is 'paths of one machine' \
        "$(found '(^|[^[:alnum:]_}./-])/(home|work|root|tmp)(/|[^[:alnum:]_-]|$)' $text)"
    case_is 'blanks at the end of a line' "$(found '[[:blank:]]$' $text)"
    case_is 'tabs in code' "$(found "$(printf '\t')" $code)"
    case_is 'carriage returns' "$(found "$(printf '\r')" $text)"
    case_is "lines longer than $longest columns" \
        "$(awk -v longest=$longest '
            FILENAME !~ /^tests/ && length($0) > longest { print FILENAME ":" FNR }' $code)"
    case_is 'no newline at the end' \
        "$([ "$(tail -q -c 1 $text | tr -cd '\n' | wc -c)" = "$(echo "$text" | wc -l)" ] ||
            for f in $text; do [ -z "$(tail -c 1 "$f")" ] || echo "$f"; done)"
}
cases_end
