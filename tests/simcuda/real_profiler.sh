#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_profiler.sh - NCCL as it is shipped takes the profiler plugin, and what it counts is what was sent.
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

NCCL_PROFILER_PLUGIN=$PWD/nccl-plugin/.libs/libnccl-profiler-dualpipe.so
DUALPIPE_PROFILER_TRAFFIC=$work/traffic
export NCCL_PROFILER_PLUGIN DUALPIPE_PROFILER_TRAFFIC

case_is 'everything is right with the profiler' \
    "$(job --ranks 3 --bytes 4096 send-recv all-reduce all-gather broadcast two-comms)"
case_is 'NCCL takes the profiler' "$(logged 'PROFILER/Plugin: Loaded dualpipe \(v[5-7]\)')"
case_is 'every rank has written what it sent to each other rank' "$(
    for rank in 0 1 2; do
        others=$(printf '0\n1\n2\n' | grep -v $rank | tr '\n' ' ')
        for peer in $others; do
            grep "\"rank\": $rank, .*\\[$peer, [1-9]" "$work/traffic" >"$work/found" ||
                echo "rank $rank sent nothing to $peer"
        done
    done
)"
case_is 'collectives are counted' "$(grep -q '"AllReduce": \[[1-9]' "$work/traffic" ||
    cat "$work/traffic")"
case_is 'the traffic can be placed' "$(
    "$DP_TOP_BUILDDIR/tools/dualpipe" topo place --traffic "$work/traffic" --synthetic gpu:4 \
        >"$work/placed" 2>&1 && grep -q '^Measured traffic, 3 ranks' "$work/placed" ||
        cat "$work/placed"
)"
cases_end
