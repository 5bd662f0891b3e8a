#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# numbers.sh - what lives in other people's processes reads and writes numbers with a point, whatever
# their locale: by base/number.h and what is built on it (dp_text_addf, dp_fail, dp_log).
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

find_in_code()
{
    grep -rnE --include='*.[ch]' "$1" libdualpipe nccl-plugin | grep -v '^libdualpipe/base/number\.c:' || :
}

case_is 'numbers read as the locale likes them: dp_strtod' \
    "$(find_in_code '(^|[^_a-z])(strto(f|d|ld)|atof) *\(|scanf *\(.*%[0-9l]*[aefg]')"
case_is 'numbers written as the locale likes them: dp_snprintf' \
    "$(find_in_code '(^|[^_a-z])(s|sn|f|as)?printf *\(.*%[-+# 0-9.*]*[aefgAEFG]([^a-z]|$)')"
cases_end
