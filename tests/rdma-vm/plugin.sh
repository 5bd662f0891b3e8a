# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# plugin.sh - sourced by what runs in a guest: the programs of tests/conformance over verbs. A lost
# packet is missed after some 70 ms, and given up after half a second. The ends of a connection find
# each other over an interface that nothing is done to: $socket_interface, or the loopback. A peer that
# does not answer is given up after $timeout_s, or 40 s.
. "$DP_TOP_SRCDIR/tests/rdma-vm/rails.sh"
plugin=$DP_TOP_BUILDDIR/nccl-plugin/.libs/libnccl-net-dualpipe.so
export DUALPIPE_NET_WIRE=verbs "DUALPIPE_NET_TIMEOUT=${timeout_s:-40}" NCCL_IB_HCA=rxe NCCL_IB_TIMEOUT=14 \
    NCCL_IB_RETRY_CNT=6 NCCL_SOCKET_IFNAME="${socket_interface:-lo}"

conformance()
{
    timeout -k 5 200 "$DP_TOP_BUILDDIR/tests/conformance/net-conformance" "$@"
}

traffic()
{
    limit_s=$((3 * ${timeout_s:-40}))
    timeout -k 5 $((limit_s + 10)) "$DP_TOP_BUILDDIR/tests/conformance/net-traffic" --limit $limit_s "$@" \
        "$plugin"
}

# wrong COMMAND... - what it says, if it fails.
wrong()
{
    out=$("$@" 2>&1) || printf '%s\n' "$out" "status $?"
}

# fails COMMAND... - what it says, unless it ends with an error of the plugin's.
fails()
{
    status=0
    out=$("$@" 2>&1) || status=$?
    [ $status = 3 ] || printf '%s\n' "$out" "status $status"
}

# between PORT ARGUMENT... - this guest's end of messages between both.
between()
{
    port=$1
    shift
    traffic --rank "$RDMA_VM_HOST" --meet "10.10.0.1:$port" "$@"
}
