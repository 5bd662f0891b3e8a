/* SPDX-License-Identifier: Apache-2.0
 *
 * search_exact.c - branch and bound. Workers are placed one after the other, each with its edges to
 * those before it; links only ever get more to carry, so an order whose slowest link is already
 * slower than the best one's is not carried further.
 */
#include "placement/search.h"

#include <string.h>

/* A direction's load before something was added to it. */
struct undo {
    int32_t direction;
    double ns;
};

enum { UNDO_MAX = 2 * DP_SEARCH_EXACT_WORKERS * DP_SEARCH_EXACT_WORKERS * DP_ROUTE_LINKS_MAX };

struct exact {
    const struct dp_search *s;
    int32_t workers;
    int32_t gpus[DP_SEARCH_EXACT_WORKERS], best[DP_SEARCH_EXACT_WORKERS];
    bool is_taken[DP_SEARCH_EXACT_WORKERS];
    double scale_ns;
    struct dp_weight weight; /* of best */
    int undo_count;
    struct undo undo[UNDO_MAX];
};

static void load(struct exact *x, const struct dp_route *route, double bytes)
{
    const struct dp_loads *loads = x->s->loads;

    for (int32_t i = 0; i < route->count; i++)
        x->undo[x->undo_count++] = (struct undo){route->directions[i], loads->ns[route->directions[i]]};
    dp_loads_add(x->s->loads, route, bytes);
}

static void unload(struct exact *x, int down_to, double norm)
{
    while (x->undo_count > down_to) {
        const struct undo *u = &x->undo[--x->undo_count];
        x->s->loads->ns[u->direction] = u->ns;
    }
    x->s->loads->norm = norm;
}

/* The edges between worker w and those placed before it; *slowest_ns grows with them. */
static int load_edges(struct exact *x, int32_t w, double *slowest_ns)
{
    const struct dp_traffic *t = x->s->traffic;

    for (int32_t i = t->first[w]; i < t->first[w + 1]; i++) {
        const struct dp_edge *edge = &t->edges[t->of_worker[i]];
        const struct dp_route *route;
        if (edge->from > w || edge->to > w)
            continue;
        int err = dp_routes_get(x->s->routes, x->gpus[edge->from], x->gpus[edge->to], &route);
        if (err)
            return err;
        load(x, route, edge->bytes);
        const double ns = dp_loads_max_on(x->s->loads, route);
        *slowest_ns = ns > *slowest_ns ? ns : *slowest_ns;
    }
    return 0;
}

static int place_from(struct exact *x, int32_t w, double slowest_ns)
{
    const int before = x->undo_count;
    const double norm = x->s->loads->norm;
    int err = 0;

    if (w == x->workers) {
        memcpy(x->best, x->gpus, sizeof(x->best));
        x->weight = (struct dp_weight){slowest_ns, norm};
        return 0;
    }
    for (int32_t i = 0; i < x->workers && !err; i++) {
        double ns = slowest_ns;
        if (x->is_taken[i])
            continue;
        x->is_taken[i] = true;
        x->gpus[w] = x->s->came[i];
        err = load_edges(x, w, &ns);
        if (!err && dp_weight_is_less((struct dp_weight){ns, x->s->loads->norm}, x->weight))
            err = place_from(x, w + 1, ns);
        unload(x, before, norm);
        x->is_taken[i] = false;
    }
    return err;
}

int dp_search_exactly(const struct dp_search *s, int32_t *gpus)
{
    struct exact x = {.s = s, .workers = s->traffic->workers};
    int err = dp_search_weigh(s, gpus, 1, &x.weight);

    x.scale_ns = x.weight.slowest_ns;
    if (!err)
        err = dp_search_weigh(s, gpus, x.scale_ns, &x.weight);
    memcpy(x.best, gpus, (size_t)x.workers * sizeof(*gpus));
    dp_loads_clear(s->loads, x.scale_ns);
    if (!err)
        err = place_from(&x, 0, 0);
    if (!err)
        memcpy(gpus, x.best, (size_t)x.workers * sizeof(*gpus));
    return err;
}
