#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train_many.sh - 64 processes of `dualpipe train` with small models on one machine: they run and end,
# and when one is killed, or the command is interrupted, none is left. With --full only.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
if [ -z "${DP_TEST_FULL:-}" ]; then
    echo 'takes minutes; with --full (DP_TEST_FULL=1) it runs'
    exit 77
fi
cp "$DP_TOP_SRCDIR/LICENSE" text || exit 1
mkdir -m 700 pages
many="--data text -P 64 -M 128 --batch 128 --layers 64 --width 8 --heads 2 --context 8 --eval-every 0
    --sample 0 --stat-dir $work/pages"

sixty_four_processes_learn_what_one_does()
{
    # shellcheck disable=SC2086 # words
    run train $many --schedule 1f1b --steps 3 --json || return
    grep -o '"loss":[^,]*' out >sixty-four
    # shellcheck disable=SC2086 # words
    run train $many -P 1 --schedule none --steps 3 --json || return
    grep -o '"loss":[^,]*' out | cmp - sixty-four || return
    [ "$(wc -l <sixty-four)" = 3 ] || wrong "losses: $(cat sixty-four)"
}

# until_gone PID... - all have ended, within half a minute.
until_gone()
{
    tries=0
    while kill -0 "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || wrong "still there: $*" || return
        sleep 0.1
    done
}

# ends_cleanly SIGNAL WHOM - a job of 64 processes, WHOM (job, or one of its processes) gets SIGNAL.
ends_cleanly()
{
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $many --schedule dualpipe --steps 1000000 >train.out 2>train.err &
    job=$!
    tries=0
    until [ "$(find pages -name '*.train' | wc -l)" = 64 ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || wrong "64 processes do not begin: $(cat train.err)" || return
        sleep 0.1
    done
    pids=$(find pages -name '*.train' | sed 's,.*/\([0-9]*\)-.*,\1,')
    victim=$job
    [ "$2" = job ] || victim=$(echo "$pids" | sed -n 33p)
    kill "-$1" "$victim"
    wait "$job" && wrong 'it ends well' && return
    for pid in $pids; do
        until_gone "$pid" || return
    done
    [ "$2" = job ] || grep -q 'was killed by signal 9' train.err || wrong "it says: $(cat train.err)"
}

it sixty_four_processes_learn_what_one_does
it ends_cleanly KILL one
it ends_cleanly INT job
it ends_cleanly TERM job
finish
