/* SPDX-License-Identifier: Apache-2.0
 *
 * placement.c - a placement from a spec: first which worker is on which GPU, then the routes, then
 * what that makes of every link.
 */
#include "base/fail.h"
#include "base/sized.h"
#include "placement/search.h"

#include <stdlib.h>
#include <string.h>

/* ---- GPUs ----------------------------------------------------------------------------------- */

static int take_first_gpus(const struct dp_topology *t, int32_t workers, int32_t *gpus)
{
    int32_t count = 0, total = 0;

    for (int32_t g = -1; (g = dp_topology_next(t, DP_TOPO_GPU, -1, g + 1)) >= 0; total++)
        if (count < workers)
            gpus[count++] = g;
    if (count == workers)
        return 0;
    return dp_fail(DP_EINVAL, "topology: %d GPUs, expected one for each of %d workers", total,
                   workers);
}

static int check_gpus(const struct dp_topology *t, const int32_t *gpus, int32_t workers)
{
    char label[DP_TOPO_LABEL_LEN];
    bool *seen = calloc((size_t)t->node_count, sizeof(*seen));
    int err = seen ? 0 : dp_fail(DP_ENOMEM, "no memory for %d nodes", t->node_count);

    for (int32_t w = 0; !err && w < workers; w++) {
        const int32_t g = gpus[w];
        if (g < 0 || g >= t->node_count)
            err = dp_fail(DP_EINVAL, "gpus[%d]: node %d, expected a GPU of the topology", w, g);
        else if (t->nodes[g].kind != DP_TOPO_GPU)
            err = dp_fail(DP_EINVAL, "gpus[%d]: %s, expected a GPU", w,
                          dp_topology_label(t, g, label));
        else if (seen[g])
            err = dp_fail(DP_EINVAL, "gpus[%d]: %s, which stands there already", w,
                          dp_topology_label(t, g, label));
        else
            seen[g] = true;
    }
    free(seen);
    return err;
}

/* ---- what a search needs -------------------------------------------------------------------- */

struct work {
    struct dp_traffic traffic;
    struct dp_routes routes;
    struct dp_loads loads;
    int32_t *came;
    struct dp_search search;
};

static void work_fini(struct work *w)
{
    free(w->came);
    dp_loads_fini(&w->loads);
    dp_routes_fini(&w->routes);
    dp_traffic_fini(&w->traffic);
}

static int work_init(struct work *w, const struct dp_placement_spec *spec, const int32_t *gpus)
{
    *w = (struct work){0};
    int err = dp_traffic_init(&w->traffic, spec);
    if (err)
        return err;
    const int32_t workers = w->traffic.workers;
    err = dp_routes_init(&w->routes, spec->topology);
    if (!err)
        err = dp_loads_init(&w->loads, spec->topology);
    if (!err && !(w->came = malloc((size_t)workers * sizeof(*w->came))))
        err = dp_fail(DP_ENOMEM, "no memory for %d workers", workers);
    if (!err && gpus) {
        memcpy(w->came, gpus, (size_t)workers * sizeof(*gpus));
        err = check_gpus(spec->topology, gpus, workers);
    } else if (!err) {
        err = take_first_gpus(spec->topology, workers, w->came);
    }
    w->search = (struct dp_search){spec, &w->traffic, &w->routes, &w->loads, w->came};
    if (err)
        work_fini(w);
    return err;
}

/* ---- the placement -------------------------------------------------------------------------- */

static struct dp_placement *new_placement(struct work *w)
{
    const int32_t ranks = w->search.spec->schedule->ranks, workers = w->traffic.workers;
    struct dp_placement *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    *p = (struct dp_placement){.ranks = ranks, .replicas = workers / ranks};
    p->workers = calloc((size_t)workers, sizeof(*p->workers));
    p->flows = calloc((size_t)w->traffic.flow_count + 1, sizeof(*p->flows));
    p->links = calloc((size_t)w->loads.directions + 1, sizeof(*p->links));
    if (p->workers && p->flows && p->links) {
        p->flow_count = w->traffic.flow_count;
        memcpy(p->flows, w->traffic.flows, (size_t)p->flow_count * sizeof(*p->flows));
        return p;
    }
    dp_placement_free(p);
    return NULL;
}

/* Links in their own order for now: before, then after. */
static void note_loads(const struct work *w, struct dp_placement *p, bool after)
{
    for (int32_t direction = 0; direction < w->loads.directions; direction++) {
        const struct dp_topo_link *link = &w->search.spec->topology->links[direction / 2];
        struct dp_placed_link *l = &p->links[direction];
        l->link = direction / 2;
        l->from = direction % 2 ? link->b : link->a;
        l->to = direction % 2 ? link->a : link->b;
        *(after ? &l->after_ns : &l->before_ns) = w->loads.ns[direction];
    }
}

static int compare_links(const void *a, const void *b)
{
    const struct dp_placed_link *x = a, *y = b;

    if (x->after_ns != y->after_ns)
        return x->after_ns > y->after_ns ? -1 : 1;
    if (x->before_ns != y->before_ns)
        return x->before_ns > y->before_ns ? -1 : 1;
    return x->link != y->link ? x->link - y->link : x->from - y->from;
}

/* Sums to which as much was added as taken away again are not always 0. */
static bool is_used(const struct dp_placement *p, const struct dp_placed_link *l)
{
    return l->before_ns > 1e-9 * p->before_ns || l->after_ns > 1e-9 * p->before_ns;
}

static void sort_links(struct dp_placement *p, int32_t directions)
{
    for (int32_t i = 0; i < directions; i++)
        if (is_used(p, &p->links[i]))
            p->links[p->link_count++] = p->links[i];
    qsort(p->links, (size_t)p->link_count, sizeof(*p->links), compare_links);
}

struct came {
    int32_t gpu, place;
};

static int compare_came(const void *a, const void *b)
{
    return ((const struct came *)a)->gpu - ((const struct came *)b)->gpu;
}

static int assign(const struct work *w, const int32_t *gpus, struct dp_placement *p)
{
    const size_t workers = (size_t)w->traffic.workers;
    struct came *came = malloc(workers * sizeof(*came));

    if (!came)
        return dp_fail(DP_ENOMEM, "no memory for %zu workers", workers);
    for (size_t i = 0; i < workers; i++)
        came[i] = (struct came){w->came[i], (int32_t)i};
    qsort(came, workers, sizeof(*came), compare_came);
    for (size_t i = 0; i < workers; i++) {
        const struct came key = {gpus[i], 0};
        const struct came *found = bsearch(&key, came, workers, sizeof(*came), compare_came);
        p->workers[i].gpu = gpus[i];
        p->workers[i].came_as = found->place;
    }
    free(came);
    return 0;
}

/* gpus: the order as the ranks came; becomes the best one found. */
static int search(const struct work *w, int32_t *gpus, bool *exact)
{
    int err;

    *exact = w->traffic.workers <= DP_SEARCH_EXACT_WORKERS;
    if (*exact)
        return dp_search_exactly(&w->search, gpus);
    err = dp_search_default(&w->search, gpus);
    return err ? err : dp_search_swaps(&w->search, gpus);
}

static int fill(struct work *w, int32_t *gpus, struct dp_placement *p)
{
    struct dp_weight before, after;
    int err = dp_search_weigh(&w->search, gpus, 1, &before);

    if (err)
        return err;
    note_loads(w, p, false);
    p->before_ns = before.slowest_ns;
    err = search(w, gpus, &p->exact);
    if (!err)
        err = dp_search_weigh(&w->search, gpus, 1, &after);
    if (!err)
        err = assign(w, gpus, p);
    if (err)
        return err;
    p->after_ns = after.slowest_ns;
    err = dp_paths_choose(&w->search, p);
    if (err)
        return err;
    note_loads(w, p, true);
    sort_links(p, w->loads.directions);
    p->after_ns = p->link_count ? p->links[0].after_ns : 0;
    return 0;
}

int dp_placement_new_sized(const struct dp_placement_spec *spec, struct dp_placement **out,
                           size_t size)
{
    DP_TAKE(dp_placement_spec, spec, size);
    struct work w;
    int err = work_init(&w, spec, spec->gpus);

    if (err)
        return err;
    const size_t bytes = (size_t)w.traffic.workers * sizeof(int32_t);
    struct dp_placement *p = new_placement(&w);
    int32_t *gpus = malloc(bytes);
    if (p && gpus) {
        memcpy(gpus, w.came, bytes);
        err = fill(&w, gpus, p);
    } else {
        err = dp_fail(DP_ENOMEM, "no memory for a placement of %d workers", w.traffic.workers);
    }
    free(gpus);
    work_fini(&w);
    if (err)
        dp_placement_free(p);
    else
        *out = p;
    return err;
}

void dp_placement_free(struct dp_placement *p)
{
    if (!p)
        return;
    free(p->links);
    free(p->flows);
    free(p->workers);
    free(p);
}
