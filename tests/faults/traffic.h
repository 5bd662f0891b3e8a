/* SPDX-License-Identifier: Apache-2.0
 *
 * traffic.h - one of two processes: connects to the other by a net plugin, sends and receives what the
 * plan says, and looks at every byte. A connection may end with an error, but then on both sides and
 * in time.
 */
#ifndef DP_TESTS_FAULTS_TRAFFIC_H
#define DP_TESTS_FAULTS_TRAFFIC_H

#include "faults/plan.h"
#include "nccl-plugin/net_caller.h"

struct traffic {
    const struct net_caller *net;
    const struct plan *plan;
    int rank, in, out; /* pipes from and to the other process */
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
