#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_nccl.sh - NCCL as it is shipped, on a simulated CUDA, sends its messages through our plugin. See
# README.md beside this.
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
*-fsanitize=thread*) skip_all 'the thread sanitizer takes what NCCL does, which it cannot see, for races' ;;
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

collectives='all-reduce broadcast reduce all-gather reduce-scatter'
messages='send-recv all-to-all'

for wire in shm tcp; do
    DUALPIPE_NET_WIRE=$wire
    export DUALPIPE_NET_WIRE
    # shellcheck disable=SC2086 # words
    case_is "two hosts over $wire" \
        "$(job --bytes 8,4100,1500000 $collectives $messages registered two-comms)"
    case_is "NCCL goes through the plugin over $wire" "$(logged 'via NET/dualpipe/0')"
done
unset DUALPIPE_NET_WIRE

# shellcheck disable=SC2086 # words
case_is 'four hosts over the best wire, other types' \
    "$(job --ranks 4 --bytes 40000 --types 1,4,9 $collectives $messages split)"
cases_end
