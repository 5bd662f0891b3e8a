/* SPDX-License-Identifier: Apache-2.0
 *
 * routes.h - the links between two nodes that can become a limit, each in its direction, and how long
 * each is busy.
 *
 * A direction is a link in one direction: 2 * link from a to b, 2 * link + 1 back.
 */
#ifndef DP_PLACEMENT_ROUTES_H
#define DP_PLACEMENT_ROUTES_H

#include "topology/path.h"

#include <dualpipe/placement.h>

enum { DP_ROUTE_LINKS_MAX = 2 * DP_TOPO_HOPS_MAX };

struct dp_route {
    int32_t count;
    int32_t directions[DP_ROUTE_LINKS_MAX];
};

static inline void dp_route_copy(struct dp_route *to, const struct dp_route *from)
{
    to->count = from->count;
    for (int32_t i = 0; i < from->count; i++)
        to->directions[i] = from->directions[i];
}

/* Add the hops of a route. */
void dp_route_add(struct dp_route *route, const struct dp_topology *t,
                  const struct dp_topo_path *path);
/* Becomes the route from a GPU to a NUMA node's memory, and back. */
int dp_route_offload(struct dp_route *route, const struct dp_topology *t, int32_t gpu, int32_t numa);

/* The default routes between nodes, found once and kept as long as there is room. */
struct dp_routes {
    const struct dp_topology *t;
    struct dp_topo_exits *exits;
    struct dp_route_entry *entries;
    int32_t *memory; /* [node_count] of GPUs: the usual NUMA node, plus 1; 0: not looked for yet */
};

int dp_routes_init(struct dp_routes *routes, const struct dp_topology *t); /* DP_ENOMEM */
void dp_routes_fini(struct dp_routes *routes);
/* From GPU to GPU; of one GPU to its memory and back. *route stays until the next call. DP_EINVAL where
 * there is no route, DP_ENOMEM. */
int dp_routes_get(struct dp_routes *routes, int32_t from, int32_t to,
                  const struct dp_route **route);
/* The nearest NUMA node with memory; -1: no route to any. */
int dp_routes_memory(struct dp_routes *routes, int32_t gpu, int32_t *numa);

/* How long each direction is busy in a step. */
struct dp_loads {
    int32_t directions;
    double *ns;         /* [directions] */
    double *ns_per_byte; /* [directions] 0: does not limit */
    double scale_ns;    /* what the norm counts as 1 */
    double norm;        /* sum of (ns / scale_ns) ^ 8: nearly the maximum, but every direction counts */
};

int dp_loads_init(struct dp_loads *loads, const struct dp_topology *t); /* DP_ENOMEM */
void dp_loads_fini(struct dp_loads *loads);
/* All to 0. */
void dp_loads_clear(struct dp_loads *loads, double scale_ns);
/* Negative bytes take away what was added before. */
void dp_loads_add(struct dp_loads *loads, const struct dp_route *route, double bytes);
double dp_loads_max(const struct dp_loads *loads);
/* Over the directions of the route only. */
double dp_loads_max_on(const struct dp_loads *loads, const struct dp_route *route);

#endif
