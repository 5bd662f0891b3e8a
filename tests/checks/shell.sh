#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# shell.sh - every script is sh that a POSIX shell reads, and shellcheck finds nothing in it.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

scripts=$(find tools tests -name '*.sh' && ls .ci/run)
for script in $scripts; do
    case_is "$script" "$(sh -n "$script" 2>&1)"
done
if command -v shellcheck >/dev/null; then
    # shellcheck disable=SC2086 # words
    case_is 'shellcheck' "$(shellcheck -s sh -S warning $scripts 2>&1)"
else
    case_skipped 'shellcheck is not there'
fi
cases_end
