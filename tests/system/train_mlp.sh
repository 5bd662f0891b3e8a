#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train_mlp.sh - `dualpipe train --model mlp-bn`: with batch normalisation, too, every schedule prints
# the numbers of the plain loop. The held-out losses are by the statistics that steps have committed.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

# losses_of OPTIONS... - every loss, norm and held-out loss, to the last digit.
losses_of()
{
    run train --model mlp-bn --layers 4 --width 8 --context 12 --batch 32 -M 8 --order-blocks 4 --steps 4 \
        --eval-every 2 --json "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,]*' "$work/out"
}

prints_the_numbers_of_the_plain_loop()
{
    losses_of "$@" >"$work/numbers" || return
    diff "$work/expected" "$work/numbers"
}

# Losses of training do not depend on the running statistics, held-out ones do. agrees FORM A B: with the
# options FORM training is that of $work/expected, and A and B print the same held-out losses, others
# than those there.
agrees()
{
    for options in "$2" "$3"; do
        # shellcheck disable=SC2086 # words
        losses_of $1 $options >"$work/numbers" || return
        grep -v held_out "$work/expected" >"$work/a"
        grep -v held_out "$work/numbers" | diff "$work/a" - || return
        grep held_out "$work/numbers" >"$work/held_out.new"
        ! grep held_out "$work/expected" | diff -q - "$work/held_out.new" >"$work/same" ||
            wrong "$options: held-out losses do not depend on $1" || return
        [ ! -f "$work/held_out" ] || diff "$work/held_out" "$work/held_out.new" || return
        mv "$work/held_out.new" "$work/held_out"
    done
    rm -f "$work/held_out"
}

learns()
{
    run train --model mlp-bn --layers 4 --width 16 --context 16 --steps 60 "$@" || return
    says 'model     4 hidden layers of width 16 with batch normalisation' 'samples of 16 features' \
        'step 60/60  loss' 'samples/s' '(nats a sample)' || return
    awk '/^loss/ { exit !($2 > 1.5 && $5 < 1 && $8 < 1) }' "$work/out" || wrong "$(cat "$work/out")"
}

# numbers_from STEP - of the last run: the losses after that step, and the held-out ones.
numbers_from()
{
    sed -n -e 's/.*"event":"step","step":\([0-9]*\),\("loss":[^,]*,"norm":[^,]*\).*/\1 \2/p' \
        -e 's/.*"event":"end".*\("held_out":[^,}]*\).*/end \1/p' "$work/out" |
        tail -n "+$((1 + $1))"
}

# goes_on_as_if_never_stopped SAVING RESUMING - weights and running statistics are saved, so the held-out
# losses are those of the whole run, too.
goes_on_as_if_never_stopped()
{
    rm -rf "$work/d"
    # shellcheck disable=SC2086 # words
    run train --model mlp-bn --layers 4 --width 8 --context 12 --batch 32 --steps 6 --eval-every 0 \
        --order-blocks 4 --json --save "$work/d" --save-every 2 $1 || return
    numbers_from 2 >"$work/whole"
    [ "$(wc -l <"$work/whole")" = 5 ] || wrong "$(cat "$work/out")" || return
    # shellcheck disable=SC2086 # words
    run train --resume "$work/d/step-000002" --eval-every 0 --json $2 || return
    numbers_from 0 | diff "$work/whole" -
}

another_model_is_refused()
{
    refuses 2 '--model gpt: expected mlp-bn, as the model in' train --resume "$work/d" --model gpt || return
    refuses 2 'the running statistics of replicas that mix are not saved' train --model mlp-bn -s none \
        -D 2 --mix ring --save "$work/m"
}

has_numbers()
{
    [ "$(wc -l <"$work/expected")" = 11 ] || wrong "$(cat "$work/expected")"
}

losses_of --schedule none >"$work/expected"
it has_numbers
for options in '' '-s dualpipev --transport tcp' '-s zb1p' '-s 1f1b --checkpoint except_last' \
    '-s gpipe' '-s async' '-s async --execution messages' '--checkpoint always' '-D 2'; do
    # shellcheck disable=SC2086 # words
    it prints_the_numbers_of_the_plain_loop -P 2 $options
done
it prints_the_numbers_of_the_plain_loop -s none -D 4
it agrees '--batch-norm compat' '-s none' '-P 2 -s async --execution messages --checkpoint always'
it agrees '--batch-norm-variance unbiased' '-s none' '-P 2 -D 2 -s dualpipe'
it agrees '--batch-norm-over replica' '-s none -D 2' '-P 2 -D 2 -s async'
it goes_on_as_if_never_stopped '-P 2' '-P 4 -s 1f1b'
it goes_on_as_if_never_stopped '-s none -D 2' '-P 2 -s async --execution messages'
it goes_on_as_if_never_stopped '-s none --batch-norm compat' '-P 2 -s async'
it another_model_is_refused
it learns -P 2
it learns -s none -D 2 --mix ring --batch 256
finish
