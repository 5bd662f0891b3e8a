/* SPDX-License-Identifier: Apache-2.0
 *
 * search.h - which worker on which GPU, every flow on its default route.
 */
#ifndef DP_PLACEMENT_SEARCH_H
#define DP_PLACEMENT_SEARCH_H

#include "topology/build.h"
#include <dualpipe/placement.h>

/* ---- routes ---------------------------------------------------------------------------------- */

/* The links between two nodes that can become a limit, each in its direction, and how long
 * each is busy.
 *
 * A direction is a link in one direction: 2 * link from a to b, 2 * link + 1 back. */

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

/* ---- traffic --------------------------------------------------------------------------------- */

/* What workers send each other in a step: as flows, by kind, and as edges, which are what
 * the search looks at - all flows from one worker to another as one. */

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

/* DP_EINVAL naming the member of spec, DP_ENOMEM. */
int dp_traffic_init(struct dp_traffic *traffic, const struct dp_placement_spec *spec);
void dp_traffic_fini(struct dp_traffic *traffic);

/* ---- search ---------------------------------------------------------------------------------- */

enum { DP_SEARCH_EXACT_WORKERS = 8 };

struct dp_search {
    const struct dp_placement_spec *spec;
    const struct dp_traffic *traffic;
    struct dp_routes *routes;
    struct dp_loads *loads;
    const int32_t *came; /* [workers] GPUs in the order in which the ranks came */
};

/* What an order costs: the slowest link first, then all of them. */
struct dp_weight {
    double slowest_ns, norm;
};
static inline bool dp_weight_is_less(struct dp_weight a, struct dp_weight b)
{
    const double slack = 1e-9 * b.slowest_ns; /* sums in another order differ in their last digits */

    if (a.slowest_ns < b.slowest_ns - slack)
        return true;
    return a.slowest_ns <= b.slowest_ns + slack && a.norm < b.norm * (1 - 1e-9);
}

/* Load all links as gpus[workers] have it; norms of one scale compare. */
int dp_search_weigh(const struct dp_search *s, const int32_t *gpus, double scale_ns,
                    struct dp_weight *weight);

/* All orders, but for those that cannot become the best. Improves gpus, if that can be done. */
int dp_search_exactly(const struct dp_search *s, int32_t *gpus);
/* The best of some orders that people would choose, if better than gpus. */
int dp_search_default(const struct dp_search *s, int32_t *gpus);
/* search_swaps.c: exchange workers as long as that helps. */
int dp_search_swaps(const struct dp_search *s, int32_t *gpus);

/* ---- path selection -------------------------------------------------------------------------- */

/* Once it is known which worker is on which GPU: the NICs and the rail of every
 * flow between hosts, and the memory of every GPU. Flows go the default route unless another makes
 * the busiest links less busy. */

/* Fill in the routes of p->flows and the memory and NICs of p->workers, whose gpu is set; s->loads
 * become those of all links. */
int dp_paths_choose(const struct dp_search *s, struct dp_placement *p);

#endif
