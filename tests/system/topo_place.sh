#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# topo_place.sh - `dualpipe topo place`: who sits where, as text and as the file that others read.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

has_jq()
{
    command -v jq >/dev/null || skip "jq is not installed"
}

writes_a_file_with_a_place_for_every_worker()
{
    has_jq
    run topo place dualpipe -P 8 -D 4 --parameter-bytes 1GB --offload-bytes 1GB \
        --synthetic 'dgx-h100 host:4' --effort 500 --format json || return
    jq -e '.dualpipe_placement == 1 and .ranks == 8 and .replicas == 4 and
        (.workers | length) == 32 and ([.workers[].gpu] | unique | length) == 32 and
        .after_ns <= .before_ns and ([.nodes[].id] as $ids |
        all(.workers[]; [.gpu, .memory, .nics[]] - $ids == []))' "$work/out" >/dev/null
}

brings_gpus_that_came_in_another_order_together()
{
    has_jq
    run topo place 1f1b -P 4 --synthetic 'host:2 numa:1 gpu:2 nic:1 net=100Gb/s' --format json \
        --gpus node0/gpu0,node1/gpu0,node0/gpu1,node1/gpu1 || return
    jq -e '.exact and .after_ns < .before_ns and
        ([.workers[].came_as] as $c | $c == [0, 2, 1, 3] or $c == [0, 2, 3, 1] or
        $c == [2, 0, 1, 3] or $c == [2, 0, 3, 1] or $c == [1, 3, 0, 2] or $c == [1, 3, 2, 0] or
        $c == [3, 1, 0, 2] or $c == [3, 1, 2, 0])' "$work/out" >/dev/null
}

takes_the_schedule_of_a_file()
{
    run schedule export gpipe -P 4 -M 8 --format json -o "$work/own.json" || return
    run topo place --file "$work/own.json" --synthetic hgx-a100 && says "4 ranks, 8 micro-batches"
}

# As one pipeline its lists of operations would take 2.4 GB, which are not needed.
places_thousands_of_workers()
{
    run topo place dualpipe -P 4096 --synthetic 'dgx-h100 host:512' --effort 100 &&
        says 'DualPipe, 4096 ranks, 8192 micro-batches, 1 replica'
}

shows_as_many_lines_as_are_wanted()
{
    run topo place 1f1b -P 8 --synthetic hgx-a100 --lines 3 && says "... and 5 more (--lines)"
}

# sends ARGUMENT... - what replicas send each other in a step: "FROM TO BYTES" lines.
sends()
{
    run topo place 1f1b -P 1 -M 1 -D 4 --parameter-bytes 1200 --synthetic gpu:4 --format json "$@" ||
        return
    jq -r '.flows[] | select(.kind == "mixing") | "\(.from) \(.to) \(.bytes)"' "$work/out" |
        LC_ALL=C sort >"$work/sent"
}

# counts EXPECTED ARGUMENT...
counts()
{
    expected=$1
    shift
    sends "$@" || return
    [ "$(tr '\n' ',' <"$work/sent")" = "$expected" ] || wrong "$*: $(cat "$work/sent")"
}

averages_a_mixing_graph_over_its_rounds()
{
    has_jq
    counts '' --mixing none || return
    counts '0 2 1200,2 0 1200,' --mixing 0-2 || return
    # Two rounds: 0-1 and 2-3, then 1-2 and 3-0. Each pair has half of the steps.
    counts '0 1 600,0 3 600,1 0 600,1 2 600,2 1 600,2 3 600,3 0 600,3 2 600,' --mixing ring || return
    run mix show ring -N 4 && mv "$work/out" "$work/ring.txt" || return
    counts '0 1 600,0 3 600,1 0 600,1 2 600,2 1 600,2 3 600,3 0 600,3 2 600,' \
        --mixing "$work/ring.txt" || return
    counts '0 1 1800,1 2 1800,2 3 1800,3 0 1800,' --mixing all-reduce || return
    refuses 2 "a graph of 4 workers, expected one of 2, the replicas" topo place 1f1b -P 1 -D 2 \
        --synthetic gpu:4 --mixing "$work/ring.txt" || return
    refuses 2 "or a mixing graph (complete|ring" topo place 1f1b -P 1 -D 2 --synthetic gpu:4 \
        --mixing rnig
}

says_what_it_does_not_count()
{
    run topo place dualpipe -P 4 -D 2 --synthetic dgx-h100 &&
        says "assumed to be zero: sums with mirrors (--parameter-bytes), mixing of replicas \
(--parameter-bytes), offload (--offload-bytes)" "no step time" || return
    run topo place 1f1b -P 4 --synthetic dgx-h100 --offload-bytes 1GB || return
    ! grep -q 'assumed to be zero' "$work/out" || wrong "$(cat "$work/out")"
}

refuses_what_cannot_be_placed()
{
    refuses 2 "did you mean dualpipe?" topo place dualpip --synthetic hgx-a100 || return
    refuses 2 "which schedule?" topo place --synthetic hgx-a100 || return
    refuses 2 "4 GPUs, expected one for each of 8 workers" topo place 1f1b -P 8 --synthetic gpu:4 ||
        return
    refuses 2 "2 names, expected 4" topo place 1f1b -P 4 --synthetic gpu:4 --gpus gpu0,gpu1 || return
    refuses 2 "'gpu9' is no node" topo place 1f1b -P 2 --synthetic gpu:4 --gpus gpu0,gpu9 || return
    refuses 2 "pairs of replicas" topo place 1f1b -P 2 --synthetic gpu:4 --mixing 0 || return
    refuses 2 "no route from node0/gpu0" topo place 1f1b -P 2 --synthetic 'host:2 gpu:1'
}

it writes_a_file_with_a_place_for_every_worker
it brings_gpus_that_came_in_another_order_together
it takes_the_schedule_of_a_file
it places_thousands_of_workers
it shows_as_many_lines_as_are_wanted
it averages_a_mixing_graph_over_its_rounds
it says_what_it_does_not_count
it refuses_what_cannot_be_placed
finish
