#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# limit.sh PROGRAM [ARGUMENT...] - run one test, but not for ever: after DP_TEST_LIMIT_S seconds
# (300) the program and all that it started are killed, and the test has failed. Where more than two
# processes for each processor would run, a second counts as less, a quarter at the least.
#
# timeout puts the test into a process group of its own, out of reach of the terminal's Ctrl-C;
# so this shell waits beside it and passes signals on.
limit_s=${DP_TEST_LIMIT_S:-300}
began_ms=$(date +%s%3N)

timeout -k 10 "$((4 * limit_s))" "$@" &
pid=$!
trap 'kill -TERM "$pid"' HUP INT TERM

watch()
{
    left=$((limit_s * 12)) each=$((limit_s < 5 ? 1 : 5)) room=$((2 * $(nproc)))
    while [ "$left" -gt 0 ]; do
        sleep "$each"
        read -r load rest </proc/loadavg
        slower=$((${load%.*} / room))
        slower=$((slower < 1 ? 1 : slower > 4 ? 4 : slower))
        left=$((left - 12 * each / slower))
    done
    kill -s ALRM "$pid" # as if timeout's time were over
}
watch </dev/null >/dev/null 2>&1 &
watcher=$!
wait "$pid"
status=$?
kill "$watcher" 2>/dev/null

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
