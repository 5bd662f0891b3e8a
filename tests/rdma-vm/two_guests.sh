#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# two_guests.sh - what is tried between two guests with two RDMA devices each. In both, by
# tests/system/rdma_two_guests.sh; each knows by RDMA_VM_HOST which it is, and counts what it sees.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
socket_interface=roce0
. "$DP_TOP_SRCDIR/tests/rdma-vm/plugin.sh"

case_is 'messages from host to host' "$(wrong between 7001 --messages 50)"

sent_before=$(sent_packets 1)
unset DUALPIPE_NET_WIRE
case_is 'between hosts RDMA is the best way' "$(wrong between 7002 --messages 50 --from 1)"
case_is 'it was another way' \
    "$([ "$(sent_packets 1)" -gt $((sent_before + 1000)) ] || echo "few packets")"
case_is 'two rails' "$(wrong between 7003 --messages 50 --from 0,1)"

lose='true'
[ "$RDMA_VM_HOST" = 0 ] || lose='ip link set roce1 down'
case_is 'a host loses a rail' "$(wrong between 7004 --from 0,1 --at 30 "$lose")"

# shellcheck disable=SC2016 # its shell's parent
[ "$RDMA_VM_HOST" = 0 ] || lose='kill -9 $PPID'
case_is 'the other host dies: an error, and in time' "$(
    if [ "$RDMA_VM_HOST" = 0 ]; then
        DUALPIPE_NET_TIMEOUT=10 fails between 7005 --messages 1000 --from 0
    else
        between 7005 --messages 1000 --from 0 --at 30 "$lose" >/dev/null 2>&1 || :
    fi
)"
cases_end
