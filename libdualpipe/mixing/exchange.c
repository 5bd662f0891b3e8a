/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.c - groups of a graph, and blocks on their way along its rounds.
 */
#include "mixing/exchange.h"

#include "base/fail.h"
#include "comm/internal.h"
#include "mixing/combine.h"

#include <stdlib.h>
#include <string.h>

/* ---- what all exchanges share ------------------------------------------------------------------ */

static bool sums_groups(const struct dp_graph *g, int64_t t)
{
    const struct dp_mix_round *r = &g->rounds[t];

    for (size_t i = r->first_group; i < r->first_group + r->group_count; i++)
        if (g->groups[i].count > 2)
            return true;
    return false;
}

static bool same_groups(const struct dp_graph *g, int64_t t, int64_t s)
{
    bool same = g->rounds[t].group_count == g->rounds[s].group_count;

    for (size_t i = 0; same && i < g->rounds[t].group_count; i++) {
        const struct dp_mix_group *a = &g->groups[g->rounds[t].first_group + i];
        const struct dp_mix_group *b = &g->groups[g->rounds[s].first_group + i];
        same = a->count == b->count && !memcmp(g->members + a->first, g->members + b->first,
                                               (size_t)a->count * sizeof(*g->members));
    }
    return same;
}

/* The first round with the groups of round t. */
static int64_t first_alike(const struct dp_graph *g, int64_t t)
{
    int64_t s = 0;

    while (s < t && !same_groups(g, t, s))
        s++;
    return s;
}

static int split(struct dp_exchange_group *s, int64_t t)
{
    const struct dp_graph *g = s->graph;
    const int worker = dp_comm_rank(s->comm);
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);

    return dp_comm_split(s->comm, group->count > 2 ? (int)(group - g->groups) : -1, worker,
                         &s->of_round[t]);
}

int dp_exchange_group_init(struct dp_exchange_group *s, struct dp_comm *comm,
                           const struct dp_graph *g, bool survives)
{
    int err = 0;

    *s = (struct dp_exchange_group){.comm = comm, .graph = g, .survives = survives, .all = comm};
    s->of_round = calloc((size_t)g->period, sizeof(struct dp_comm *));
    if (!s->of_round)
        return dp_fail(DP_ENOMEM, "no memory for %d rounds", g->period);
    if (survives) {
        s->comm = NULL;
        err = dp_comm_split(comm, 0, dp_comm_rank(comm), &s->comm);
    }
    for (int64_t t = 0; t < g->period && !err; t++) {
        size_t count;
        dp_graph_links(g, t, dp_comm_rank(comm), &count);
        s->links_max = (int32_t)count > s->links_max ? (int32_t)count : s->links_max;
        if (!sums_groups(g, t))
            continue;
        if (first_alike(g, t) < t)
            s->of_round[t] = s->of_round[first_alike(g, t)];
        else
            err = split(s, t);
    }
    return err;
}

void dp_exchange_group_fini(struct dp_exchange_group *s)
{
    for (int64_t t = 0; s->of_round && t < s->graph->period; t++)
        if (s->of_round[t] && first_alike(s->graph, t) == t)
            dp_comm_close(s->of_round[t]);
    free(s->of_round);
    if (s->survives)
        dp_comm_close(s->comm);
    *s = (struct dp_exchange_group){0};
}

/* ---- one of them ------------------------------------------------------------------------------ */

/* How differences go, if they do. */
static int make_differences(struct dp_exchange *x)
{
    const struct dp_exchange_group *s = x->shared;

    x->compressed = s->compression ? calloc(1, sizeof(*x->compressed)) : NULL;
    x->stale = s->staleness ? calloc(1, sizeof(*x->stale)) : NULL;
    if ((s->compression && !x->compressed) || (s->staleness && !x->stale))
        return dp_fail(DP_ENOMEM, "no memory for an exchange of differences");
    if (x->compressed)
        return dp_compressed_init(x->compressed, s->graph, dp_comm_rank(s->comm), x->type,
                                  x->elements);
    return x->stale ? dp_stale_init(x->stale, s->comm, s->survives ? s->all : NULL, s->graph,
                                    s->staleness, x->type, x->elements)
                    : 0;
}

bool dp_exchange_adds(const struct dp_exchange *x)
{
    return x->compressed || x->stale;
}

int dp_exchange_blocks(const struct dp_exchange_group *g)
{
    return g->compression ? 1 : 2;
}

/* Receives and sends of a round at most: of a block, and with push-sum of a weight; a sum, and what
 * confirms. */
static int make_messages(struct dp_exchange *x, int32_t neighbors)
{
    const size_t count = (size_t)neighbors + 1;
    const size_t bytes = x->compressed ? count * x->compressed->codec.bytes
                                       : (size_t)x->shared->links_max * x->bytes;

    x->transfers.list = calloc(4 * count + 2, sizeof(*x->transfers.list));
    x->neighbors = calloc(count, sizeof(*x->neighbors));
    x->arrived = malloc(bytes ? bytes : 1);
    x->arrived_mass = calloc(count, sizeof(*x->arrived_mass));
    return x->transfers.list && x->neighbors && x->arrived && x->arrived_mass
               ? 0
               : dp_fail(DP_ENOMEM, "no memory for an exchange of %zu bytes", x->bytes);
}

int dp_exchange_init(struct dp_exchange *x, const struct dp_exchange_group *shared, DLDataType type,
                     size_t elements, void *const *blocks)
{
    *x = (struct dp_exchange){.shared = shared, .type = type, .elements = elements,
                              .bytes = elements * type.bits / 8, .mass = 1, .round = -1};
    x->block[0] = blocks[0];
    x->block[1] = blocks[1];
    int err = make_differences(x);
    if (!err)
        err = make_messages(x, dp_neighbors_max(shared->graph, dp_comm_rank(shared->comm)));
    if (err)
        dp_exchange_fini(x);
    return err;
}

void dp_exchange_fini(struct dp_exchange *x)
{
    free(x->transfers.list);
    free(x->neighbors);
    free(x->arrived);
    free(x->arrived_mass);
    if (x->compressed)
        dp_compressed_fini(x->compressed);
    free(x->compressed);
    if (x->stale)
        dp_stale_fini(x->stale);
    free(x->stale);
    *x = (struct dp_exchange){0};
}

/* ---- starting --------------------------------------------------------------------------------- */

/* Of the workers of a large group, or all. */
static struct dp_comm *comm_of_sums(const struct dp_exchange *x)
{
    struct dp_comm *of_round = x->shared->of_round[x->round % x->shared->graph->period];

    return of_round ? of_round : x->shared->comm;
}

static int sum(struct dp_exchange *x, const void *in, void *out, size_t count, DLDataType type)
{
    struct dp_transfers *m = &x->transfers;

    m->comm = comm_of_sums(x);
    return dp_transfers_note(m, dp_comm_iallreduce(m->comm, in, out, count, type, DP_REDUCE_SUM,
                                                  dp_transfers_next(m, -1)));
}

/* Collectives of a communicator are carried out one after the other: this one ends once all ranks have
 * begun it. */
static int confirm(struct dp_exchange *x)
{
    static const DLDataType int64 = {kDLInt, 64, 1};

    x->must_confirm = false;
    x->confirmed = 0;
    x->confirming = 1;
    return sum(x, &x->confirmed, &x->confirmed, 1, int64);
}

static int start_sum(struct dp_exchange *x)
{
    const int size = dp_comm_size(comm_of_sums(x));

    x->sent_bytes += 2 * (int64_t)x->bytes * (size - 1) / size;
    int err = sum(x, x->block[x->now], x->block[1 - x->now], x->elements, x->type);

    return !err && x->shared->survives ? confirm(x) : err;
}

/* A block comes from each neighbor and goes to each; that of a pair arrives where it is used. */
static int start_blocks(struct dp_exchange *x, bool is_pair, uint64_t tag)
{
    const struct dp_graph *g = x->shared->graph;
    const int32_t self = dp_comm_rank(x->shared->comm);
    const size_t len = x->compressed ? x->compressed->codec.bytes : x->bytes;
    const void *block = x->block[x->now];
    struct dp_transfers *m = &x->transfers;
    int32_t count = dp_neighbors_from(g, x->round, self, x->neighbors);
    int err = dp_transfers_gather(m, x->neighbors, count, tag,
                                 is_pair && !x->compressed ? x->block[1 - x->now] : x->arrived, len,
                                 len);

    if (!err && g->push_sum)
        err = dp_transfers_gather(m, x->neighbors, count, tag, x->arrived_mass, sizeof(double),
                                 sizeof(double));
    count = dp_neighbors_to(g, x->round, self, x->neighbors);
    if (!err && count && x->compressed)
        block = dp_compressed_write(x->compressed, x->round, block);
    if (!err)
        err = dp_transfers_spread(m, x->neighbors, count, tag, block, len);
    x->sent_mass = x->mass;
    if (!err && g->push_sum)
        err = dp_transfers_spread(m, x->neighbors, count, tag, &x->sent_mass, sizeof(double));
    x->sent_bytes += count * (int64_t)(len + (g->push_sum ? sizeof(double) : 0));
    return err;
}

/* The group is of no use once a rank fell out of an exchange; where it survives, what is in flight stays
 * until it is known which workers live. */
static int leave(struct dp_exchange *x, int err)
{
    if (x->shared->survives && (err == DP_ECOMM || err == DP_ETIMEDOUT))
        return err;
    x->in_flight = false;
    if (err != DP_EABORTED && err != DP_ETIMEDOUT)
        dp_comm_fail(x->shared->comm, err);
    return err;
}

int dp_exchange_start(struct dp_exchange *x, int64_t t, uint64_t tag)
{
    const struct dp_graph *g = x->shared->graph;
    const struct dp_mix_group *group = dp_graph_group(g, t, dp_comm_rank(x->shared->comm));
    const bool is_large = group && group->count > 2;
    int err = 0;

    x->round = t;
    dp_transfers_clear(&x->transfers);
    x->transfers.comm = x->shared->comm;
    x->confirming = 0;
    x->includes_self = is_large && !dp_exchange_adds(x);
    /* A pair needs no word of it, and others of a group have it where they have the sum. */
    x->must_confirm = x->shared->survives && !x->stale && !x->includes_self && (!group || is_large);
    if (x->stale)
        err = dp_stale_start(x->stale, t, tag, x->block[x->now]);
    else if (x->includes_self)
        err = start_sum(x);
    else if (!group || group->count > 1)
        err = start_blocks(x, group, tag);
    x->in_flight = true;
    return err ? leave(x, err) : 0;
}

/* ---- the end ---------------------------------------------------------------------------------- */

static void sum_links(struct dp_exchange *x)
{
    const struct dp_graph *g = x->shared->graph;
    const int32_t self = dp_comm_rank(x->shared->comm);
    const int32_t count = dp_neighbors_from(g, x->round, self, x->neighbors);
    char *to = x->block[1 - x->now];
    double mass = dp_round_self(g, x->round, self) * x->mass;

    memset(to, 0, x->bytes);
    for (int32_t k = 0; k < count; k++) {
        const double weight = x->neighbors[k].weight;
        mass += weight * x->arrived_mass[k];
        dp_combine(x->type, x->elements, to, to, 1, x->arrived + (size_t)k * x->bytes, weight);
    }
    if (g->push_sum)
        x->mass = mass;
}

/* What is to be added takes the place of what was sent, or lies in the other block. */
static void finish_difference(struct dp_exchange *x)
{
    if (x->compressed) {
        dp_neighbors_from(x->shared->graph, x->round, dp_comm_rank(x->shared->comm), x->neighbors);
        dp_compressed_finish(x->compressed, x->round, x->neighbors, x->arrived, x->block[x->now]);
        return;
    }
    dp_stale_finish(x->stale, x->block[1 - x->now]);
    x->now = 1 - x->now;
}

static void finish(struct dp_exchange *x)
{
    const struct dp_graph *g = x->shared->graph;
    const struct dp_mix_group *group = dp_graph_group(g, x->round, dp_comm_rank(x->shared->comm));

    x->in_flight = false;
    if (dp_exchange_adds(x)) {
        finish_difference(x);
        return;
    }
    if (group && group->count == 1)
        return;
    if (!group)
        sum_links(x);
    x->now = 1 - x->now;
}

int dp_exchange_pass(struct dp_exchange *x, int64_t t, uint64_t tag)
{
    int err = dp_stale_pass(x->stale, t, tag);

    return err ? leave(x, err) : 0;
}

int dp_exchange_drain(struct dp_exchange *x)
{
    int err = x->stale ? dp_stale_drain(x->stale) : 0;

    return err ? leave(x, err) : 0;
}

static int go_on(struct dp_exchange *x, bool wait)
{
    if (!x->in_flight)
        return 0;
    const struct dp_comm *all = x->shared->survives ? x->shared->all : NULL;
    int err = x->stale ? dp_stale_arrive(x->stale, wait) : 0;
    if (!err)
        err = dp_transfers_end(&x->transfers, wait, all);
    if (!err && x->must_confirm) {
        err = confirm(x);
        if (!err)
            err = dp_transfers_end(&x->transfers, wait, all);
    }
    if (!err)
        finish(x);
    return err && err != DP_EAGAIN ? leave(x, err) : err;
}

int dp_exchange_wait(struct dp_exchange *x)
{
    return go_on(x, true);
}

int dp_exchange_test(struct dp_exchange *x)
{
    return go_on(x, false);
}

/* The block that was sent is the other one, also where the exchange was over already. */
static int complete_stale(struct dp_exchange *x, const bool *users)
{
    const int came = x->in_flight ? 1 - x->now : x->now;
    int err = dp_stale_complete(x->stale, x->round, users, x->block[came]);

    if (err)
        return err;
    x->in_flight = false;
    x->now = came;
    return 0;
}

/* The peer of a pair has sent all, and the others wait for nothing any more. */
int dp_exchange_complete(struct dp_exchange *x, const bool *users)
{
    int err = 0;

    if (x->stale)
        return complete_stale(x, users);
    if (!x->in_flight)
        return 0;
    for (int32_t i = x->transfers.done; i < x->transfers.count - x->confirming && !err; i++)
        err = dp_comm_wait(x->transfers.comm, &x->transfers.list[i].request,
                           x->transfers.list[i].peer);
    if (!err)
        finish(x);
    return err;
}

void dp_exchange_note_used(struct dp_exchange *x)
{
    if (x->stale)
        dp_stale_note_used(x->stale);
}

void dp_exchange_restore(struct dp_exchange *x, int64_t t, double mass, double sent_mass)
{
    const struct dp_mix_group *group =
        t < 0 ? NULL : dp_graph_group(x->shared->graph, t, dp_comm_rank(x->shared->comm));

    x->round = t;
    x->includes_self = group && group->count > 2 && !dp_exchange_adds(x);
    x->mass = mass;
    x->sent_mass = sent_mass;
    if (x->stale)
        x->stale->unused = t;
}
