/* SPDX-License-Identifier: Apache-2.0
 *
 * search_swaps.c - local search. One of the workers whose edges load the slowest link changes places
 * with another: one on the host of a worker that it exchanges messages with, or any. What makes the
 * norm of the loads smaller stays.
 */
#include "placement/search.h"

#include "base/fail.h"

#include <dualpipe/random.h>

#include <stdlib.h>
#include <string.h>

enum {
    LOOK_EVERY = 64,             /* swaps between two looks for the slowest link */
    TELL_EVERY = 16 * LOOK_EVERY /* between two reports of progress */
};

struct swaps {
    const struct dp_search *s;
    int32_t *gpus;         /* [workers] */
    struct dp_route *at;   /* [edges] where each edge is now */
    int32_t *busy;         /* workers whose edges load the slowest link */
    int32_t busy_count;
    uint64_t draws;
};

static uint32_t draw(struct swaps *x, int32_t below)
{
    const struct dp_random_key key = dp_random_key(x->s->spec->seed, 0, 0, 0);
    uint32_t block[4];

    dp_random_block(key, x->draws++, block);
    return (uint32_t)(((uint64_t)block[0] * (uint32_t)below) >> 32);
}

static int load_all(struct swaps *x, double scale_ns)
{
    const struct dp_search *s = x->s;

    dp_loads_clear(s->loads, scale_ns);
    for (int32_t e = 0; e < s->traffic->edge_count; e++) {
        const struct dp_edge *edge = &s->traffic->edges[e];
        const struct dp_route *route;
        int err = dp_routes_get(s->routes, x->gpus[edge->from], x->gpus[edge->to], &route);
        if (err)
            return err;
        dp_route_copy(&x->at[e], route);
        dp_loads_add(s->loads, route, edge->bytes);
    }
    return 0;
}

/* ---- what to move --------------------------------------------------------------------------- */

static int32_t slowest_direction(const struct dp_loads *loads)
{
    int32_t slowest = 0;

    for (int32_t i = 1; i < loads->directions; i++)
        if (loads->ns[i] > loads->ns[slowest])
            slowest = i;
    return slowest;
}

static void find_busy(struct swaps *x)
{
    const struct dp_traffic *t = x->s->traffic;
    const int32_t direction = slowest_direction(x->s->loads);

    x->busy_count = 0;
    for (int32_t e = 0; e < t->edge_count; e++)
        for (int32_t i = 0; i < x->at[e].count; i++)
            if (x->at[e].directions[i] == direction) {
                x->busy[x->busy_count++] = t->edges[e].from;
                x->busy[x->busy_count++] = t->edges[e].to;
                break;
            }
}

/* A worker on the host of one that w exchanges messages with, if a few draws find one. */
static int32_t draw_neighbour(struct swaps *x, int32_t w)
{
    const struct dp_traffic *t = x->s->traffic;
    const struct dp_topology *topology = x->s->spec->topology;
    const int32_t edges = t->first[w + 1] - t->first[w];

    if (!edges)
        return (int32_t)draw(x, t->workers);
    const struct dp_edge *edge = &t->edges[t->of_worker[t->first[w] + (int32_t)draw(x, edges)]];
    const int32_t peer = edge->from == w ? edge->to : edge->from;
    for (int i = 0; i < 8; i++) { /* workers of a host are often neighbours by number, too */
        int32_t v = peer + (int32_t)draw(x, 33) - 16;
        if (v >= 0 && v < t->workers && v != w && v != peer &&
            topology->nodes[x->gpus[v]].host == topology->nodes[x->gpus[peer]].host)
            return v;
    }
    return peer;
}

/* ---- a swap --------------------------------------------------------------------------------- */

/* Take the edges of w away (an edge of both workers once), or put them where they now belong. */
static void unload(struct swaps *x, int32_t w, int32_t but_of)
{
    const struct dp_traffic *t = x->s->traffic;

    for (int32_t i = t->first[w]; i < t->first[w + 1]; i++) {
        const int32_t e = t->of_worker[i];
        if (t->edges[e].from != but_of && t->edges[e].to != but_of)
            dp_loads_add(x->s->loads, &x->at[e], -t->edges[e].bytes);
    }
}

static int reload(struct swaps *x, int32_t w, int32_t but_of)
{
    const struct dp_traffic *t = x->s->traffic;

    for (int32_t i = t->first[w]; i < t->first[w + 1]; i++) {
        const int32_t e = t->of_worker[i];
        const struct dp_edge *edge = &t->edges[e];
        const struct dp_route *route;
        if (edge->from == but_of || edge->to == but_of)
            continue;
        int err = dp_routes_get(x->s->routes, x->gpus[edge->from], x->gpus[edge->to], &route);
        if (err)
            return err;
        dp_route_copy(&x->at[e], route);
        dp_loads_add(x->s->loads, route, edge->bytes);
    }
    return 0;
}

static int swap(struct swaps *x, int32_t a, int32_t b)
{
    const int32_t gpu = x->gpus[a];

    unload(x, a, -1);
    unload(x, b, a);
    x->gpus[a] = x->gpus[b];
    x->gpus[b] = gpu;
    int err = reload(x, a, -1);
    return err ? err : reload(x, b, a);
}

/* *helped: it stays. */
static int try_swap(struct swaps *x, bool *helped)
{
    const struct dp_loads *loads = x->s->loads;
    const double norm = loads->norm;
    const int32_t a = x->busy_count ? x->busy[draw(x, x->busy_count)]
                                    : (int32_t)draw(x, x->s->traffic->workers);
    const int32_t b = draw(x, 2) ? draw_neighbour(x, a) : (int32_t)draw(x, x->s->traffic->workers);

    *helped = false;
    if (a == b)
        return 0;
    int err = swap(x, a, b);
    *helped = !err && loads->norm < norm * (1 - 1e-9);
    return err || *helped ? err : swap(x, a, b);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static long choose_effort(const struct dp_search *s)
{
    if (s->spec->effort > 0)
        return s->spec->effort;
    return s->traffic->workers <= 256 ? 100000 : 20000;
}

/* Additions and subtractions leave rounding errors behind: now and then all is added up anew. */
static int run(struct swaps *x, double scale_ns)
{
    const long effort = choose_effort(x->s), fruitless_max = 2000 + 8L * x->s->traffic->workers;
    int err = load_all(x, scale_ns);

    for (long i = 0, since = 0; !err && i < effort && since < fruitless_max; i++, since++) {
        bool helped;
        if (x->s->spec->progress && i % TELL_EVERY == 0)
            x->s->spec->progress(x->s->spec->progress_user, (double)i / (double)effort);
        if (i % LOOK_EVERY == 0) {
            if (i % (LOOK_EVERY * 16) == 0 && i)
                err = load_all(x, scale_ns);
            find_busy(x);
        }
        if (!err)
            err = try_swap(x, &helped);
        if (!err && helped)
            since = 0;
    }
    return err;
}

int dp_search_swaps(const struct dp_search *s, int32_t *gpus)
{
    const size_t workers = (size_t)s->traffic->workers, edges = (size_t)s->traffic->edge_count;
    struct swaps x = {.s = s};
    struct dp_weight before, after;

    x.gpus = malloc(workers * sizeof(*x.gpus));
    x.at = malloc((edges + 1) * sizeof(*x.at));
    x.busy = malloc((2 * edges + 1) * sizeof(*x.busy));
    int err = x.gpus && x.at && x.busy
                  ? dp_search_weigh(s, gpus, 1, &before)
                  : dp_fail(DP_ENOMEM, "no memory for an order of %zu workers", workers);
    const double scale_ns = err ? 1 : before.slowest_ns;
    if (!err && before.slowest_ns > 0) {
        memcpy(x.gpus, gpus, workers * sizeof(*gpus));
        err = dp_search_weigh(s, gpus, scale_ns, &before);
        if (!err)
            err = run(&x, scale_ns);
        if (!err)
            err = dp_search_weigh(s, x.gpus, scale_ns, &after);
        if (!err && dp_weight_is_less(after, before))
            memcpy(gpus, x.gpus, workers * sizeof(*gpus));
    }
    free(x.busy);
    free(x.at);
    free(x.gpus);
    return err;
}
