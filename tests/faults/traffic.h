/* SPDX-License-Identifier: Apache-2.0
 *
 * traffic.h - two ranks, in one process each or both in one thread: they connect to each other by a net
 * plugin, send and receive what the plan says, and look at every byte. A connection may end with an
 * error, but then on both sides and in time.
 */
#ifndef DP_TESTS_FAULTS_TRAFFIC_H
#define DP_TESTS_FAULTS_TRAFFIC_H

#include "faults/plan.h"
#include "nccl-plugin/net/caller.h"

struct traffic {
    const struct net_caller *net;
    const struct plan *plan;
    bool is_alone;     /* both ranks are here */
    int rank, in, out; /* else: pipes from and to the other process */
    int limit_s;       /* longer than any deadline of the plugin here; who is not done by then hangs */
    bool says_all;     /* what the plugin says is printed */
};

/* What one process has to tell. */
struct traffic_result {
    int connected, failed, messages;
    char wrong[200]; /* "": nothing is */
};

void traffic_run(const struct traffic *t, struct traffic_result *out);

#endif
