#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# limit.sh PROGRAM [ARGUMENT...] - run one test, but not for ever: after DP_TEST_LIMIT_S seconds
# (300) the program and all that it started are killed, and the test has failed.
#
# timeout puts the test into a process group of its own, out of reach of the terminal's Ctrl-C;
# so this shell waits beside it and passes signals on.
limit_s=${DP_TEST_LIMIT_S:-300}
began_ms=$(date +%s%3N)

timeout -k 10 "$limit_s" "$@" &
pid=$!
trap 'kill -TERM "$pid"' HUP INT TERM
wait "$pid"
status=$?

# What the test left running would outlive `make check`.
kill -s KILL -- "-$pid" 2>/dev/null

took_ms=$(($(date +%s%3N) - began_ms))
case $status in
124 | 137) echo "killed: took longer than $limit_s s" ;;
esac
read -r stat </proc/$$/stat
# shellcheck disable=SC2086 # words: what the test and all that it waited for have used, in ticks
set -- ${stat##*) }
echo "took: $took_ms ms, of processors $(((${14} + ${15}) * 1000 / $(getconf CLK_TCK))) ms"
exit "$status"
