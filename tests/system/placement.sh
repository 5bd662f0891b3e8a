#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# placement.sh - the file of `dualpipe topo place` on its way: placed on a cluster that is described,
# then trained with, and handed to a job.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

unset DUALPIPE_PLACEMENT DUALPIPE_PLACEMENT_BIND DUALPIPE_PLACEMENT_NUMBERED
two_hosts='host:2 numa:1 gpu:2 nic:2 net=100Gb/s'
tiny='--layers 8 --width 8 --heads 2 --context 8 --batch 8 --sample 0 --steps 3 --eval-every 2 --json'

# place FILE KIND GPUS - four workers, the GPUs in this order.
place()
{
    run topo place "$2" -P 4 --synthetic "$two_hosts" --gpus "$3" -f assignment -o "$1"
}

# train ARGUMENT... - its losses, to the last digit, in $work/losses.
train()
{
    # shellcheck disable=SC2086 # words
    run train --data "$DP_TOP_SRCDIR/LICENSE" $tiny "$@" || return
    grep -o '"\(loss\|held_out\)":[^,}]*' "$work/out" >"$work/losses"
    [ -s "$work/losses" ] || wrong "no losses in: $(cat "$work/out")"
}

learns_the_same_wherever_ranks_are()
{
    train --schedule none && mv "$work/losses" "$work/alone" || return
    for gpus in node0/gpu0,node1/gpu0,node0/gpu1,node1/gpu1 \
        node1/gpu1,node0/gpu1,node1/gpu0,node0/gpu0 node0/gpu1,node1/gpu1,node1/gpu0,node0/gpu0; do
        place "$work/four.txt" "$1" "$gpus" || return
        train --schedule "$1" --placement "$work/four.txt" || return
        diff "$work/alone" "$work/losses" || wrong "another loss with --gpus $gpus" || return
    done
}

maps_ranks_to_the_processes_that_came()
{
    command -v jq >/dev/null || skip "jq is not installed"
    place "$work/four.txt" 1f1b node0/gpu0,node1/gpu0,node0/gpu1,node1/gpu1 || return
    awk '/^worker/ && sub(/.* came_as=/, "") && $1 != n++ { found = 1 } END { exit !found }' "$work/four.txt" ||
        wrong "the ranks were left as they came" || return
    train --schedule 1f1b --placement "$work/four.txt" --trace "$work/trace.json" || return
    jq -e '[.traceEvents[] | select(.ph == "X") | .pid] | unique | length == 4' "$work/trace.json" \
        >/dev/null || wrong "the trace has not four ranks"
}

takes_the_number_of_ranks_from_the_file()
{
    run topo place 1f1b -P 2 --synthetic gpu:2 -f assignment -o "$work/two.txt" || return
    # shellcheck disable=SC2086 # words
    DUALPIPE_PLACEMENT=$work/two.txt run train --data "$DP_TOP_SRCDIR/LICENSE" --schedule 1f1b $tiny ||
        return
    grep -q '"ranks":2' "$work/out" || wrong "not two ranks: $(head -n 1 "$work/out")"
}

refuses_a_file_for_other_ranks()
{
    run topo place 1f1b -P 2 -D 2 --synthetic gpu:4 -f assignment -o "$work/two.txt" || return
    refuses 2 "places 2 x 2 workers (replicas x ranks), expected 1 x 2" train --data \
        "$DP_TOP_SRCDIR/LICENSE" --schedule 1f1b --placement "$work/two.txt" || return
    DUALPIPE_PLACEMENT=$work/two.txt refuses 2 "expected 1 x 4" train --data \
        "$DP_TOP_SRCDIR/LICENSE" -P 4 || return
    refuses 2 "$work/none.json: No such file" train --data "$DP_TOP_SRCDIR/LICENSE" \
        --placement "$work/none.json" || return
    refuses 2 "expected a schedule" train --data "$DP_TOP_SRCDIR/LICENSE" --schedule none \
        --placement "$work/two.txt"
}

hands_the_file_to_a_job()
{
    place "$work/four.txt" dualpipe node0/gpu0,node1/gpu0,node0/gpu1,node1/gpu1 || return
    cd "$work" || return
    # shellcheck disable=SC2086 # words
    run run --placement four.txt -- sh -c 'cd / && exec "$@"' sh "$dualpipe" train \
        --data "$DP_TOP_SRCDIR/LICENSE" $tiny || return
    grep -q "placement   four.txt: 4 workers (1 x 4), the NICs of 4 flows, links of .* GB/s" \
        "$work/err" || wrong "$(cat "$work/err")" || return
    grep -q '"ranks":4' "$work/out" || wrong "$(head -n 1 "$work/out")"
}

it learns_the_same_wherever_ranks_are dualpipe
it learns_the_same_wherever_ranks_are dualpipev
it learns_the_same_wherever_ranks_are 1f1b
it maps_ranks_to_the_processes_that_came
it takes_the_number_of_ranks_from_the_file
it refuses_a_file_for_other_ranks
it hands_the_file_to_a_job
finish
