/* SPDX-License-Identifier: Apache-2.0
 *
 * traffic.h - what workers send each other in a step: as flows, by kind, and as edges, which are what
 * the search looks at - all flows from one worker to another as one.
 */
#ifndef DP_PLACEMENT_TRAFFIC_H
#define DP_PLACEMENT_TRAFFIC_H

#include <dualpipe/placement.h>

struct dp_edge {
    int32_t from, to; /* workers; the same one: an offload, which goes both ways */
    double bytes;
};

struct dp_traffic {
    int32_t workers, flow_count, edge_count;
    struct dp_flow *flows; /* by replica, rank, kind; on no route yet */
    struct dp_edge *edges; /* by from, then to */
    int32_t *first;        /* [workers + 1]: of_worker[first[w]] and on are w's edges, as either end */
    int32_t *of_worker;
};

/* P. */
int dp_traffic_ranks(const struct dp_placement_spec *spec);

/* DP_EINVAL naming the member of spec, DP_ENOMEM. */
int dp_traffic_init(struct dp_traffic *traffic, const struct dp_placement_spec *spec);
void dp_traffic_fini(struct dp_traffic *traffic);

#endif
