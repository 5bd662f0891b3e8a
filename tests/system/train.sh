#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train.sh - `dualpipe train`: what it refuses, and that every schedule over every transport prints
# the numbers of the plain loop. Signals and dying ranks: test_train.c.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
text=text # a name without blanks, wherever the sources are
cp "$DP_TOP_SRCDIR/LICENSE" $text || exit 1

# A model that is as small as the largest of the pipelines below allows.
small="--data $text --layers 8 --width 8 --heads 2 --context 16 --batch 16 --steps 6 --eval-every 3 --sample 20"

# refuses_bad_input WHAT-IT-SAYS OPTIONS
refuses_bad_input()
{
    options=$(echo "$2" | sed "s|@|$text|")
    # shellcheck disable=SC2086 # words
    refuses 2 "$1" train $options || return
    [ ! -s "$work/out" ] || wrong "train $options prints $(cat "$work/out")" || return
    [ ! -e t.svg ] || wrong "train $options leaves a file"
}

# numbers_of ARGUMENT... - steps, losses, norms and held-out losses to the last digit; the sample.
numbers_of()
{
    # shellcheck disable=SC2086 # words
    run train $small --json "$@" || return
    sed -n -e 's/.*"step":\([0-9]*\),"loss":\([^,]*\),"norm":\([^,]*\).*/\1 \2 \3/p' \
        -e 's/.*"first_loss":\([^,]*\),.*"held_out":\([^,]*\),.*\("sample":.*\)}/\1 \2 \3/p' \
        "$work/out"
}

prints_the_numbers_of_the_plain_loop()
{
    numbers_of --schedule none --dropout 0.1 --clip 0.5 >"$work/expected" || return
    [ "$(wc -l <"$work/expected")" = 7 ] || wrong "few numbers: $(cat "$work/expected")" || return
    numbers_of --dropout 0.1 --clip 0.5 "$@" >"$work/numbers" || return
    diff "$work/expected" "$work/numbers"
}

learns()
{
    # shellcheck disable=SC2086 # words
    run train $small -P 2 --schedule 1f1b --steps 40 --lr 0.02 || return
    says 'model     8 blocks' 'schedule  1f1b on 2 ranks' 'step 40/40  loss' 'done      40 steps' \
        'bubble' 'memory' 'sample' || return
    awk '/^loss/ { exit !($2 > 5 && $5 < 4 && $8 < 4) }' "$work/out" || wrong "$(cat "$work/out")"
}

draws_the_last_step()
{
    # shellcheck disable=SC2086 # words
    run train $small --timeline step.svg --trace step.json || return
    says 'timeline  step.svg' 'trace     step.json' || return
    grep -q '</svg>' step.svg && grep -q '"traceEvents"' step.json || wrong 'bad files'
}

says_why_a_file_could_not_be_written()
{
    [ -c /dev/full ] || skip 'no /dev/full'
    status=0
    # shellcheck disable=SC2086 # words
    run train $small --timeline /dev/full >/dev/null
    [ "$status" = 1 ] || wrong "status $status" || return
    grep -q 'cannot write /dev/full: No space left on device' "$work/err" || wrong "$(cat "$work/err")"
}

notices_that_nobody_can_read_it()
{
    [ -c /dev/full ] || skip 'no /dev/full'
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $small "$@" >/dev/full 2>"$work/err" && wrong 'does not notice' && return
    grep -q 'cannot write to standard output: No space left on device' "$work/err" &&
        [ "$(wc -l <"$work/err")" = 1 ] || wrong "$(cat "$work/err")"
}

while IFS='|' read -r options says; do
    case $options in '#'*) continue ;; esac
    it refuses_bad_input "$says" "$options"
done <"$DP_TEST_DATA/train/refused.txt"
for transport in shm tcp; do
    for schedule in '-P 4' '-P 2' '-P 4 -s dualpipev' '-P 4 -s zb1p' '-P 4 -s 1f1b' '-P 2 -s gpipe'; do
        # shellcheck disable=SC2086 # words
        it prints_the_numbers_of_the_plain_loop $schedule --transport $transport
    done
done
it prints_the_numbers_of_the_plain_loop -P 1 --schedule gpipe
it learns
it draws_the_last_step
it says_why_a_file_could_not_be_written
it notices_that_nobody_can_read_it
it notices_that_nobody_can_read_it --schedule none
finish
