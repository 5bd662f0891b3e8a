/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/exchange.h"

#include "base/fail.h"
#include "comm/comm_core.h"
#include "mixing/combine.h"

#include <stdlib.h>
#include <string.h>

/* ---- what rounds say -------------------------------------------------------------------------- */

bool dp_exchange_is_alone(const struct dp_graph *g, int64_t t, int32_t worker)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);

    return group ? group->count == 1 : g->workers == 1;
}

double dp_exchange_share(const struct dp_graph *g, int64_t t, int32_t worker)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);

    if (!group || group->count == 1)
        return 1;
    return (1 - group->self) / (group->count - 1);
}

double dp_exchange_self(const struct dp_graph *g, int64_t t, int32_t worker)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);

    return group ? group->self : dp_graph_weight(g, t, worker, worker);
}

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
        s->peers_max = (int32_t)count > s->peers_max ? (int32_t)count : s->peers_max;
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

/* Receives and sends of a round at most: of a block, and with push-sum of a weight. */
static size_t count_requests(const struct dp_exchange_group *s)
{
    const struct dp_graph *g = s->graph;
    const int32_t worker = dp_comm_rank(s->comm);
    size_t most = 2;

    for (int32_t t = 0; t < g->period; t++) {
        const struct dp_mix_round *r = &g->rounds[t];
        size_t count;
        dp_graph_links(g, t, worker, &count);
        for (size_t i = r->first_link; i < r->first_link + r->link_count; i++)
            count += g->links[i].from == worker;
        most = count > most ? count : most;
    }
    return (g->push_sum ? 2 * most : most) + s->survives;
}

static int make_compressed(struct dp_exchange *x)
{
    x->compressed = malloc(sizeof(*x->compressed));
    if (!x->compressed)
        return dp_fail(DP_ENOMEM, "no memory for a compressed exchange");
    int err = dp_compressed_init(x->compressed, x->shared->comm, x->shared->graph, x->type,
                                 x->elements);
    if (err) {
        free(x->compressed);
        x->compressed = NULL;
    }
    return err;
}

static int make_stale(struct dp_exchange *x)
{
    x->stale = malloc(sizeof(*x->stale));
    if (!x->stale)
        return dp_fail(DP_ENOMEM, "no memory for an exchange");
    int err = dp_stale_init(x->stale, x->shared->comm, x->shared->graph, x->shared->staleness,
                            x->type, x->elements);
    if (err) {
        free(x->stale);
        x->stale = NULL;
    } else if (x->shared->survives) {
        x->stale->all = x->shared->all;
    }
    return err;
}

bool dp_exchange_adds(const struct dp_exchange *x)
{
    return x->compressed || x->stale;
}

int dp_exchange_blocks(const struct dp_exchange_group *g)
{
    return g->compression ? 1 : 2;
}

int dp_exchange_init(struct dp_exchange *x, const struct dp_exchange_group *shared, DLDataType type,
                     size_t elements, void *const *blocks)
{
    const size_t requests = count_requests(shared), sources = (size_t)shared->peers_max;

    *x = (struct dp_exchange){.shared = shared, .type = type, .elements = elements,
                              .bytes = elements * type.bits / 8, .mass = 1, .round = -1};
    x->block[0] = blocks[0];
    x->block[1] = blocks[1];
    x->requests = calloc(requests, sizeof(*x->requests));
    x->peers = calloc(requests, sizeof(*x->peers));
    x->arrived = malloc(sources ? sources * x->bytes : 1);
    x->arrived_mass = calloc(sources + 1, sizeof(*x->arrived_mass));
    int err = x->requests && x->peers && x->arrived && x->arrived_mass
                  ? 0
                  : dp_fail(DP_ENOMEM, "no memory for an exchange of %zu bytes", x->bytes);
    if (!err && shared->compression)
        err = make_compressed(x);
    if (!err && shared->staleness)
        err = make_stale(x);
    if (err)
        dp_exchange_fini(x);
    return err;
}

void dp_exchange_fini(struct dp_exchange *x)
{
    free(x->requests);
    free(x->peers);
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

static int send_to(struct dp_exchange *x, int32_t peer, uint64_t tag, const void *from, size_t len)
{
    x->sent_bytes += (int64_t)len;
    x->peers[x->request_count] = peer;
    return dp_comm_isend(x->shared->comm, peer, DP_CHANNEL_REDUCE, tag, from, len,
                         &x->requests[x->request_count++]);
}

static int receive_from(struct dp_exchange *x, int32_t peer, uint64_t tag, void *to, size_t len)
{
    x->peers[x->request_count] = peer;
    return dp_comm_irecv(x->shared->comm, peer, DP_CHANNEL_REDUCE, tag, to, len,
                         &x->requests[x->request_count++]);
}

static int start_pair(struct dp_exchange *x, int32_t peer, uint64_t tag)
{
    int err = receive_from(x, peer, tag, x->block[1 - x->now], x->bytes);

    return err ? err : send_to(x, peer, tag, x->block[x->now], x->bytes);
}

static int sum(struct dp_exchange *x, const void *in, void *out, size_t count, DLDataType type)
{
    x->peers[x->request_count] = -1;
    return dp_comm_iallreduce(x->comm, in, out, count, type, DP_REDUCE_SUM,
                              &x->requests[x->request_count++]);
}

/* Collectives of a communicator are carried out one after the other: this one ends once all ranks have
 * begun it. */
static int confirm(struct dp_exchange *x)
{
    static const DLDataType int64 = {kDLInt, 64, 1};

    x->must_confirm = false;
    x->confirmed = 0;
    return sum(x, &x->confirmed, &x->confirmed, 1, int64);
}

static int start_group(struct dp_exchange *x)
{
    x->comm = x->shared->of_round[x->round % x->shared->graph->period];
    x->sent_bytes += 2 * (int64_t)x->bytes * (dp_comm_size(x->comm) - 1) / dp_comm_size(x->comm);
    int err = sum(x, x->block[x->now], x->block[1 - x->now], x->elements, x->type);

    x->block_requests = x->request_count;
    return !err && x->shared->survives ? confirm(x) : err;
}

static int receive_links(struct dp_exchange *x, int32_t self, uint64_t tag)
{
    size_t count;
    const struct dp_mix_link *links = dp_graph_links(x->shared->graph, x->round, self, &count);
    int err = 0;

    for (size_t i = 0; i < count && !err; i++) {
        if (links[i].from == self)
            continue;
        err = receive_from(x, links[i].from, tag, x->arrived + i * x->bytes, x->bytes);
        if (!err && x->shared->graph->push_sum)
            err = receive_from(x, links[i].from, tag, &x->arrived_mass[i], sizeof(double));
    }
    return err;
}

static int send_links(struct dp_exchange *x, int32_t self, uint64_t tag)
{
    const struct dp_graph *g = x->shared->graph;
    const struct dp_mix_round *r = &g->rounds[x->round % g->period];
    int err = 0;

    x->sent_mass = x->mass;
    for (size_t i = r->first_link; i < r->first_link + r->link_count && !err; i++) {
        if (g->links[i].from != self || g->links[i].to == self)
            continue;
        err = send_to(x, g->links[i].to, tag, x->block[x->now], x->bytes);
        if (!err && g->push_sum)
            err = send_to(x, g->links[i].to, tag, &x->sent_mass, sizeof(double));
    }
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

/* Messages to more than one neighbor are confirmed by all of the group, or along links by all. */
static int start_compressed(struct dp_exchange *x, const struct dp_mix_group *group, uint64_t tag)
{
    if (group && group->count > 2)
        x->comm = x->shared->of_round[x->round % x->shared->graph->period];
    x->must_confirm = x->shared->survives && (!group || group->count > 2);
    x->sent_bytes += (int64_t)dp_compressed_bytes(x->compressed, x->round);
    return dp_compressed_start(x->compressed, x->round, tag, x->block[x->now]);
}

int dp_exchange_start(struct dp_exchange *x, int64_t t, uint64_t tag)
{
    const struct dp_graph *g = x->shared->graph;
    const int32_t self = dp_comm_rank(x->shared->comm);
    const struct dp_mix_group *group = dp_graph_group(g, t, self);
    const int32_t *members = group ? g->members + group->first : NULL;
    int err = 0;

    x->round = t;
    x->request_count = x->done = 0;
    x->comm = x->shared->comm;
    x->includes_self = group && group->count > 2 && !dp_exchange_adds(x);
    x->must_confirm = x->shared->survives && !group && !x->stale;
    if (x->compressed) {
        err = start_compressed(x, group, tag);
    } else if (x->stale) {
        err = dp_stale_start(x->stale, t, tag, x->block[x->now]);
    } else if (!group) {
        err = receive_links(x, self, tag);
        if (!err)
            err = send_links(x, self, tag);
    } else if (group->count == 2) {
        err = start_pair(x, members[members[0] == self], tag);
    } else if (group->count > 2) {
        err = start_group(x);
    }
    if (!x->includes_self)
        x->block_requests = x->request_count;
    x->in_flight = true;
    return err ? leave(x, err) : 0;
}

/* ---- the end ---------------------------------------------------------------------------------- */

static void sum_links(struct dp_exchange *x)
{
    const int32_t self = dp_comm_rank(x->shared->comm);
    size_t count;
    const struct dp_mix_link *links = dp_graph_links(x->shared->graph, x->round, self, &count);
    char *to = x->block[1 - x->now];
    double mass = 0;

    memset(to, 0, x->bytes);
    for (size_t i = 0; i < count; i++) {
        const void *in[2] = {to, x->arrived + i * x->bytes};
        const bool own = links[i].from == self;
        mass += links[i].weight * (own ? x->mass : x->arrived_mass[i]);
        if (!own)
            dp_combine(x->type, x->elements, to, in, (double[]){1, links[i].weight}, 2);
    }
    if (x->shared->graph->push_sum)
        x->mass = mass;
}

/* What is to be added takes the place of what was sent, or lies in the other block. */
static void finish_difference(struct dp_exchange *x)
{
    if (x->compressed) {
        dp_compressed_finish(x->compressed, x->block[x->now]);
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

static int next_done(struct dp_exchange *x, bool wait)
{
    struct dp_request *request = &x->requests[x->done];
    const struct dp_comm *all = x->shared->survives ? x->shared->all : NULL;

    return wait ? dp_neighbor_wait(x->comm, request, x->peers[x->done], all)
                : dp_comm_test(x->comm, request);
}

/* Of differences, which have requests of their own. */
static int arrive(struct dp_exchange *x, bool wait)
{
    if (x->compressed)
        return dp_compressed_arrive(x->compressed, wait, x->shared->survives ? x->shared->all : NULL);
    return x->stale ? dp_stale_arrive(x->stale, wait) : 0;
}

static int go_on(struct dp_exchange *x, bool wait)
{
    int err = x->in_flight ? arrive(x, wait) : 0;

    while (x->in_flight && !err && (x->done < x->request_count || x->must_confirm)) {
        if (x->done == x->request_count) {
            err = confirm(x);
            continue;
        }
        err = next_done(x, wait);
        x->done += !err;
    }
    if (!err && x->in_flight)
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
    if (x->compressed && x->in_flight)
        err = dp_compressed_arrive(x->compressed, true, NULL);
    for (int32_t i = 0; i < x->block_requests && x->in_flight && !err; i++)
        err = dp_comm_wait(x->comm, &x->requests[i], x->peers[i]);
    if (!err && x->in_flight)
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
