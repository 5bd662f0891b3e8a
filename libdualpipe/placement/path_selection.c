/* SPDX-License-Identifier: Apache-2.0 */
#include "placement/search.h"

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>

enum { ROUNDS = 2, NICS_TRIED = 4 };

struct sized {
    double bytes;
    int32_t flow;
};

struct selection {
    const struct dp_search *s;
    struct dp_placement *p;
    struct dp_route *at; /* [flow_count] where each flow is now */
    struct sized *order; /* [flow_count] the largest first */
    double slowest_ns;   /* no choice may make a link busier than this */
};

/* ---- the route over two NICs ------------------------------------------------------------------ */

/* A choice for one flow. */
struct nic_route {
    struct dp_route route;
    int32_t nic_from, nic_to, rail;
    enum dp_topo_class class_;
};

/* The direction between a NIC and a rail, if they are cabled; -1. */
static int32_t find_cable(const struct dp_topology *t, int32_t nic, int32_t rail, bool up)
{
    for (int32_t i = t->first_around[nic]; i < t->first_around[nic + 1]; i++) {
        const int32_t link = t->around[i];
        if (t->links[link].kind == DP_TOPO_NET && dp_topology_across(t, link, nic) == rail)
            return 2 * link + ((up ? nic : rail) != t->links[link].a);
    }
    return -1;
}

static int32_t next_rail(const struct dp_topology *t, int32_t nic, int32_t *at)
{
    while (*at < t->first_around[nic + 1]) {
        const int32_t link = t->around[(*at)++], other = dp_topology_across(t, link, nic);
        if (t->links[link].kind == DP_TOPO_NET && t->nodes[other].kind == DP_TOPO_RAIL)
            return other;
    }
    return -1;
}

static void add_direction(struct dp_route *route, const struct dp_loads *loads, int32_t direction)
{
    if (loads->ns_per_byte[direction] > 0)
        route->directions[route->count++] = direction;
}

/* from -> nic_from -> rail -> nic_to -> to; false: not by this rail. */
static int route_over_nics(const struct selection *x, int32_t from, int32_t to,
                           struct nic_route *via, bool *exists)
{
    const struct dp_topology *t = x->s->spec->topology;
    const int32_t out = find_cable(t, via->nic_from, via->rail, true),
                  in = find_cable(t, via->nic_to, via->rail, false);
    struct dp_topo_path path;

    *exists = false;
    if (out < 0 || in < 0)
        return 0;
    via->route.count = 0;
    via->class_ = DP_TOPO_RAILED;
    int err = dp_topology_path(t, from, via->nic_from, &path);
    if (err || path.class_ == DP_TOPO_NONE)
        return err;
    dp_route_add(&via->route, t, &path);
    add_direction(&via->route, x->s->loads, out);
    add_direction(&via->route, x->s->loads, in);
    err = dp_topology_path(t, via->nic_to, to, &path);
    if (err || path.class_ == DP_TOPO_NONE)
        return err;
    dp_route_add(&via->route, t, &path);
    *exists = true;
    return 0;
}

/* ---- the default route -------------------------------------------------------------------------- */

static int take_default(struct selection *x, struct dp_flow *f, struct dp_route *route)
{
    const struct dp_topology *t = x->s->spec->topology;
    const int32_t from = x->p->workers[f->from].gpu, to = x->p->workers[f->to].gpu;
    const struct dp_route *usual;
    struct dp_topo_path path;
    int err = dp_routes_get(x->s->routes, from, to, &usual);

    if (err)
        return err;
    *route = *usual;
    err = dp_topo_path_by(t, x->s->routes->exits, from, to, &path);
    f->class_ = path.class_;
    for (int32_t i = 0; !err && i <= path.hops && path.class_ >= DP_TOPO_RAILED; i++) {
        const enum dp_topo_kind kind = t->nodes[path.nodes[i]].kind;
        if (kind == DP_TOPO_NIC && f->nic_from < 0)
            f->nic_from = path.nodes[i];
        else if (kind == DP_TOPO_NIC)
            f->nic_to = path.nodes[i];
        else if (kind == DP_TOPO_RAIL && path.class_ == DP_TOPO_RAILED)
            f->rail = path.nodes[i];
    }
    return err;
}

/* ---- better ones ---------------------------------------------------------------------------- */

/* Is the flow, which is on no route now, better off on this one? */
static bool is_better(struct selection *x, double bytes, const struct dp_route *route, double *norm)
{
    struct dp_loads *loads = x->s->loads;

    dp_loads_add(loads, route, bytes);
    const double slowest_ns = dp_loads_max_on(loads, route), now = loads->norm;
    dp_loads_add(loads, route, -bytes);
    if (slowest_ns > x->slowest_ns * (1 + 1e-9) || now >= *norm * (1 - 1e-9))
        return false;
    *norm = now;
    return true;
}

/* Try the route over two NICs by every rail that they share. */
static int try_nics(struct selection *x, struct dp_flow *f, struct nic_route *via, double *norm,
                    struct dp_route *best)
{
    const struct dp_topology *t = x->s->spec->topology;
    const int32_t from = x->p->workers[f->from].gpu, to = x->p->workers[f->to].gpu;
    int err = 0;

    for (int32_t at = t->first_around[via->nic_from];
         !err && (via->rail = next_rail(t, via->nic_from, &at)) >= 0;) {
        bool exists;
        err = route_over_nics(x, from, to, via, &exists);
        if (err || !exists || !is_better(x, f->bytes, &via->route, norm))
            continue;
        *best = via->route;
        f->nic_from = via->nic_from;
        f->nic_to = via->nic_to;
        f->rail = via->rail;
        f->class_ = DP_TOPO_RAILED;
    }
    return err;
}

static int choose_nics(struct selection *x, struct dp_flow *f, struct dp_route *route)
{
    const struct dp_placed_worker *a = &x->p->workers[f->from], *b = &x->p->workers[f->to];
    double norm = x->s->loads->norm;
    struct dp_route best = *route;
    struct nic_route via;
    int err = 0;

    dp_loads_add(x->s->loads, route, -f->bytes);
    for (int32_t i = 0; !err && i < a->nic_count && i < NICS_TRIED; i++)
        for (int32_t k = 0; !err && k < b->nic_count && k < NICS_TRIED; k++) {
            via.nic_from = a->nics[i];
            via.nic_to = b->nics[k];
            err = try_nics(x, f, &via, &norm, &best);
        }
    *route = best;
    dp_loads_add(x->s->loads, route, f->bytes);
    return err;
}

static int choose_memory(struct selection *x, struct dp_flow *f, struct dp_route *route)
{
    const struct dp_topology *t = x->s->spec->topology;
    struct dp_placed_worker *w = &x->p->workers[f->from];
    const int32_t host = t->nodes[w->gpu].host;
    double norm = x->s->loads->norm;
    struct dp_route best = *route, other;
    int err = 0;

    dp_loads_add(x->s->loads, route, -f->bytes);
    for (int32_t n = host; !err && (n = dp_topology_next(t, DP_TOPO_NUMA, host, n + 1)) >= 0;) {
        if (n == w->memory || (w->memory >= 0 && !t->nodes[n].memory_bytes))
            continue;
        err = dp_route_offload(&other, t, w->gpu, n);
        if (!err && other.count && is_better(x, f->bytes, &other, &norm)) {
            best = other;
            w->memory = n;
        }
    }
    *route = best;
    dp_loads_add(x->s->loads, route, f->bytes);
    return err;
}

static int improve(struct selection *x)
{
    const struct dp_topology *t = x->s->spec->topology;
    int err = 0;

    x->slowest_ns = dp_loads_max(x->s->loads);
    for (int32_t i = 0; !err && i < x->p->flow_count; i++) {
        const int32_t flow = x->order[i].flow;
        struct dp_flow *f = &x->p->flows[flow];
        const int32_t a = x->p->workers[f->from].gpu, b = x->p->workers[f->to].gpu;
        if (f->kind == DP_FLOW_OFFLOAD)
            err = choose_memory(x, f, &x->at[flow]);
        else if (t->nodes[a].host != t->nodes[b].host && f->nic_from >= 0)
            err = choose_nics(x, f, &x->at[flow]);
    }
    return err;
}

/* ---- workers -------------------------------------------------------------------------------- */

static int find_nics(const struct dp_search *s, struct dp_placed_worker *w)
{
    int err = dp_routes_memory(s->routes, w->gpu, &w->memory);

    if (!err)
        err = dp_topology_nics(s->spec->topology, w->gpu, w->nics, DP_PLACEMENT_NICS_MAX,
                               &w->nic_count);
    return err;
}

/* One queue pair for each 100 Gb/s: that is about what one does, on NICs and switches of the time
 * that spread traffic by queue pair. */
static int32_t count_qps(const struct dp_topology *t, int32_t nic)
{
    int32_t first, count = dp_topology_ports(t, nic, &first);
    double rate = 0;

    for (int32_t i = first; i < first + count; i++)
        rate += t->ports[i].bytes_per_ns;
    const double qps = ceil(rate / 12.5);
    return qps < 1 ? 1 : qps > 8 ? 8 : (int32_t)qps;
}

struct used_nic {
    int32_t nic;
    double bytes;
};

static void swap_nics(struct used_nic *a, struct used_nic *b)
{
    const struct used_nic c = *a;

    *a = *b;
    *b = c;
}

/* The NICs that its flows use come first, the busiest before the others. `flow` is the first of the
 * worker's; returns the first of the next one's. */
static int32_t order_nics(const struct selection *x, int32_t worker, int32_t flow)
{
    struct dp_placed_worker *w = &x->p->workers[worker];
    struct used_nic used[DP_PLACEMENT_NICS_MAX];

    for (int32_t i = 0; i < w->nic_count; i++)
        used[i] = (struct used_nic){w->nics[i], 0};
    for (; flow < x->p->flow_count && x->p->flows[flow].from == worker; flow++)
        for (int32_t i = 0; i < w->nic_count; i++)
            if (used[i].nic == x->p->flows[flow].nic_from)
                used[i].bytes += x->p->flows[flow].bytes;
    for (int32_t i = 1; i < w->nic_count; i++)
        for (int32_t k = i; k > 0 && used[k].bytes > used[k - 1].bytes; k--)
            swap_nics(&used[k], &used[k - 1]);
    for (int32_t i = 0; i < w->nic_count; i++) {
        w->nics[i] = used[i].nic;
        w->qps[i] = count_qps(x->s->spec->topology, used[i].nic);
    }
    return flow;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static int compare_sizes(const void *a, const void *b)
{
    const struct sized *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->flow - y->flow;
}

static void sort_by_size(struct selection *x)
{
    for (int32_t i = 0; i < x->p->flow_count; i++)
        x->order[i] = (struct sized){x->p->flows[i].bytes, i};
    qsort(x->order, (size_t)x->p->flow_count, sizeof(*x->order), compare_sizes);
}

static int start(struct selection *x)
{
    int err = 0;

    for (int32_t w = 0; !err && w < x->s->traffic->workers; w++)
        err = find_nics(x->s, &x->p->workers[w]);
    for (int32_t i = 0; !err && i < x->p->flow_count; i++) {
        err = take_default(x, &x->p->flows[i], &x->at[i]);
        if (!err)
            dp_loads_add(x->s->loads, &x->at[i], x->p->flows[i].bytes);
    }
    sort_by_size(x);
    return err;
}

int dp_paths_choose(const struct dp_search *s, struct dp_placement *p)
{
    const size_t flows = (size_t)p->flow_count + 1;
    struct selection x = {.s = s, .p = p};
    int err = 0;

    x.at = malloc(flows * sizeof(*x.at));
    x.order = malloc(flows * sizeof(*x.order));
    if (!x.at || !x.order)
        err = dp_fail(DP_ENOMEM, "no memory for the routes of %d flows", p->flow_count);
    dp_loads_clear(s->loads, p->after_ns);
    if (!err)
        err = start(&x);
    for (int round = 0; !err && round < ROUNDS; round++)
        err = improve(&x);
    for (int32_t w = 0, flow = 0; !err && w < s->traffic->workers; w++)
        flow = order_nics(&x, w, flow);
    for (int32_t i = 0; i < p->flow_count; i++)
        if (p->flows[i].nic_from >= 0)
            p->flows[i].traffic_class = s->spec->traffic_class[p->flows[i].kind];
    free(x.order);
    free(x.at);
    return err;
}
