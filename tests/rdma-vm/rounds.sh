#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rounds.sh [ROUNDS] - connections between two guests, ROUNDS of them (500) one after the other, while a
# program keeps each processor of both busy: messages over one rail, over two, and over two of which
# one is lost and comes back. In both guests:
#
#       sh tests/rdma-vm/run.sh --hosts 2 --limit 7200 sh tests/rdma-vm/rounds.sh
#
# Says what went wrong in which round, with the plugin's log, and at the end how many did; 1 if any. The
# plugin has its default timeout: on a machine that others use, too, a guest may get no turn for seconds.
: "${DP_TOP_SRCDIR:=$PWD}" "${DP_TOP_BUILDDIR:=$PWD/build}"
socket_interface=roce0 timeout_s=120
export NET_CONFORMANCE_LOG=1
. "$DP_TOP_SRCDIR/tests/rdma-vm/plugin.sh"

rounds=${1:-500}
for _ in $(seq "$(nproc)"); do
    while :; do :; done &
    hogs="${hogs:-} $!"
done
# shellcheck disable=SC2064 # those that there are now
trap "kill $hogs" EXIT

lose='true'
[ "$RDMA_VM_HOST" = 0 ] || lose='ip link set roce1 down'
bad=0 round=0
while [ $round -lt "$rounds" ]; do
    port=$((8000 + round))
    case $((round % 3)) in
    0) said=$(wrong between $port --messages 50) ;;
    1) said=$(wrong between $port --messages 50 --from 0,1) ;;
    2)
        said=$(wrong between $port --messages 50 --from 0,1 --at 20 "$lose")
        [ "$RDMA_VM_HOST" = 0 ] || up 1
        ;;
    esac
    round=$((round + 1))
    [ -z "$said" ] || {
        bad=$((bad + 1))
        printf 'round %d: %s\n' $round "$said"
    }
    [ $((round % 10)) -gt 0 ] || echo "$round rounds, $bad failed"
done
echo "$rounds rounds, $bad failed"
[ $bad = 0 ]
