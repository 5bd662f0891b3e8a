/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_without.c - the graph of the workers that are left, and of more workers than before.
 *
 * A worker d is taken out of a round as a state is taken out of a Markov chain (Meyer, "Stochastic
 * complementation", 1989): what went to d goes on to where d gave it,
 *
 *      W'_ji = W_ji + W_jd W_di / (1 - W_dd)
 *
 * which keeps the sums of rows and columns, and with them the mean.
 */
#include "base/array.h"
#include "base/fail.h"
#include "mixing/graph.h"
#include "mixing/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- the same kind ----------------------------------------------------------------------------- */

static bool is_even(int32_t n)
{
    return n % 2 == 0;
}

static bool is_power(int32_t n)
{
    return (n & (n - 1)) == 0;
}

/* Kinds that have no nodes or seeds, and the numbers of workers that they can have; NULL: any. */
static const struct {
    const char *name;
    bool (*fits)(int32_t workers);
} kinds[] = {
    {"complete", NULL}, {"ring", is_even}, {"one-peer-exp", is_power}, {"hypercube", NULL},
    {"torus", NULL},    {"star", NULL},    {"directed-exp", NULL},
};

static bool fits(const char *name, int32_t workers)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (!strcmp(kinds[i].name, name))
            return !kinds[i].fits || kinds[i].fits(workers);
    return false;
}

static int build_kind(const char *name, int32_t workers, struct dp_graph **out)
{
    return dp_graph_new(&(struct dp_graph_spec){.name = name, .workers = workers, .local = 1}, out);
}

/* A file's graph may have the name of a kind and be another one. */
static bool is_of_kind(const struct dp_graph *g)
{
    struct dp_graph *other;

    if (!fits(g->name, g->workers) || build_kind(g->name, g->workers, &other))
        return false;
    other->local = g->local;
    const bool same = dp_graph_equal(g, other);
    dp_graph_free(other);
    return same;
}

int dp_graph_of_size(const struct dp_graph *g, int workers, struct dp_graph **out)
{
    if (workers < 1 || workers > DP_GRAPH_MAX_WORKERS)
        return dp_fail(DP_EINVAL, "workers: %d, expected 1 to %d", workers, DP_GRAPH_MAX_WORKERS);
    if (fits(g->name, workers) && is_of_kind(g))
        return build_kind(g->name, workers, out);
    return build_kind(g->push_sum      ? "directed-exp"
                      : g->period == 1 ? "torus"
                                       : "hypercube",
                      workers, out);
}

/* ---- a round of groups ------------------------------------------------------------------------- */

/* What a change of the graph works with: number[w] is what worker w becomes, -1: it is gone. */
struct change {
    const struct dp_graph *g;
    int32_t *number, *members; /* [workers] */
    int32_t left;
    struct dp_graph_builder *b;
};

static void keep_group(struct change *c, const struct dp_mix_group *group)
{
    double self = group->self;
    double share = group->count > 1 ? (1 - self) / (group->count - 1) : 0;
    int32_t count = 0;

    for (int32_t i = 0; i < group->count; i++) {
        const int32_t worker = c->g->members[group->first + (size_t)i];
        if (c->number[worker] >= 0) {
            c->members[count++] = c->number[worker];
            continue;
        }
        const double passed_on = share > 0 ? share * share / (1 - self) : 0;
        self += passed_on;
        share += passed_on;
    }
    if (count)
        dp_graph_add_group(c->b, c->members, count,
                           count == 1                              ? 1
                           : group->self == 1.0 / group->count ? -1
                                                               : self);
}

/* ---- a round of links -------------------------------------------------------------------------- */

struct links {
    struct dp_mix_link *items;
    size_t count, capacity;
};

static int add_link(struct links *l, struct dp_mix_link link)
{
    struct dp_mix_link *items = dp_array_grow(l->items, &l->capacity, l->count + 1, sizeof(*items));

    if (!items)
        return dp_fail(DP_ENOMEM, "no memory for %zu links", l->count + 1);
    l->items = items;
    items[l->count++] = link;
    return 0;
}

static int by_ends(const void *a, const void *b)
{
    const struct dp_mix_link *x = a, *y = b;

    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

/* Links between the same two become one. */
static void merge(struct links *l)
{
    size_t count = 0;

    if (l->count)
        qsort(l->items, l->count, sizeof(*l->items), by_ends);
    for (size_t i = 0; i < l->count; i++)
        if (count && !by_ends(&l->items[count - 1], &l->items[i]))
            l->items[count - 1].weight += l->items[i].weight;
        else
            l->items[count++] = l->items[i];
    l->count = count;
}

static int pass_on(struct links *l, size_t before, int32_t gone, double self)
{
    int err = 0;

    for (size_t in = 0; in < before && !err; in++)
        for (size_t to = 0; to < before && !err; to++) {
            const struct dp_mix_link x = l->items[in], y = l->items[to];
            if (x.to == gone && x.from != gone && y.from == gone && y.to != gone)
                err = add_link(l, (struct dp_mix_link){y.to, x.from,
                                                       x.weight * y.weight / (1 - self)});
        }
    return err;
}

static int take_out(struct links *l, int32_t gone)
{
    const size_t before = l->count;
    double self = 0;
    size_t count = 0;

    for (size_t i = 0; i < before; i++)
        if (l->items[i].to == gone && l->items[i].from == gone)
            self = l->items[i].weight;
    int err = self < 1 ? pass_on(l, before, gone, self) : 0;
    for (size_t i = 0; i < l->count; i++)
        if (l->items[i].to != gone && l->items[i].from != gone)
            l->items[count++] = l->items[i];
    l->count = count;
    merge(l);
    return err;
}

static int keep_links(struct change *c, const struct dp_mix_round *r)
{
    struct links l = {0};
    int err = 0;

    for (size_t i = r->first_link; i < r->first_link + r->link_count && !err; i++)
        err = add_link(&l, c->g->links[i]);
    for (int32_t w = 0; w < c->g->workers && !err; w++)
        if (c->number[w] < 0)
            err = take_out(&l, w);
    for (size_t i = 0; i < l.count && !err; i++)
        dp_graph_add_link(c->b, c->number[l.items[i].from], c->number[l.items[i].to],
                          l.items[i].weight);
    free(l.items);
    return err;
}

/* ---- connected again --------------------------------------------------------------------------- */

static int32_t root_of(int32_t *parent, int32_t w)
{
    while (parent[w] != w)
        w = parent[w] = parent[parent[w]];
    return w;
}

static void join(int32_t *parent, int32_t a, int32_t b)
{
    a = root_of(parent, a);
    b = root_of(parent, b);
    if (a < b)
        parent[b] = a;
    else
        parent[a] = b;
}

static void find_parts(const struct dp_graph *g, int32_t *parent)
{
    for (int32_t w = 0; w < g->workers; w++)
        parent[w] = w;
    for (size_t i = 0; i < g->group_count; i++)
        for (int32_t k = 1; k < g->groups[i].count; k++)
            join(parent, g->members[g->groups[i].first], g->members[g->groups[i].first + (size_t)k]);
    for (size_t i = 0; i < g->link_count; i++)
        if (g->links[i].weight > 0)
            join(parent, g->links[i].to, g->links[i].from);
}

static int copy_rounds(struct change *c)
{
    int err = 0;

    for (int32_t t = 0; t < c->g->period && !err; t++) {
        const struct dp_mix_round *r = &c->g->rounds[t];
        dp_graph_add_round(c->b);
        for (size_t i = r->first_group; i < r->first_group + r->group_count; i++)
            keep_group(c, &c->g->groups[i]);
        if (r->link_count)
            err = keep_links(c, r);
    }
    return err;
}

static int complement(struct change *c, struct dp_graph **out)
{
    struct dp_graph *unused;
    int err = dp_graph_builder_new(c->g->name, c->left, 1, &c->b);

    if (err)
        return err;
    if (c->g->push_sum)
        dp_graph_set_push_sum(c->b);
    err = copy_rounds(c);
    if (!err)
        return dp_graph_builder_end(c->b, out);
    if (!dp_graph_builder_end(c->b, &unused))
        dp_graph_free(unused);
    return err;
}

/* Where a period leaves parts that never meet, one more round averages the first worker of each. */
static int add_bridge(struct change *c, struct dp_graph **g)
{
    int32_t *parent = c->number, parts = 0;
    struct dp_graph *in_parts = *g;

    find_parts(in_parts, parent);
    for (int32_t w = 0; w < c->left; w++)
        if (root_of(parent, w) == w)
            c->members[parts++] = w;
    if (parts == 1)
        return 0;
    int32_t *all = malloc((size_t)c->left * sizeof(*all));
    struct change again = {.g = in_parts, .number = all, .left = c->left};
    again.members = malloc((size_t)c->left * sizeof(*all));
    int err = all && again.members ? dp_graph_builder_new(in_parts->name, c->left, 1, &again.b)
                                   : dp_fail(DP_ENOMEM, "no memory for %d workers", c->left);
    for (int32_t w = 0; w < c->left && !err; w++)
        all[w] = w;
    if (!err)
        err = copy_rounds(&again);
    if (!err) {
        dp_graph_add_round(again.b);
        dp_graph_add_group(again.b, c->members, parts, -1);
        dp_graph_add_rest_alone(again.b);
        err = dp_graph_builder_end(again.b, g);
    }
    if (!err)
        dp_graph_free(in_parts);
    free(all);
    free(again.members);
    return err;
}

/* ---- the whole --------------------------------------------------------------------------------- */

static int rebuild(struct change *c, struct dp_graph **out)
{
    struct dp_graph *g;

    if (c->left == 1)
        return build_kind("complete", 1, out);
    if (fits(c->g->name, c->left) && is_of_kind(c->g))
        return build_kind(c->g->name, c->left, out);
    if (c->g->push_sum && c->g->period > 1) /* a bridge is a group, and weights travel along links */
        return build_kind("directed-exp", c->left, out);
    int err = complement(c, &g);
    if (err)
        return err;
    err = add_bridge(c, &g);
    if (!err)
        err = dp_graph_check(g, NULL);
    if (err)
        dp_graph_free(g);
    else
        *out = g;
    return err;
}

int dp_graph_without(const struct dp_graph *g, const bool *alive, struct dp_graph **out)
{
    struct change c = {.g = g};

    c.number = malloc(2 * (size_t)g->workers * sizeof(*c.number));
    if (!c.number)
        return dp_fail(DP_ENOMEM, "no memory for a mixing graph of %d workers", g->workers);
    c.members = c.number + g->workers;
    for (int32_t w = 0; w < g->workers; w++)
        c.number[w] = alive[w] ? c.left++ : -1;
    int err = c.left ? rebuild(&c, out)
                     : dp_fail(DP_EINVAL, "mixing graph %s without any of its %d workers, expected "
                               "one at least", g->name, g->workers);
    free(c.number);
    return err;
}
