#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# net_verbs.sh - the net plugin does what NCCL asks of it in every version, over RDMA, on a stand-in for
# libibverbs.
. "$DP_TOP_SRCDIR/tests/conformance/conform.sh"

[ -e tests/fakes/ibverbs/.libs/libibverbs.so.1 ] || {
    echo 'built without infiniband/verbs.h'
    exit 77
}
LD_LIBRARY_PATH=tests/fakes/ibverbs/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# The child of a fork starts a thread of its own; and no process waits for such at its end.
TSAN_OPTIONS=${TSAN_OPTIONS:+$TSAN_OPTIONS:}die_after_fork=0:atexit_sleep_ms=0
export LD_LIBRARY_PATH TSAN_OPTIONS

versions_over verbs
case_is 'v12 over verbs, four queue pairs' \
    "$(NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1 \
        over verbs --quick --version 12 $plugin)"
case_is 'v12 over verbs, with adaptive routing' \
    "$(NCCL_IB_QPS_PER_CONNECTION=2 NCCL_IB_ADAPTIVE_ROUTING=1 \
        over verbs --quick --version 12 $plugin)"
longest_over verbs
cases_end
