#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# limit.sh - under tests/limit.sh a test keeps its status, but neither hangs nor leaves anything.
set -eu

cd "$DP_TOP_SRCDIR"

# expect STATUS WORDS PROGRAM [LIMIT_S] - what a program given as text ends with.
expect()
{
    status=0
    out=$(DP_TEST_LIMIT_S=${4:-60} sh tests/limit.sh sh -c "$3" 2>&1) || status=$?
    case $status:$out in
    "$1":*"$2"*) return ;;
    esac
    echo "limit.sh: '$3' ended with $status, not $1, and said:"
    echo "$out"
    exit 1
}

expect 0 'took: ' 'true'
expect 77 'no device here' 'echo no device here; exit 77'
expect 124 'took longer than 1 s' 'sleep 600' 1

# A pipe is read to its end only when no process is left that could write to it.
began_s=$(date +%s)
expect 0 'left' 'sleep 600 & echo left'
[ $(($(date +%s) - began_s)) -lt 30 ]
