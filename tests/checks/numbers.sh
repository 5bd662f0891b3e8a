#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# numbers.sh - what lives in other people's processes reads and writes numbers with a point, whatever
# their locale: by base/text.h and what is built on it (dp_text_addf, dp_fail, dp_log).
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

# Statements are looked at as a whole: a format may be several lines below its function.
find_in_code()
{
    find libdualpipe nccl-plugin offload -name '*.[ch]' ! -path libdualpipe/base/number.c -exec awk '
        FNR == 1 { statement = "" }
        { statement = statement " " $0 }
        /[;}{] *$/ { print FILENAME ":" FNR ":" statement; statement = "" }' {} + |
        grep -E "$1" || :
}

case_is 'numbers read as the locale likes them: dp_strtod' \
    "$(find_in_code '(^|[^_a-z])(strto(f|d|ld)|atof) *\(|scanf *\(.*%[0-9l]*[aefg]')"
case_is 'numbers written as the locale likes them: dp_snprintf' \
    "$(find_in_code '(^|[^_a-z])(s|sn|f|as)?printf *\(.*%[-+# 0-9.*]*[aefgAEFG]([^a-z]|$)')"
cases_end
