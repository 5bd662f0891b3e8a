#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# topo_place.sh - `dualpipe topo place`: who sits where, as text and as the file that others read.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

# rows AWK - the file fulfils this program, whose f["KEY"] are the fields of a row.
rows()
{
    awk '{ delete f
        for (i = 2; i <= NF; i++)
            f[substr($i, 1, index($i, "=") - 1)] = substr($i, index($i, "=") + 1)
    }'"$1" "$work/out" || wrong "$(cat "$work/out")"
}

writes_a_file_with_a_place_for_every_worker()
{
    run topo place dualpipe -P 8 -D 4 --parameter-bytes 1GB --offload-bytes 1GB \
        --synthetic 'dgx-h100 host:4' --effort 500 -f assignment || return
    [ "$(head -n 1 "$work/out")" = 'dualpipe assignment 1' ] || wrong "$(head -n 1 "$work/out")" || return
    rows '$1 == "placement" && f["ranks"] == 8 && f["replicas"] == 4 { is_right++ }
        /^# .* busy for / { is_right += $11 + 0 <= $21 + 0 }
        { last = $0 }
        $1 == "node" { kind[f["id"]] = f["kind"] }
        $1 == "worker" {
            workers++
            gpus += !seen[f["gpu"]]++ && kind[f["gpu"]] == "gpu" && kind[f["memory"]] == "numa"
            if (kind[f["nics"] + 0] != "nic")
                is_right = 0
        }
        END { exit is_right != 2 || workers != 32 || gpus != 32 || last != "end" }'
}

brings_gpus_that_came_in_another_order_together()
{
    set -- 1f1b -P 4 --synthetic 'host:2 numa:1 gpu:2 nic:1 net=100Gb/s' \
        --gpus node0/gpu0,node1/gpu0,node0/gpu1,node1/gpu1
    run topo place "$@" && says 'the best of all orders' || return
    run topo place "$@" -f assignment || return
    rows '/^# .* busy for / { is_less = $11 + 0 < $21 + 0 }
        $1 == "worker" { order = order f["came_as"] }
        END { exit !is_less || order !~ /^(02|20)(13|31)$|^(13|31)(02|20)$/ }'
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
    run topo place 1f1b -P 1 -M 1 -D 4 --parameter-bytes 1200 --synthetic gpu:4 -f assignment "$@" ||
        return
    sed -n 's/^flow kind=mixing from=\(.*\) to=\(.*\) bytes=\([^ ]*\).*/\1 \2 \3/p' "$work/out" |
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

counts_what_replicas_exchange()
{
    counts '' --mixing none || return
    counts '0 2 1200,2 0 1200,' --mixing 0-2 || return
    counts '0 1 1800,1 2 1800,2 3 1800,3 0 1800,' --mixing all-reduce || return
    refuses 2 "expected pairs of replicas such as 0-2,1-3, or none, or all-reduce" \
        topo place 1f1b -P 1 -D 2 --synthetic gpu:4 --mixing rnig
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

converts_a_file_of_an_older_release()
{
    old=$DP_TEST_DATA/cli/topo/placement-old.json
    run topo place --convert "$old" || return
    cmp "$work/out" "$DP_TEST_DATA/fuzz/placement/two.txt" || return
    run topo place --convert "$old" -o "$work/two.txt" && cmp "$work/two.txt" "$DP_TEST_DATA/fuzz/placement/two.txt"
}

# refuses_old TEXT OLD - the command refuses to convert OLD, and says TEXT.
refuses_old()
{
    printf '%s\n' "$2" >"$work/old.json"
    rm -f "$work/new.txt"
    refuses 2 "$1" topo place --convert "$work/old.json" -o "$work/new.txt" || return
    [ ! -e "$work/new.txt" ] || wrong 'a file was written'
}

it writes_a_file_with_a_place_for_every_worker
it brings_gpus_that_came_in_another_order_together
it takes_the_schedule_of_a_file
it places_thousands_of_workers
it shows_as_many_lines_as_are_wanted
it counts_what_replicas_exchange
it says_what_it_does_not_count
it refuses_what_cannot_be_placed
it converts_a_file_of_an_older_release
it refuses_old 'old.json:2: ' '{"dualpipe_placement": 1'
it refuses_old 'old.json: expected a placement as JSON' '{"dualpipe_placement": 2}'
it refuses_old 'old.json: expected a placement as JSON' '[]'
it refuses_old 'old.json, as lines of text:2: placement: ranks, replicas: ' '{"dualpipe_placement": 1}'
it refuses_old "old.json, as lines of text:2: placement: ranks: 'x%20y', expected a whole number" \
    '{"dualpipe_placement": 1, "ranks": "x y"}'
it refuses_old 'worker: gpu: expected the id of a GPU above' '{"dualpipe_placement": 1, "ranks": 1, "replicas": 1,
    "workers": [{"replica": 0, "rank": 0, "gpu": [[1]], "came_as": 0}]}'
it refuses_old 'end: 0 workers above it, expected 1' '{"dualpipe_placement": 1, "ranks": 1, "replicas": 1,
    "workers": {}, "flows": 3, "nodes": "x"}'
finish
