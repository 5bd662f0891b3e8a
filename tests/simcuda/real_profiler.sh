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

# ---- the network: over which rail, waiting for what, when ------------------------------------------

mv "$work/traffic" "$work/traffic.calls"
case_is 'everything is right with the events of the network' "$(
    export DUALPIPE_PROFILER_TRACE="$work/trace.json" DUALPIPE_NET_PROFILE=1
    job --ranks 3 --bytes 65536 send-recv all-reduce
)"
if command -v jq >/dev/null; then
    case_is 'what the network carried is counted by peer and rail' "$(
        jq -se '[.[].network[]] | length > 0 and all(.[]; .rail | test("^[^ ]+ \\((shm|tcp)\\)$")) and
            ([.[] | select(.way == "send") | .bytes] | add) > 0 and
            ([.[] | .wait_ns | add] | add) > 0' "$work/traffic" >"$work/found" || cat "$work/traffic"
    )"
    # What one rank sends, the other receives, in as many chunks.
    case_is 'senders and receivers count the same chunks' "$(
        jq -s '[.[] as $rank | $rank.network[] | select(.way == "send") |
            [$rank.comm, $rank.rank, .peer, .channel, .chunks]] | sort' "$work/traffic" >"$work/sent"
        jq -s '[.[] as $rank | $rank.network[] | select(.way == "receive") |
            [$rank.comm, .peer, $rank.rank, .channel, .chunks]] | sort' "$work/traffic" >"$work/received"
        diff "$work/sent" "$work/received" || :
    )"
    case_is 'the trace says what NCCL did when' "$(
        jq -e '[.traceEvents[] | select(.ph == "X")] | length > 0 and
            any(.[]; .name == "AllReduce" and .cat == "send" and .args.bytes > 0 and .dur > 0) and
            any(.[]; .name == "Send" and .cat == "send") and
            any(.[]; .name == "Recv" and .cat == "receive") and all(.[]; .args.rail != "")' \
            "$work/trace.json" >"$work/found" || head -c 2000 "$work/trace.json"
    )"
else
    case_skipped 'the contents of JSON: no jq'
fi
mv "$work/traffic.calls" "$work/traffic"
# ---- by `dualpipe run` ---------------------------------------------------

unset DUALPIPE_PROFILER_TRAFFIC NCCL_PROFILER_PLUGIN
dualpipe=$DP_TOP_BUILDDIR/tools/dualpipe
# run_job OPTION... -- ARGUMENT... - what is wrong with the job under `dualpipe run`.
run_job()
{
    "$dualpipe" run "$@" >"$work/log" 2>&1 || {
        echo "status $?"
        tail -n 15 "$work/log"
    }
}
case_is 'a job is observed' "$(run_job --traffic "$work/seen" --no-tuner -- \
    $job --ranks 3 --bytes 65536 "$libnccl" $libnvml send-recv all-reduce)"
case_is 'what every rank sent is there' "$(
    [ "$(grep -c '"dualpipe_traffic": 1.*"ranks": 3' "$work/seen")" = 3 ] || {
        echo 'not 3 lines:'
        cat "$work/seen"
    }
)"
cases_end
