/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_builder.c - put a graph together, round by round. Nothing is checked here but what the data
 * could not hold; whether the graph is a good one, graph_check.c says.
 */
#include "base/array.h"
#include "base/fail.h"
#include "mixing/graph.h"

#include <stdlib.h>
#include <string.h>

struct dp_graph_builder {
    struct dp_graph *g;
    int err; /* the first one */
    size_t round_capacity, group_capacity, member_capacity, link_capacity;
};

/* Room for `more` items of `size` bytes behind `count`. */
static void *grow(struct dp_graph_builder *b, void *items, size_t size, size_t count, size_t more,
                  size_t *capacity)
{
    void *larger = dp_array_grow(items, capacity, count + more, size);

    if (!larger)
        b->err = dp_fail(DP_ENOMEM, "no memory for a mixing graph of %d workers", b->g->workers);
    return larger ? larger : items;
}

/* It is a word of the text format. */
static bool is_word(const char *name)
{
    const char *at = name;

    while (*at && (unsigned char)*at > ' ' && *at != 127 && *at != '#')
        at++;
    return *name && !*at;
}

int dp_graph_builder_new(const char *name, int workers, int local, struct dp_graph_builder **out)
{
    if (!name)
        name = "user";
    if (!is_word(name) || strlen(name) >= DP_GRAPH_NAME_LEN)
        return dp_fail(DP_EINVAL,
                       "name of a mixing graph: '%s', expected 1 to %d letters, no blank and no #",
                       name, DP_GRAPH_NAME_LEN - 1);
    if (workers < 1 || workers > DP_GRAPH_MAX_WORKERS)
        return dp_fail(DP_EINVAL, "workers: %d, expected 1 to %d", workers, DP_GRAPH_MAX_WORKERS);
    if (local < 1 || workers % local)
        return dp_fail(DP_EINVAL, "workers of a node: %d, expected a divisor of %d workers", local,
                       workers);
    struct dp_graph_builder *b = calloc(1, sizeof(*b));
    struct dp_graph *g = calloc(1, sizeof(*g));
    if (!b || !g) {
        free(b);
        free(g);
        return dp_fail(DP_ENOMEM, "no memory for a mixing graph");
    }
    strcpy(g->name, name);
    g->workers = workers;
    g->local = local;
    b->g = g;
    *out = b;
    return 0;
}

void dp_graph_add_round(struct dp_graph_builder *b)
{
    struct dp_graph *g = b->g;

    if (b->err)
        return;
    g->rounds = grow(b, g->rounds, sizeof(*g->rounds), (size_t)g->period, 1, &b->round_capacity);
    if (!b->err)
        g->rounds[g->period++] = (struct dp_mix_round){.first_group = g->group_count,
                                                       .first_link = g->link_count};
}

/* The round that something is added to; NULL after an error, which may be that there is none. */
static struct dp_mix_round *last_round(struct dp_graph_builder *b)
{
    if (!b->err && !b->g->period)
        b->err = dp_fail(DP_EINVAL, "a group or a link before the first round");
    return b->err ? NULL : &b->g->rounds[b->g->period - 1];
}

static bool is_worker(struct dp_graph_builder *b, int32_t rank)
{
    if (rank >= 0 && rank < b->g->workers)
        return true;
    b->err = dp_fail(DP_EINVAL, "round %d: worker %d, expected 0 to %d", b->g->period - 1, rank,
                     b->g->workers - 1);
    return false;
}

static int by_rank(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

void dp_graph_add_group(struct dp_graph_builder *b, const int32_t *ranks, int32_t count,
                        double self)
{
    struct dp_mix_round *round = last_round(b);
    struct dp_graph *g = b->g;

    if (!round)
        return;
    if (round->link_count || count < 1) {
        b->err = dp_fail(DP_EINVAL, "round %d: a group of %d, expected at least one worker, in a "
                         "round without links", g->period - 1, count);
        return;
    }
    for (int32_t i = 0; i < count; i++)
        if (!is_worker(b, ranks[i]))
            return;
    g->groups = grow(b, g->groups, sizeof(*g->groups), g->group_count, 1, &b->group_capacity);
    g->members = grow(b, g->members, sizeof(*g->members), g->member_count, (size_t)count,
                      &b->member_capacity);
    if (b->err)
        return;
    int32_t *members = g->members + g->member_count;
    memcpy(members, ranks, (size_t)count * sizeof(*members));
    qsort(members, (size_t)count, sizeof(*members), by_rank);
    g->groups[g->group_count++] =
        (struct dp_mix_group){g->member_count, count, self < 0 ? 1.0 / count : self};
    g->member_count += (size_t)count;
    round->group_count++;
}

void dp_graph_add_link(struct dp_graph_builder *b, int32_t from, int32_t to, double weight)
{
    struct dp_mix_round *round = last_round(b);
    struct dp_graph *g = b->g;

    if (!round || !is_worker(b, from) || !is_worker(b, to))
        return;
    if (round->group_count) {
        b->err = dp_fail(DP_EINVAL, "round %d: a link, expected groups only, like those before",
                         g->period - 1);
        return;
    }
    g->links = grow(b, g->links, sizeof(*g->links), g->link_count, 1, &b->link_capacity);
    if (b->err)
        return;
    g->links[g->link_count++] = (struct dp_mix_link){to, from, weight};
    round->link_count++;
}

void dp_graph_set_push_sum(struct dp_graph_builder *b)
{
    b->g->push_sum = true;
}

void dp_graph_add_rest_alone(struct dp_graph_builder *b)
{
    const struct dp_mix_round *round = last_round(b);
    bool *named = round ? calloc((size_t)b->g->workers, sizeof(*named)) : NULL;

    if (!named) {
        if (round)
            b->err = dp_fail(DP_ENOMEM, "no memory for a mixing graph");
        return;
    }
    size_t first = round->group_count ? b->g->groups[round->first_group].first : b->g->member_count;
    for (size_t i = first; i < b->g->member_count; i++)
        named[b->g->members[i]] = true;
    for (int32_t rank = 0; rank < b->g->workers; rank++)
        if (!named[rank])
            dp_graph_add_group(b, &rank, 1, 1);
    free(named);
}

/* ---- the end -------------------------------------------------------------------------------- */

static int by_ends(const void *a, const void *b)
{
    const struct dp_mix_link *x = a, *y = b;

    if (x->to != y->to)
        return (x->to > y->to) - (x->to < y->to);
    return (x->from > y->from) - (x->from < y->from);
}

static void place_groups(struct dp_graph *g, const struct dp_mix_round *r, int64_t *place)
{
    for (size_t i = r->first_group; i < r->first_group + r->group_count; i++)
        for (int32_t k = 0; k < g->groups[i].count; k++)
            place[g->members[g->groups[i].first + (size_t)k]] = (int64_t)i;
}

static void place_links(struct dp_graph *g, const struct dp_mix_round *r, int64_t *place)
{
    qsort(g->links + r->first_link, r->link_count, sizeof(*g->links), by_ends);
    for (size_t i = r->first_link + r->link_count; i-- > r->first_link;)
        place[g->links[i].to] = (int64_t)i;
}

static int place_workers(struct dp_graph *g)
{
    const size_t workers = (size_t)g->workers, count = (size_t)g->period * workers;

    g->place = malloc((count ? count : 1) * sizeof(*g->place));
    if (!g->place)
        return dp_fail(DP_ENOMEM, "no memory for a mixing graph of %d workers", g->workers);
    for (size_t i = 0; i < count; i++)
        g->place[i] = -1;
    for (int32_t t = 0; t < g->period; t++)
        if (g->rounds[t].group_count)
            place_groups(g, &g->rounds[t], g->place + (size_t)t * workers);
        else if (g->rounds[t].link_count)
            place_links(g, &g->rounds[t], g->place + (size_t)t * workers);
    return 0;
}

/* A group as links from each member to each. */
static void add_as_links(struct dp_graph_builder *b, const struct dp_graph *g,
                         const struct dp_mix_group *group)
{
    const int32_t *members = g->members + group->first, count = group->count;

    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < count; k++)
            dp_graph_add_link(b, members[i], members[k],
                              i == k ? group->self : (1 - group->self) / (count - 1));
}

/* The same graph without groups: weights of push-sum travel along links. Frees g. */
static int end_with_links(struct dp_graph *g, struct dp_graph **out)
{
    struct dp_graph_builder *b;
    int err = dp_graph_builder_new(g->name, g->workers, g->local, &b);

    if (!err)
        dp_graph_set_push_sum(b);
    for (int32_t t = 0; t < g->period && !err; t++) {
        const struct dp_mix_round *r = &g->rounds[t];
        dp_graph_add_round(b);
        for (size_t i = r->first_group; i < r->first_group + r->group_count; i++)
            add_as_links(b, g, &g->groups[i]);
        for (size_t i = r->first_link; i < r->first_link + r->link_count; i++)
            dp_graph_add_link(b, g->links[i].from, g->links[i].to, g->links[i].weight);
    }
    dp_graph_free(g);
    return err ? err : dp_graph_builder_end(b, out);
}

int dp_graph_builder_end(struct dp_graph_builder *b, struct dp_graph **out)
{
    struct dp_graph *g = b->g;
    int err = b->err;

    free(b);
    if (!err && g->push_sum && g->group_count)
        return end_with_links(g, out);
    if (!err)
        err = place_workers(g);
    if (err)
        dp_graph_free(g);
    else
        *out = g;
    return err;
}

void dp_graph_free(struct dp_graph *g)
{
    if (!g)
        return;
    free(g->rounds);
    free(g->groups);
    free(g->members);
    free(g->links);
    free(g->place);
    free(g);
}
