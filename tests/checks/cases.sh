# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# cases.sh - sourced by the checks beside it: counts cases and ends with the line of totals that
# tests/totals.awk reads.
set -eu
LC_ALL=C
export LC_ALL

passed=0 failed=0 skipped=0

# case_is NAME FINDINGS - the case has passed if nothing was found.
case_is()
{
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    printf 'FAILED: %s\n%s\n' "$1" "$2"
}

case_skipped()
{
    skipped=$((skipped + 1))
    echo "skipped: $1"
}

# The last line of a check.
cases_end()
{
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
