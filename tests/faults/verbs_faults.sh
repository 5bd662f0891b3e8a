#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# verbs_faults.sh - the net plugin loses, doubles and spoils nothing, and never hangs, whatever goes wrong
# with RDMA; and the program that says so finds out what is wrong with a plugin.
#
# DP_FAULT_SEEDS: so many seeds (52, which has every kind of fault on every kind of connection).
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

# A peer is given up soon, so that a hang is seen soon.
LD_LIBRARY_PATH=$PWD/tests/fakes/ibverbs/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
DUALPIPE_NET_TIMEOUT=5
export LD_LIBRARY_PATH DUALPIPE_NET_TIMEOUT

seeds=${DP_FAULT_SEEDS:-52}
case_is "messages over verbs, $seeds seeds" \
    "$(DUALPIPE_NET_WIRE=verbs try --seeds 0-$((seeds - 1)) "$plugin")"
case_is 'completions that are polled late' \
    "$(DUALPIPE_NET_WIRE=verbs try --limit 5 --faults 'short=900 error=20 most=2' --seeds 1301 "$plugin")"
case_is 'messages over shm' "$(DUALPIPE_NET_WIRE=shm try --seeds 0-9 "$plugin")"
for fault in flips grows late loses doubles; do
    case_is "a plugin passes that has the fault $fault" \
        "$(BROKEN_NET=$fault BROKEN_NET_PLUGIN=$plugin DUALPIPE_NET_WIRE=shm \
            try --seeds 0 --limit 3 tests/fakes/net/.libs/broken_net.so | grep -q '^seed 0, ' || echo yes)"
done
cases_end
