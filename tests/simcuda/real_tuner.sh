#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_tuner.sh - NCCL as it is shipped asks our tuner, takes the algorithm, the protocol and the
# channels of its rules, and still computes what is right.
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

NCCL_TUNER_PLUGIN=$(dirname "$NCCL_NET_PLUGIN")/libnccl-tuner-dualpipe.so
DUALPIPE_TUNER_TABLE=$DP_TEST_DATA/tuner/real.csv
export NCCL_TUNER_PLUGIN DUALPIPE_TUNER_TABLE

# chose COLLECTIVE BYTES ALGORITHM PROTOCOL CHANNELS - as the log of the last job says.
chose()
{
    logged "$1: $2 Bytes -> Algo $3 proto $4 channel.*=\{0\.\.$(($5 - 1))\}"
}

case_is 'all collectives are right with a tuner' \
    "$(job --bytes 8,4100,1500000 all-reduce broadcast reduce all-gather reduce-scatter)"
case_is 'NCCL takes the tuner' "$(logged 'Using dualpipe \(v[56]\)')"
case_is 'the table is read' "$(logged 'tuner: 2 ranks on 2 nodes, 5 rules of .*, fingerprint')"
case_is 'a tree for small ones' "$(chose AllReduce 8 TREE LL 1)"
case_is 'a ring of two channels between two' "$(chose AllReduce 1500000 RING SIMPLE 2)"
case_is 'a protocol that NCCL would not take' "$(chose AllGather 750000 RING LL 1)"
case_is 'what is not there is left to NCCL' \
    "$(chose Broadcast 8 RING LL 1; not_logged 'Broadcast: .*NVLS')"

case_is 'three ranks have another rule' \
    "$(job --ranks 3 --bytes 1500000 all-reduce; chose AllReduce 1500000 TREE SIMPLE 1)"

# choices - what NCCL chooses for every collective and size, one line each.
choices()
{
    job --bytes 8,100,1024,4100,16384,65536,262144,1500000 all-reduce broadcast reduce all-gather reduce-scatter
    grep -oE '(AllReduce|Broadcast|Reduce|AllGather|ReduceScatter): [0-9]+ Bytes -> .*' "$work/log"
}

case_is 'without a table NCCL chooses as if there were no tuner' "$(
    unset DUALPIPE_TUNER_TABLE
    choices >"$work/with"
    [ "$(wc -l <"$work/with")" -ge 40 ] || echo "only $(wc -l <"$work/with") choices"
    NCCL_TUNER_PLUGIN=none choices | diff "$work/with" -
)"
case_is 'the net plugin alone leaves all choices to NCCL' "$(
    unset DUALPIPE_TUNER_TABLE NCCL_TUNER_PLUGIN
    choices | diff "$work/with" -
    not_logged 'Using dualpipe \(v'
)"
case_is 'they are those of NCCL with its own transport over the same interface' "$(
    unset DUALPIPE_TUNER_TABLE NCCL_TUNER_PLUGIN
    NCCL_NET=Socket NCCL_NET_PLUGIN=none choices | diff "$work/with" -
    logged 'via NET/Socket/0'
)"
case_is 'a table with a mistake is named, and the job goes on' "$(
    DUALPIPE_TUNER_TABLE=$DP_TEST_DATA/tuner/refused/algorithm.csv job --bytes 8 all-reduce
    logged "algorithm.csv:2: algorithm: 'rng', expected one of tree"
)"
case_is 'with DUALPIPE_TUNER_STRICT it ends the job' "$(
    DUALPIPE_TUNER_STRICT=1 DUALPIPE_TUNER_TABLE=no/such/table job --bytes 8 all-reduce |
        grep -q 'status 1' || echo 'it goes on'
)"
case_is 'links give NCCL a model' "$(
    unset DUALPIPE_TUNER_TABLE
    DUALPIPE_TUNER_LINKS=inter=3,inter_us=25 job --bytes 8 all-reduce
    logged 'tuner: 2 ranks on 2 nodes, a model of links inter=3,inter_us=25'
)"
case_is 'dualpipe run gives a job both plugins' "$(
    unset NCCL_NET_PLUGIN NCCL_NET NCCL_TUNER_PLUGIN DUALPIPE_TUNER_TABLE
    cp "$DP_TEST_DATA/tuner/real.csv" "$work/table.csv"
    job="tools/dualpipe run --table $work/table.csv -- $job"
    job --bytes 8 all-reduce
    logged 'via NET/dualpipe/0'
    chose AllReduce 8 TREE LL 1
)"
cases_end
