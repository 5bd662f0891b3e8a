#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_nccl.sh - NCCL as it is shipped, on a simulated CUDA, sends its messages through our plugin.
# README.md beside this tells more.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

cache=${DP_TEST_CACHE:-$PWD/cache}/nccl
package=${DP_TEST_NCCL:-nvidia-nccl-cu13==2.28.9}
libnccl=$cache/$package/libnccl.so.2
job=tests/simcuda/nccl-job
libnvml=tests/simcuda/.libs/libnvidia-ml.so.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# skip_all WHY
skip_all()
{
    case_skipped "$1"
    cases_end
    exit
}

[ -x $job ] || skip_all 'the simulated CUDA is written for x86-64'
[ -e "$libnccl" ] || skip_all "no $package: $(cat "$cache/why" 2>/dev/null ||
    echo 'sh tests/simcuda/fetch.sh loads it, as tests/run.sh does')"
case " $DP_CC " in
*-fsanitize=thread*) skip_all 'the thread sanitizer cannot see what NCCL does and takes it for races' ;;
esac

NCCL_NET_PLUGIN=$PWD/nccl-plugin/.libs/libnccl-net-dualpipe.so
NCCL_NET=dualpipe
NCCL_DEBUG=INFO
NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,TUNING
export NCCL_NET_PLUGIN NCCL_NET NCCL_DEBUG NCCL_DEBUG_SUBSYS

# job ARGUMENT... - run it; what is wrong, if anything. NCCL's log is in $work/log.
job()
{
    options=
    while [ "${1#--}" != "$1" ]; do
        options="$options $1 $2"
        shift 2
    done
    # shellcheck disable=SC2086 # words
    $job $options "$libnccl" $libnvml "$@" >"$work/log" 2>&1 || {
        echo "status $?"
        grep -vE ' NCCL INFO ' "$work/log" | tail -n 15
    }
}

# logged PATTERN - nothing if NCCL's log has it.
logged()
{
    grep -qE -e "$1" "$work/log" || echo "NCCL's log does not have: $1"
}

not_logged()
{
    grep -m 1 -E -e "$1" "$work/log" || :
}

collectives='all-reduce broadcast reduce all-gather reduce-scatter'
messages='send-recv all-to-all'

for wire in shm tcp; do
    DUALPIPE_NET_WIRE=$wire
    export DUALPIPE_NET_WIRE
    # shellcheck disable=SC2086 # words
    case_is "two hosts over $wire" \
        "$(job --bytes 8,4100,1500000 $collectives $messages registered two-comms)"
    case_is "NCCL goes through the plugin over $wire" "$(logged 'via NET/dualpipe/0')"
    case_is "a rank is killed in the middle, over $wire" "$(job --ranks 3 --bytes 4000000 peer-death)"
    case_is "a rank gives up, over $wire" "$(job --bytes 4000000 abort)"
done
unset DUALPIPE_NET_WIRE

# reduce_by PROTOCOL ALGORITHM WIRE RANKS
reduce_by()
{
    NCCL_PROTO=$1 NCCL_ALGO="allreduce:$2" DUALPIPE_NET_WIRE=$3
    export NCCL_PROTO NCCL_ALGO DUALPIPE_NET_WIRE
    case_is "$1, $2 over $3 between $4 hosts" \
        "$(job --ranks "$4" --bytes 8,1000000 --types 7,9 all-reduce all-gather)"
    unset NCCL_PROTO NCCL_ALGO DUALPIPE_NET_WIRE
}

# LL128 needs an order of stores that only our copies keep (net_lines.h): with memcpy this finds
# wrong data.
reduce_by LL Ring shm 2
reduce_by LL128 Ring shm 2
reduce_by LL128 Ring tcp 2
reduce_by LL128 Tree shm 3
reduce_by Simple Tree tcp 3
if [ -n "${DP_TEST_FULL:-}" ]; then
    for wire in shm tcp; do
        for protocol in LL LL128 Simple; do
            for algorithm in Ring Tree; do
                reduce_by $protocol $algorithm $wire 5
            done
        done
    done
fi
case_is 'LL128 is left to NCCL' "$(job --bytes 8 all-reduce; not_logged 'NCCL_PROTO=.LL128')"
case_is 'LL128 is ruled out where NCCL does not say what is watched' \
    "$(NCCL_NET_OPTIONAL_RECV_COMPLETION=0 job --bytes 8 all-reduce
        logged 'NCCL_PROTO=.LL128 from now on')"

# NCCL up to 2.29 forgets the plugin's name when it lets go of it, unless it never does.
case_is 'communicators after the last one was destroyed' \
    "$(NCCL_NET_PLUGIN_REF_COUNT=1 job --bytes 100000 reload)"

# shellcheck disable=SC2086 # words
case_is 'four hosts over the best wire, other types' \
    "$(job --ranks 4 --bytes 40000 --types 1,4,9 $collectives $messages split)"
cases_end
