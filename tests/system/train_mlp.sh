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

learns()
{
    run train --model mlp-bn --layers 4 --width 16 --context 16 --steps 60 "$@" || return
    says 'model     4 hidden layers of width 16 with batch normalisation' 'samples of 16 features' \
        'step 60/60  loss' 'samples/s' '(nats a sample)' || return
    awk '/^loss/ { exit !($2 > 1.5 && $5 < 1 && $8 < 1) }' "$work/out" || wrong "$(cat "$work/out")"
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
it learns -P 2
it learns -s none -D 2 --mix ring --batch 256
finish
