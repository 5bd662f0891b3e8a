#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_protocols.sh - NCCL as it is shipped gets from our plugin what its protocols and settings need,
# LL128 most of all; and a plugin that does not give it is found out.
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

# reduce_by PROTOCOL ALGORITHM WIRE RANKS
reduce_by()
{
    NCCL_PROTO=$1 NCCL_ALGO="allreduce:$2" DUALPIPE_NET_WIRE=$3
    export NCCL_PROTO NCCL_ALGO DUALPIPE_NET_WIRE
    case_is "$1, $2 over $3 between $4 hosts" \
        "$(job --ranks "$4" --bytes 8,1000000 --types 7,9 all-reduce all-gather)"
    unset NCCL_PROTO NCCL_ALGO DUALPIPE_NET_WIRE
}

# LL128 needs an order of stores that only our copies keep (net/ordered_copy.h): with memcpy this finds
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

case_is 'messages with buffers of their own, short ones by LL' \
    "$(NCCL_NET_SHARED_BUFFERS=0 SIMCUDA_LOG=1 job --ranks 3 --bytes 8,300000 send-recv all-to-all
        logged 'simcuda .* channel [0-9], LL 1')"
# Two channels to a peer, as 2.28 has them by itself and 2.30 does not.
case_is 'messages over four channels, without shared connections' \
    "$(NCCL_MIN_P2P_NCHANNELS=4 NCCL_NCHANNELS_PER_NET_PEER=2 NCCL_NET_SHARED_COMMS=0 SIMCUDA_LOG=1 \
        job --ranks 3 --bytes 300000 send-recv all-to-all
        logged 'simcuda .* channel 3, LL 0')"
case_is 'the bootstrap goes through the plugin, too' \
    "$(NCCL_OOB_NET_ENABLE=1 job --ranks 3 --bytes 4100 all-reduce)"

# A plugin with a fault is found out, so that the cases above mean something.
# fault NAME PROTOCOL
fault()
{
    NCCL_NET_PLUGIN=$PWD/tests/fakes/net/.libs/broken_net.so BROKEN_NET=$1 NCCL_PROTO=$2 \
        BROKEN_NET_PLUGIN=$plugin job --bytes 1000000 all-reduce |
        grep -q ' is wrong' || echo 'nobody noticed'
}
case_is 'a bit flipped on the way' "$(fault flips Simple)"
case_is 'flags of LL128 before their data' "$(fault unordered LL128)"
cases_end
