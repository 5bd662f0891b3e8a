#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# verbs_faults.sh - the program that tries the plugin with faults of RDMA finds out what is wrong with a
# plugin.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

plugin=$PWD/nccl-plugin/.libs/libnccl-net-dualpipe.so
program=tests/faults/verbs-faults
if [ ! -x $program ]; then
    echo "skipped: built without infiniband/verbs.h"
    exit 77
fi
NCCL_SOCKET_IFNAME=lo
export NCCL_SOCKET_IFNAME

# try ARGUMENT... - what the program finds wrong.
try()
{
    out=$($program "$@" 2>&1) || printf '%s\n' "$out" "status $?"
}

case_is 'messages over shm' "$(DUALPIPE_NET_WIRE=shm try --seeds 0-9 "$plugin")"
for fault in flips grows late loses doubles; do
    case_is "a plugin passes that has the fault $fault" \
        "$(BROKEN_NET=$fault BROKEN_NET_PLUGIN=$plugin DUALPIPE_NET_WIRE=shm \
            try --seeds 0 --limit 3 tests/fakes/net/.libs/broken_net.so | grep -q '^seed 0, ' || echo yes)"
done
cases_end
