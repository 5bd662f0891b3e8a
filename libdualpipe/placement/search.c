/* SPDX-License-Identifier: Apache-2.0
 *
 * search.c - what an order costs, the best of all by branch and bound, and orders that people would
 * choose. A host takes a block of neighbouring pipeline ranks, and as many replicas of it as still fit:
 *
 *      8 GPUs a host:     blocks of 8: one replica's ranks 0-7
 *                         blocks of 4: ranks 0-3 of two replicas
 *                         blocks of 1: one rank of 8 replicas
 *
 * and either in the order of the ranks or folded, 0, P-1, 1, P-2, ..., so that mirrors meet.
 */
#include "placement/search.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

int dp_search_weigh(const struct dp_search *s, const int32_t *gpus, double scale_ns,
                    struct dp_weight *weight)
{
    dp_loads_clear(s->loads, scale_ns);
    for (int32_t i = 0; i < s->traffic->edge_count; i++) {
        const struct dp_edge *edge = &s->traffic->edges[i];
        const struct dp_route *route;
        int err = dp_routes_get(s->routes, gpus[edge->from], gpus[edge->to], &route);
        if (err)
            return err;
        dp_loads_add(s->loads, route, edge->bytes);
    }
    *weight = (struct dp_weight){dp_loads_max(s->loads), s->loads->norm};
    return 0;
}

/* ---- default orders -------------------------------------------------------------------------- */

static int compare_nodes(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static int32_t largest_host(const struct dp_topology *t, const int32_t *sorted, int32_t count)
{
    int32_t largest = 1, run = 1;

    for (int32_t i = 1; i < count; i++) {
        run = t->nodes[sorted[i]].host == t->nodes[sorted[i - 1]].host ? run + 1 : 1;
        largest = run > largest ? run : largest;
    }
    return largest;
}

static int32_t rank_at(int32_t place, int32_t ranks, bool folded)
{
    if (!folded)
        return place;
    return place % 2 ? ranks - 1 - place / 2 : place / 2;
}

/* Blocks of `block` ranks, `beside` replicas of a block next to each other. */
static void fill(const struct dp_search *s, const int32_t *sorted, int32_t block, int32_t beside,
                 bool folded, int32_t *gpus)
{
    const int32_t ranks = s->spec->schedule->ranks, replicas = s->traffic->workers / ranks;
    int32_t next = 0;

    for (int32_t d0 = 0; d0 < replicas; d0 += beside)
        for (int32_t p0 = 0; p0 < ranks; p0 += block)
            for (int32_t d = d0; d < d0 + beside && d < replicas; d++)
                for (int32_t p = p0; p < p0 + block && p < ranks; p++)
                    gpus[d * ranks + rank_at(p, ranks, folded)] = sorted[next++];
}

static int try_order(const struct dp_search *s, const int32_t *order, double scale_ns,
                     struct dp_weight *best, int32_t *gpus)
{
    struct dp_weight weight;
    int err = dp_search_weigh(s, order, scale_ns, &weight);

    if (!err && dp_weight_is_less(weight, *best)) {
        *best = weight;
        memcpy(gpus, order, (size_t)s->traffic->workers * sizeof(*gpus));
    }
    return err;
}

static int try_all(const struct dp_search *s, const int32_t *sorted, int32_t *order, int32_t *gpus)
{
    const int32_t host = largest_host(s->spec->topology, sorted, s->traffic->workers);
    struct dp_weight best;
    int err = dp_search_weigh(s, gpus, 1, &best);
    const double scale_ns = best.slowest_ns;

    if (!err)
        err = dp_search_weigh(s, gpus, scale_ns, &best);
    for (int32_t block = 1; !err && block < 2 * host; block *= 2)
        for (int folded = 0; !err && folded < 2; folded++) {
            const int32_t fits = block < host ? block : host;
            fill(s, sorted, fits, host / fits, folded, order);
            err = try_order(s, order, scale_ns, &best, gpus);
        }
    return err;
}

int dp_search_default(const struct dp_search *s, int32_t *gpus)
{
    const size_t workers = (size_t)s->traffic->workers;
    int32_t *sorted = malloc(2 * workers * sizeof(*sorted));

    if (!sorted)
        return dp_fail(DP_ENOMEM, "no memory for an order of %zu workers", workers);
    memcpy(sorted, s->came, workers * sizeof(*sorted));
    qsort(sorted, workers, sizeof(*sorted), compare_nodes);
    int err = try_all(s, sorted, sorted + workers, gpus);
    free(sorted);
    return err;
}

/* ---- branch and bound ------------------------------------------------------------------------ */

/* Workers are placed one after the other, each with its edges to those before it; links only ever get
 * more to carry, so an order whose slowest link is already slower than the best one's is not carried
 * further. */

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
