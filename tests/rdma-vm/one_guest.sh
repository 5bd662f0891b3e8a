#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# one_guest.sh - what is tried in one guest with four RDMA devices. In the guest, by
# tests/system/rdma_one_guest.sh.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
. "$DP_TOP_SRCDIR/tests/rdma-vm/peers.sh"
. "$DP_TOP_SRCDIR/tests/rdma-vm/plugin.sh"

# ---- the devices ----------------------------------------------------------------------------------

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

# ---- the plugin -----------------------------------------------------------------------------------

case_is 'v12 over verbs' "$(wrong conformance --quick --version 12 "$plugin")"
# What older versions have of their own is how they are called.
for version in 6 7 8 9 10 11; do
    case_is "v$version carries messages over verbs" \
        "$(wrong conformance --quick --version $version --case carry "$plugin")"
done
found=$("$DP_TOP_BUILDDIR/tools/dualpipe" doctor --only rdma 2>&1) || :
case_is 'the doctor finds nothing wrong with the devices' "$(
    [ "$(echo "$found" | grep -c 'GID 1 is a routable RoCE v2 address')" = 4 ] || echo "$found"
)"

# ---- memory ---------------------------------------------------------------------------------------

placed=$("$DP_TOP_BUILDDIR/tests/unit/offload/test_offload_pinned" 2>&1) || placed="$placed status $?"
case_is 'pinned memory for offloading is on the node that it was asked for' "$(
    echo "$placed" | grep -q 'pinned memory was on each of 2 nodes' || echo "$placed"
)"
case_is 'threads that copy and update are on the node that they were asked for' "$(
    echo "$placed" | grep -q 'threads ran on each of 2 nodes' || echo "$placed"
)"

placed=$("$DP_TOP_BUILDDIR/tests/unit/offload/test_offload_nodes" 2>&1) || placed="$placed status $?"
case_is 'threads that update a model are on the node where its memory came to be' "$(
    echo "$placed" | grep -q 'models were updated on each of 2 nodes' || echo "$placed"
)"
case_is 'threads that read and write optimizer state are beside the parameters' "$(
    echo "$placed" | grep -q 'files were read and written on each of 2 nodes' || echo "$placed"
)"

# There is none without BLAS.
pipeline=$DP_TOP_BUILDDIR/tests/unit/train/test_train_nodes
if [ -x "$pipeline" ]; then
    placed=$("$pipeline" 2>&1) || placed="$placed status $?"
    case_is 'threads that copy for a rank of a pipeline are beside its parameters' "$(
        echo "$placed" | grep -q 'pipelines were opened on each of 2 nodes' || echo "$placed"
    )"
fi

placed=$("$DP_TOP_BUILDDIR/tests/preload/test_pages" 2>&1) || placed="$placed status $?"
case_is 'memory of the simulated CUDA, and the ring, are on the node that the preload library says' "$(
    echo "$placed" | grep -q 'memory of the preload library was on each of 2 nodes' || echo "$placed"
)"

# A job on a processor of one node, and its GPU at the other: without the library, and with it.
# preload NODE COMMAND... - the GPU is at NODE; what the job prints.
preload()
{
    mkdir -p /run/preload/sys/bus/pci/devices/0000:3b:00.0
    echo "$1" >/run/preload/sys/bus/pci/devices/0000:3b:00.0/numa_node
    shift
    DUALPIPE_PRELOAD_ROOT=/run/preload DUALPIPE_PRELOAD_REPORT=- "$@" \
        "$DP_TOP_BUILDDIR/tests/preload/preload-job" local "$DP_TOP_BUILDDIR/tests/preload/.libs/preload_calls.so" 2>&1
}
for node in 0 1; do
    library=$DP_TOP_BUILDDIR/offload/.libs/libdualpipe-preload.so
    placed=$(preload $node taskset -c $((1 - node)) env LD_PRELOAD="$library") || placed="$placed status $?"
    case_is "a process beside node $node: all pages of its pinned memory are there" "$(
        [ "$(echo "$placed" | grep -c ": 256 pages on node $node\$")" = 8 ] &&
            echo "$placed" | grep -q '100.0 % of 2048 pages on the nearest node' || echo "$placed"
    )"
    placed=$(preload $node taskset -c $((1 - node))) || placed="$placed status $?"
    case_is "without the library none of them are on node $node" "$(
        [ "$(echo "$placed" | grep -c ": 256 pages on node $((1 - node))\$")" = 8 ] || echo "$placed"
    )"
done

# Two ranks of a launcher whose GPUs are on two nodes of this host.
"$DP_TOP_BUILDDIR/tools/dualpipe" topo place 1f1b -P 2 --synthetic 'numa:2 gpu:1' -f assignment |
    sed "s/ host=node / host=$(uname -n) /" >/run/place.txt
for rank in 0 1; do
    bound=$(RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank "$DP_TOP_BUILDDIR/tools/dualpipe" run --placement /run/place.txt \
        --no-preload -- grep Cpus_allowed_list /proc/self/status 2>&1) || bound="$bound status $?"
    case_is "rank $rank of dualpipe run is bound to the processors of its node" "$(
        echo "$bound" | grep -q "^Cpus_allowed_list:.$rank\$" || echo "$bound"
    )"
done
cases_end
