#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench.sh - in a guest: the plugin over verbs beside perftest, on the same device, by turns. Only the
# ratio of two neighbouring lines says something.
#
#       sh tests/rdma-vm/run.sh sh tests/rdma-vm/bench.sh
set -eu
cd "$(dirname "$0")/../.."
build=${DP_TOP_BUILDDIR:-build}
dualpipe=$build/tools/dualpipe
plugin=$build/nccl-plugin/.libs/libnccl-net-dualpipe.so
. tests/rdma-vm/peers.sh

# perftest NAME SIZE COUNT COLUMN - a figure of its table.
perftest()
{
    serve "$1" -F -d rxe0 -x 1 -s "$2" -n "$3"
    wrong=$(visit "$1" -F -d rxe0 -x 1 -s "$2" -n "$3" 10.10.0.1)
    served
    [ -z "$wrong" ] || echo "$wrong" >&2
    awk -v column="$4" '/#bytes/ { getline; print $column }' /run/client.out
}

for turn in 1 2 3; do
    echo "ib_write_lat 8 B: $(perftest ib_write_lat 8 1000 6) us"
    echo "ib_write_lat 4 KiB: $(perftest ib_write_lat 4096 1000 6) us"
    echo "ib_write_bw 512 KiB: $(perftest ib_write_bw 524288 100 4) MiB/s"
    DUALPIPE_NET_WIRE=verbs NCCL_IB_HCA=rxe0 "$dualpipe" bench net --plugin "$plugin" \
        --sizes 8,4KiB,512KiB --connections 1 --samples 1 --limit 60s --no-limits --device rxe0 |
        sed "s/^/turn $turn: /"
done
