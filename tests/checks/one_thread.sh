#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# one_thread.sh - the tests that ThreadSanitizer passes over (tests/one_thread.txt) exist, and the programs
# among them make nothing that has threads.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

listed=$(grep -v '^#' tests/one_thread.txt)

missing()
{
    for test in $listed; do
        [ -f "$test" ] || [ -f "$test.c" ] || echo "$test"
    done
}

case_is 'a test of tests/one_thread.txt that does not exist' "$(missing)"
case_is 'a test of tests/one_thread.txt that starts threads' \
    "$(for test in $listed; do
        grep -lE 'pthread_create|comm_group\.h|dp_(comm_open|pipeline_new|device_open|offload_new)\(' \
            "$test.c" 2>/dev/null || :
    done)"
cases_end
