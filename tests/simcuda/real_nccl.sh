#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_nccl.sh - NCCL as it is shipped, on a simulated CUDA, sends its messages through our plugin.
# README.md beside this tells more.
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

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

# NCCL up to 2.29 forgets the plugin's name when it lets go of it, unless it never does.
case_is 'communicators after the last one was destroyed' \
    "$(NCCL_NET_PLUGIN_REF_COUNT=1 job --bytes 100000 reload)"

case_is 'connections that count' \
    "$(DUALPIPE_NET_STAT=1 DUALPIPE_NET_STAT_DIR=$work/pages job --bytes 4100 all-reduce send-recv
        not_logged 'nothing is counted')"

# shellcheck disable=SC2086 # words
case_is 'four hosts over the best wire, other types' \
    "$(job --ranks 4 --bytes 40000 --types 1,4,9 $collectives $messages split)"

# The rest takes minutes: other releases of NCCL, more hosts, larger messages.
[ -n "${DP_TEST_FULL:-}" ] || {
    cases_end
    exit
}
for other in nvidia-nccl-cu12==2.28.9 nvidia-nccl-cu13==2.30.7; do
    libnccl=$cache/$other/libnccl.so.2
    [ -e "$libnccl" ] || {
        case_skipped "no $other"
        continue
    }
    for wire in shm tcp; do
        # shellcheck disable=SC2086 # words
        case_is "$other over $wire" "$(DUALPIPE_NET_WIRE=$wire NCCL_NET_PLUGIN_REF_COUNT=1 \
            job --ranks 3 --bytes 8,4100,1500000 --types 1,7 $collectives $messages registered split \
                two-comms reload)"
    done
    case_is "$other, a rank is killed" "$(job --ranks 3 --bytes 4000000 peer-death)"
done

# Releases whose kernels' structures are not known here: a communicator with all three plugins.
for other in nvidia-nccl-cu12==2.27.7 nvidia-nccl-cu13==2.32.3; do
    libnccl=$cache/$other/libnccl.so.2
    [ -e "$libnccl" ] || {
        case_skipped "no $other"
        continue
    }
    case_is "$other takes the plugins" "$(
        NCCL_TUNER_PLUGIN=$PWD/nccl-plugin/.libs/libnccl-tuner-dualpipe.so
        NCCL_PROFILER_PLUGIN=$PWD/nccl-plugin/.libs/libnccl-profiler-dualpipe.so
        export NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN
        job --bytes 8 init
        logged 'Using network dualpipe'
        logged '1 device: lo'
        logged 'TUNER/Plugin: Using (tuner plugin )?dualpipe'
        logged 'PROFILER/Plugin: [Ll]oaded dualpipe')"
done
libnccl=$cache/$package/libnccl.so.2
for wire in shm tcp; do
    for ranks in 2 3 5 6; do
        # shellcheck disable=SC2086 # words
        case_is "$ranks hosts over $wire, every type" "$(DUALPIPE_NET_WIRE=$wire \
            job --seconds 900 --ranks $ranks --bytes 1,100,65536,1000001 --types 1,2,4,7,9 \
                $collectives $messages)"
        # shellcheck disable=SC2086 # words
        case_is "$ranks hosts over $wire, 20 MB" "$(DUALPIPE_NET_WIRE=$wire \
            job --seconds 900 --ranks $ranks --bytes 20000000 \
                $collectives $messages registered split two-comms)"
    done
done
cases_end
