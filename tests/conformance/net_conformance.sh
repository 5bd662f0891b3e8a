#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# net_conformance.sh - the net plugin does what NCCL asks of it, in every version and on every wire;
# and the program that says so is not easily pleased.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

plugin=nccl-plugin/.libs/libnccl-net-dualpipe.so
program=tests/conformance/net-conformance
NCCL_SOCKET_IFNAME=lo
export NCCL_SOCKET_IFNAME

# conform ARGUMENT... - what the program finds wrong.
conform()
{
    out=$($program "$@" 2>&1) || printf '%s\n' "$out" "status $?"
}

for wire in shm tcp; do
    for version in 6 7 8 9 10 11; do
        case_is "v$version over $wire" \
            "$(DUALPIPE_NET_WIRE=$wire conform --quick --version $version $plugin)"
    done
    case_is "v12 over $wire" "$(DUALPIPE_NET_WIRE=$wire conform --version 12 $plugin)"
done
# RDMA, on a stand-in for libibverbs.
over_verbs()
(
    FAKE_VERBS_FABRIC=$(mktemp -d)
    trap 'rm -rf "$FAKE_VERBS_FABRIC"' EXIT
    LD_LIBRARY_PATH=tests/fakes/ibverbs/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    DUALPIPE_NET_WIRE=verbs
    # The child of a fork starts a thread of its own; and no process waits a second for such at its end.
    TSAN_OPTIONS=die_after_fork=0:atexit_sleep_ms=0${TSAN_OPTIONS:+:$TSAN_OPTIONS}
    export FAKE_VERBS_FABRIC LD_LIBRARY_PATH DUALPIPE_NET_WIRE TSAN_OPTIONS
    conform "$@"
)
if [ -e tests/fakes/ibverbs/.libs/libibverbs.so.1 ]; then
    for version in 6 7 8 9 10 11; do
        case_is "v$version over verbs" "$(over_verbs --quick --version $version $plugin)"
    done
    case_is 'v12 over verbs' "$(over_verbs --version 12 $plugin)"
    case_is 'v12 over verbs, four queue pairs' \
        "$(NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1 \
            over_verbs --quick --version 12 $plugin)"
    case_is 'v12 over verbs, with adaptive routing' \
        "$(NCCL_IB_QPS_PER_CONNECTION=2 NCCL_IB_ADAPTIVE_ROUTING=1 \
            over_verbs --quick --version 12 $plugin)"
else
    case_skipped 'over verbs: built without infiniband/verbs.h'
fi
case_is 'v12 over shm, large messages by the ring' \
    "$(DUALPIPE_NET_WIRE=shm DUALPIPE_WIRE_DIRECT=0 conform --version 12 $plugin)"
case_is 'v12 over the best wire' "$(conform --quick --version 12 $plugin)"
counters=$(mktemp -d)
case_is 'v12 over the best wire, counting' \
    "$(DUALPIPE_NET_STAT=1 DUALPIPE_NET_STAT_DIR=$counters conform --quick --version 12 $plugin)"
rm -rf "$counters"
case_is 'a plugin without devices passes' \
    "$(DUALPIPE_NET_DEVICES=0 conform --quick --version 12 $plugin | grep -q 'status 1' || echo yes)"

# It finds out what is wrong with another plugin, too.
for fault in no-devices one-receive flips grows; do
    case_is "a plugin passes that has the fault $fault" \
        "$(BROKEN_NET=$fault BROKEN_NET_PLUGIN=$PWD/$plugin DUALPIPE_NET_WIRE=shm \
            conform --quick --version 12 tests/fakes/net/.libs/broken_net.so |
            grep -q 'failed to' || echo yes)"
done
cases_end
