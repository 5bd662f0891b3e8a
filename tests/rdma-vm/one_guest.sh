#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# one_guest.sh - what is tried in one guest with four RDMA devices. In the guest, by
# tests/system/rdma_one_guest.sh.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
. "$DP_TOP_SRCDIR/tests/rdma-vm/peers.sh"

# Of every device: the state of its port, its MTU, its interface's NUMA node, its RoCE v2 address.
devices()
{
    for i in 0 1 2 3; do
        port=/sys/class/infiniband/rxe$i/ports/1
        netdev=$(cat /sys/class/infiniband/rxe$i/parent)
        mtu=$(ibv_devinfo -d rxe$i | awk '/active_mtu/ { print $2 }')
        echo "rxe$i $(cut -d ' ' -f 2 $port/state) $mtu" \
            "$(cat "/sys/class/net/$netdev/device/numa_node") $(cat $port/gids/1)"
    done
}

devices_expected='rxe0 ACTIVE 4096 0 0000:0000:0000:0000:0000:ffff:0a0a:0001
rxe1 ACTIVE 4096 1 0000:0000:0000:0000:0000:ffff:0a0a:0002
rxe2 ACTIVE 4096 0 0000:0000:0000:0000:0000:ffff:0a0a:0003
rxe3 ACTIVE 4096 1 0000:0000:0000:0000:0000:ffff:0a0a:0004'

devices=$(devices)
case_is 'four devices on two NUMA nodes' "$([ "$devices" = "$devices_expected" ] || echo "$devices")"

serve ibv_rc_pingpong -e -d rxe0 -g 1 -n 100
case_is 'messages travel from one device to another' "$(
    visit ibv_rc_pingpong -e -d rxe1 -g 1 -n 100 10.10.0.1
)"
served
case_is 'their server has seen them too' "$server_wrong"
cases_end
