#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# plan.sh - `dualpipe plan`: what it writes is what `dualpipe train --plan` carries out, with the bytes
# that it said, and the losses of one process; what is wrong with a plan is said by its member.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
cp "$DP_TOP_SRCDIR/LICENSE" text || exit 1
model='--layers 6 --width 8 --heads 2 --context 16 --batch 16'

# train OPTION... - three steps; what it prints is in $work/out.
train()
{
    run train --data text --steps 3 --eval-every 0 --sample 4 --json "$@"
}

losses()
{
    sed -n 's/.*"event":"step".*\("loss":[^,]*\).*/\1/p' "$work/out"
}

# plans KIND M: the bytes of the plan are those of the run, its losses those of one process.
plans()
{
    # shellcheck disable=SC2086 # words
    run plan --data text -P 2 -M "$2" -s "$1" $model -o plan.json || return
    says "* $1" || return
    want=$(jq -c .rank_bytes plan.json)
    train --plan plan.json || return
    says "\"schedule\":\"$1\"" "\"rank_bytes\":$want" || return
    losses >planned
    # shellcheck disable=SC2086 # words
    train $model -M "$2" --schedule none || return
    losses | diff planned -
}

cuts_stages_by_hand()
{
    # shellcheck disable=SC2086 # words
    train $model -M 4 -P 2 -s zbv --blocks 0,5,1,0 || return
    losses >by-hand
    # shellcheck disable=SC2086 # words
    train $model -M 4 -s none || return
    losses | diff by-hand -
}

# Where nothing fits, the error says what would. How layers are cut depends on measured times, so the
# next measurement may need somewhat more.
keeps_within_a_budget()
{
    # shellcheck disable=SC2086 # words
    refuses 2 "no plan fits" plan --data text -P 2 $model --memory 1KiB || return
    most=$(($(sed 's/.*at least \([0-9]*\) bytes.*/\1/' "$work/err") * 2))
    # shellcheck disable=SC2086 # words
    run plan --data text -P 2 $model --memory "$most" -o small.json || return
    [ "$(jq '.rank_bytes | max' small.json)" -le "$most" ] || wrong "$(cat small.json)"
}

# Between what recomputes all and what keeps all, some activations go to the host or are computed again.
# How layers are cut depends on measured times, so the range is found anew if it has moved.
offloads_within_a_budget()
{
    large='--layers 6 --width 32 --heads 2 --context 64 --batch 16'
    for try in 1 2 3 4; do
        # shellcheck disable=SC2086 # words
        run plan --data text -P 2 -M 8 -s 1f1b $large --memory 1GiB -o all.json || return
        most=$(jq '.rank_bytes | max' all.json)
        # shellcheck disable=SC2086 # words
        refuses 2 "no plan fits" plan --data text -P 2 -M 8 -s 1f1b $large --memory 1KiB || return
        least=$(sed 's/.*at least \([0-9]*\) bytes.*/\1/' "$work/err")
        budget=$(((most + 3 * least) / 4))
        # shellcheck disable=SC2086 # words
        "$dualpipe" plan --data text -P 2 -M 8 -s 1f1b $large --memory $budget -o some.json \
            >"$work/out" 2>&1 || continue
        [ "$(jq -r .offload some.json)" = activations ] && break
        [ $try -lt 4 ] || wrong 'no plan offloads' || return
    done
    says '* 1f1b' 'offload' || return
    [ "$(jq '."device-memory"' some.json)" -eq "$budget" ] || wrong "$(cat some.json)" || return
    want=$(jq -c .rank_bytes some.json)
    train --plan some.json || return
    says "\"rank_bytes\":$want" '"offload":{' || return
    device=$(sed -n 's/.*"device_bytes":\([0-9]*\).*/\1/p' "$work/out")
    [ "$device" -le "$budget" ] || wrong "$device bytes on the device of $budget" || return
    losses >planned
    # shellcheck disable=SC2086 # words
    train $large -M 8 --schedule none || return
    losses | diff planned - || return
    refuses 2 '--device-memory 67108864: expected' train --data text --plan some.json --device-memory 64MiB
}

# refuses_a_plan TEXT FILTER - a good plan, changed by jq.
refuses_a_plan()
{
    jq "$2" plan.json >bad.json || return
    refuses 2 "$1" train --data text --plan bad.json
}

refuses_other_options()
{
    refuses 2 '--layers 8: expected 6, as in --plan plan.json' train --data text --plan plan.json -L 8
}

# What a plan was not made with.
refuses_beside_a_plan()
{
    refuses 2 "--plan with $1: expected one of them" train --data text --plan plan.json "$@"
}

refuses_to_plan()
{
    refuses 2 'without --offload and --tie-embeddings' plan --data text "$@"
}

# Three ranks and sixteen sequences: 4, 8 and 16 micro-batches. Blocks are cut, so that eight will do.
finds_micro_batches_for_any_number_of_ranks()
{
    run plan --data text -P 3 --layers 8 --width 8 --heads 2 --context 16 --batch 16 -o three.json || return
    says 'gpipe               4' 'gpipe               8' 'gpipe              16' || return
    train --plan three.json || return
    run plan --data text -P 4 -s dualpipe --layers 6 --width 8 --heads 2 --context 16 --batch 12 || return
    says 'dualpipe           12' || return
    run plan --data text -P 4 --layers 6 --width 8 --heads 2 --context 16 --batch 2
}

# More layers than the exact cut of two stages a rank is made of.
plans_many_layers()
{
    run plan --data text -P 2 -M 4 -s zbv --layers 300 --width 4 --heads 2 --context 4 --batch 4 -o many.json ||
        return
    [ ! -s "$work/err" ] || wrong "$(cat "$work/err")" || return
    says '* zbv' || return
    train --plan many.json --steps 1
}

writes_to_standard_output()
{
    # shellcheck disable=SC2086 # words
    "$dualpipe" plan --data text -P 2 -M 4 $model -o - 2>"$work/err" | jq -e '.ranks == 2' >/dev/null ||
        wrong 'no JSON' || return
    grep -q 'blocks of each stage' "$work/err" || wrong 'no table'
}

refuses_what_is_no_json()
{
    echo '{' >bad.json
    refuses 2 'expected a JSON file' train --data text --plan bad.json || return
    printf '\n\351' >bad.json
    refuses 2 "--plan bad.json: line 2, column 0: unable to decode byte 0xe9; expected a JSON file" \
        train --data text --plan bad.json
}

refuses_blocks()
{
    want=$1
    shift
    # shellcheck disable=SC2086 # words
    refuses 2 "$want" train --data text $model -P 2 -M 4 -s 1f1b "$@"
}

it cuts_stages_by_hand
it refuses_blocks '--blocks: 3 numbers, expected 2' --blocks 1,2,3
it refuses_blocks '--blocks: 5 blocks together, expected 6' --blocks 2,3
it refuses_blocks '--blocks: 0 for stage 1' -s gpipe -P 3 --blocks 3,0,3
it refuses_blocks 'expected at most 1024 numbers' --blocks 2,x
it refuses_to_plan --tie-embeddings
it refuses_to_plan --offload params --device-memory 1MiB
for option in --buffers=3 --buffers=auto --device-share=0.5 --device-memory=1M; do
    it refuses 2 "${option%=*}: expected none" plan --data text -P 2 $option
done
it refuses 2 '--data none: No such file' plan --data none -P 2
it refuses 2 '--layers 6: expected at least 14' plan --data text -P 16 --layers 6
it refuses 2 'microbatches: 4, expected at least 8' plan --data text -P 4 -s dualpipe --batch 4
it refuses 2 '--virtual-stages 3: expected 2' plan --data text -P 2 -s interleaved --virtual-stages 3
it finds_micro_batches_for_any_number_of_ranks
it plans_many_layers
if command -v jq >/dev/null; then
    it writes_to_standard_output
    for kind in 1f1b zb1p dualpipe dualpipev interleaved zbv gpipe; do
        it plans $kind 8
    done
    it keeps_within_a_budget
    it offloads_within_a_budget
    it refuses_a_plan '--offload 3: expected params, optimizer' '.offload = 3'
    it refuses_a_plan '--slack x: expected a whole number from 0 to 1; --slack=x as in --plan bad.json' '.slack = "x"'
    it refuses_a_plan 'ranks: missing' 'del(.ranks)'
    it refuses_a_plan 'blocks: something else' '.blocks[0] = -1'
    it refuses_a_plan 'layers: something else' '.layers = "6"'
    it refuses_a_plan 'schedule' '.schedule = "zbw"'
    it refuses_a_plan 'program' '.program = "other"'
    it refuses_a_plan '--blocks' '.blocks = [1]'
    it refuses_other_options
    it refuses_beside_a_plan --offload optimizer --device-memory 1MiB
    it refuses_beside_a_plan --tie-embeddings
    it refuses_what_is_no_json
else
    echo 'skipped: plans: jq is not installed'
    skipped=$((skipped + 1))
fi
finish
