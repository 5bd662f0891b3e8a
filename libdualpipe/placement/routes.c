/* SPDX-License-Identifier: Apache-2.0 */
#include "placement/search.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* ---- routes --------------------------------------------------------------------------------- */

enum { ENTRIES = 1 << 15 };

struct dp_route_entry {
    int32_t from, to; /* from 0: free, since node 0 is a host */
    struct dp_route route;
};

void dp_route_add(struct dp_route *route, const struct dp_topology *t,
                  const struct dp_topo_path *path)
{
    for (int32_t i = 0; i < path->hops && route->count < DP_ROUTE_LINKS_MAX; i++) {
        const struct dp_topo_link *link = &t->links[path->links[i]];
        if (link->bytes_per_ns > 0)
            route->directions[route->count++] = 2 * path->links[i] + (path->nodes[i] != link->a);
    }
}

int dp_routes_init(struct dp_routes *r, const struct dp_topology *t)
{
    *r = (struct dp_routes){.t = t};
    r->entries = calloc(ENTRIES, sizeof(*r->entries)); /* pages that are never used cost nothing */
    r->memory = calloc((size_t)t->node_count, sizeof(*r->memory));
    r->exits = dp_topo_exits_new(t);
    if (!r->entries || !r->memory || !r->exits) {
        dp_routes_fini(r);
        return dp_fail(DP_ENOMEM, "no memory for routes through %d nodes", t->node_count);
    }
    return 0;
}

void dp_routes_fini(struct dp_routes *r)
{
    dp_topo_exits_free(r->exits);
    free(r->memory);
    free(r->entries);
}

static bool is_nearer(const struct dp_topo_path *a, const struct dp_topo_path *b)
{
    return a->class_ != b->class_ ? a->class_ < b->class_ : a->latency_ns < b->latency_ns;
}

/* A node whose size is not known counts as one with memory, unless there are known ones. */
static int find_memory(const struct dp_topology *t, int32_t gpu, int32_t *out)
{
    const int32_t host = t->nodes[gpu].host;
    struct dp_topo_path path, best = {.class_ = DP_TOPO_NONE};
    bool is_known = false;

    *out = -1;
    for (int32_t n = host; (n = dp_topology_next(t, DP_TOPO_NUMA, host, n + 1)) >= 0;) {
        const bool known = t->nodes[n].memory_bytes > 0;
        int err = dp_topology_path(t, gpu, n, &path);
        if (err)
            return err;
        if (path.class_ == DP_TOPO_NONE || known < is_known)
            continue;
        if (*out < 0 || known > is_known || is_nearer(&path, &best)) {
            *out = n;
            best = path;
        }
        is_known = known;
    }
    return 0;
}

int dp_routes_memory(struct dp_routes *r, int32_t gpu, int32_t *numa)
{
    if (!r->memory[gpu]) {
        int err = find_memory(r->t, gpu, numa);
        if (err)
            return err;
        r->memory[gpu] = *numa + 1;
    }
    *numa = r->memory[gpu] - 1;
    return 0;
}

int dp_route_offload(struct dp_route *route, const struct dp_topology *t, int32_t gpu, int32_t numa)
{
    struct dp_topo_path path;
    int err = dp_topology_path(t, gpu, numa, &path);

    route->count = 0;
    if (!err)
        dp_route_add(route, t, &path);
    if (!err)
        err = dp_topology_path(t, numa, gpu, &path);
    if (!err)
        dp_route_add(route, t, &path);
    return err;
}

static int find_offload(struct dp_routes *r, int32_t gpu, struct dp_route *route)
{
    int32_t numa;
    int err = dp_routes_memory(r, gpu, &numa);

    return err || numa < 0 ? err : dp_route_offload(route, r->t, gpu, numa);
}

static int find_way(struct dp_routes *r, int32_t from, int32_t to, struct dp_route *route)
{
    const struct dp_topology *t = r->t;
    struct dp_topo_path path;
    char a[DP_TOPO_LABEL_LEN], b[DP_TOPO_LABEL_LEN];
    int err = dp_topo_path_by(t, r->exits, from, to, &path);

    if (!err && path.class_ == DP_TOPO_NONE)
        err = dp_fail(DP_EINVAL, "there is no route from %s to %s, which have something to send",
                      dp_topology_label(t, from, a), dp_topology_label(t, to, b));
    if (!err)
        dp_route_add(route, t, &path);
    return err;
}

int dp_routes_get(struct dp_routes *r, int32_t from, int32_t to, const struct dp_route **route)
{
    const uint32_t hash = ((uint32_t)from * 2654435761u) ^ ((uint32_t)to * 2246822519u);
    struct dp_route_entry *e = &r->entries[hash >> 17];

    if (e->from != from || e->to != to) {
        e->from = 0;
        e->route.count = 0;
        int err = from == to ? find_offload(r, from, &e->route)
                             : find_way(r, from, to, &e->route);
        if (err)
            return err;
        e->from = from;
        e->to = to;
    }
    *route = &e->route;
    return 0;
}

/* ---- loads ---------------------------------------------------------------------------------- */

int dp_loads_init(struct dp_loads *loads, const struct dp_topology *t)
{
    const size_t directions = 2 * (size_t)t->link_count + 1;

    *loads = (struct dp_loads){.directions = 2 * t->link_count, .scale_ns = 1};
    loads->ns = calloc(directions, sizeof(*loads->ns));
    loads->ns_per_byte = calloc(directions, sizeof(*loads->ns_per_byte));
    if (!loads->ns || !loads->ns_per_byte) {
        dp_loads_fini(loads);
        return dp_fail(DP_ENOMEM, "no memory for the loads of %d links", t->link_count);
    }
    for (int32_t i = 0; i < loads->directions; i++) {
        const double rate = t->links[i / 2].bytes_per_ns;
        loads->ns_per_byte[i] = rate > 0 ? 1 / rate : 0;
    }
    return 0;
}

void dp_loads_fini(struct dp_loads *loads)
{
    free(loads->ns_per_byte);
    free(loads->ns);
}

void dp_loads_clear(struct dp_loads *loads, double scale_ns)
{
    memset(loads->ns, 0, (size_t)loads->directions * sizeof(*loads->ns));
    loads->norm = 0;
    loads->scale_ns = scale_ns > 0 ? scale_ns : 1;
}

static double raise(double x)
{
    const double x2 = x * x, x4 = x2 * x2;

    return x4 * x4;
}

void dp_loads_add(struct dp_loads *loads, const struct dp_route *route, double bytes)
{
    for (int32_t i = 0; i < route->count; i++) {
        double *ns = &loads->ns[route->directions[i]];
        loads->norm -= raise(*ns / loads->scale_ns);
        *ns += bytes * loads->ns_per_byte[route->directions[i]];
        loads->norm += raise(*ns / loads->scale_ns);
    }
}

double dp_loads_max(const struct dp_loads *loads)
{
    double max = 0;

    for (int32_t i = 0; i < loads->directions; i++)
        max = loads->ns[i] > max ? loads->ns[i] : max;
    return max;
}

double dp_loads_max_on(const struct dp_loads *loads, const struct dp_route *route)
{
    double max = 0;

    for (int32_t i = 0; i < route->count; i++)
        max = loads->ns[route->directions[i]] > max ? loads->ns[route->directions[i]] : max;
    return max;
}
