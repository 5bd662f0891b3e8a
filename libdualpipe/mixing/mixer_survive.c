/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_survive.c - going on without workers that have died.
 *
 *      settle silence    a worker that was waited for in vain, and is stopped, is dead for all
 *      shrink            which workers live, the same on all of them
 *      tell              each how far it has come, and which exchanges of each bucket it has used
 *      make good         complete what another one has used, undo the rest
 *      agree             no more have died: go on; otherwise begin again with what is now known
 *      adopt             the new communicator and graph, the furthest iteration
 *      agree             as before
 *
 * What is made good stays so whichever worker dies next: completing and undoing depend only on what live
 * workers have used, and are found again from the counts in the next turn.
 */
#include "base/fail.h"
#include "comm/internal.h"
#include "mixing/graph.h"
#include "mixing/mixer_state.h"
#include "survival/internal.h"

#include <stdlib.h>
#include <string.h>

/* What a worker tells; then, of each bucket, how many exchanges it has used; then, of each where
 * neighbors may be late, which rounds they were. */
enum { RANK, STARTED, ITERATIONS, UPDATES, AVERAGES, SCALE, GOOD_STEPS, USED };

struct survey {
    struct dp_comm *comm; /* of the survivors */
    int size;
    size_t width;
    int64_t *all; /* [size][width] */
    bool *alive;  /* [the workers before] */
    bool *users;  /* [the same] of an exchange */
};

static const int64_t *row_of(const struct survey *s, int i)
{
    return s->all + (size_t)i * s->width;
}

static int64_t largest(const struct survey *s, int column)
{
    int64_t most = 0;

    for (int i = 0; i < s->size; i++)
        most = row_of(s, i)[column] > most ? row_of(s, i)[column] : most;
    return most;
}

/* ---- telling ----------------------------------------------------------------------------------- */

static size_t history_of(const struct dp_mixer *m)
{
    return (size_t)dp_stale_history(m->config.staleness, m->config.graph);
}

/* The rounds that a bucket has used. */
static size_t history_at(const struct dp_mixer *m, int32_t bucket)
{
    return USED + (size_t)m->config.count + (size_t)bucket * history_of(m);
}

static void fill_row(const struct dp_mixer *m, int64_t *row)
{
    const size_t history = history_of(m) * (size_t)m->config.count;

    row[RANK] = dp_comm_rank(m->config.comm);
    row[STARTED] = m->started;
    row[ITERATIONS] = m->iterations;
    row[AVERAGES] = m->death->averages;
    memcpy(&row[SCALE], &m->loss_scale.scale, sizeof(row[SCALE]));
    row[GOOD_STEPS] = m->loss_scale.good;
    for (size_t k = 0; k < history; k++)
        row[history_at(m, 0) + k] = -1;
    for (int32_t i = 0; i < m->bucket_count; i++) {
        const struct dp_mixer_bucket *b = &m->buckets[i];
        row[UPDATES] = b->updates > row[UPDATES] ? b->updates : row[UPDATES];
        row[USED + i] = b->used;
        if (b->exchange.stale)
            memcpy(row + history_at(m, i), b->exchange.stale->used, history_of(m) * sizeof(*row));
    }
}

static void survey_fini(struct survey *s)
{
    free(s->all);
    free(s->alive);
    free(s->users);
    *s = (struct survey){0};
}

static int survey_init(struct survey *s, const struct dp_mixer *m, struct dp_comm *comm)
{
    *s = (struct survey){.comm = comm, .size = dp_comm_size(comm),
                         .width = history_at(m, m->config.count)};
    s->all = calloc(((size_t)s->size + 1) * s->width, sizeof(*s->all));
    s->alive = calloc((size_t)dp_comm_size(m->config.comm), sizeof(*s->alive));
    s->users = calloc((size_t)dp_comm_size(m->config.comm), sizeof(*s->users));
    if (s->all && s->alive && s->users)
        return 0;
    survey_fini(s);
    return dp_fail(DP_ENOMEM, "no memory to go on with %d workers", dp_comm_size(comm));
}

static int ask(struct survey *s, const struct dp_mixer *m)
{
    int64_t *own = s->all + (size_t)s->size * s->width;

    fill_row(m, own);
    int err = dp_comm_allgather(s->comm, own, s->all, s->width * sizeof(*own));
    for (int i = 0; i < s->size && !err; i++)
        s->alive[row_of(s, i)[RANK]] = true;
    return err;
}

/* ---- making good ------------------------------------------------------------------------------- */

/* The members of the group, or with links all. */
static bool takes_part(const struct dp_graph *g, const struct dp_mix_group *group, int64_t worker)
{
    for (int32_t i = 0; group && i < group->count; i++)
        if (g->members[group->first + (size_t)i] == worker)
            return true;
    return !group;
}

static bool has_used(const struct dp_mixer *m, const int64_t *row, int32_t bucket)
{
    const struct dp_mixer_bucket *b = &m->buckets[bucket];
    const int64_t t = b->exchange.round, history = (int64_t)history_of(m);

    return history ? row[history_at(m, bucket) + (size_t)(t % history)] == t
                   : row[USED + bucket] > b->used;
}

/* Others that have used the exchange of this bucket, into s->users; false: none. */
static bool find_users(const struct dp_mixer *m, struct survey *s, int32_t bucket)
{
    const struct dp_graph *g = m->config.graph;
    const int self = dp_comm_rank(m->config.comm);
    const struct dp_mix_group *group = dp_graph_group(g, m->buckets[bucket].exchange.round, self);
    bool any = false;

    memset(s->users, 0, (size_t)dp_comm_size(m->config.comm) * sizeof(*s->users));
    for (int i = 0; i < s->size; i++) {
        const int64_t *row = row_of(s, i);
        if (row[RANK] == self || !has_used(m, row, bucket) || !takes_part(g, group, row[RANK]))
            continue;
        s->users[row[RANK]] = any = true;
    }
    return any;
}

/* A worker that has the average has seen that all have the sums of which it is made. */
static void make_average_good(struct dp_mixer *m, const struct survey *s)
{
    const bool others_have_it = largest(s, AVERAGES) > m->death->averages;

    if (m->death->average == AVERAGE_BEGUN && others_have_it && !m->death->reverts)
        dp_mixer_end_average(m, false);
    else if (m->death->average == AVERAGE_BEGUN || m->has_backup)
        dp_mixer_undo_average(m);
    m->death->average = AVERAGE_NONE;
}

static int make_good(struct dp_mixer *m, struct survey *s)
{
    int err = 0;

    make_average_good(m, s);
    for (int32_t i = 0; i < m->bucket_count && !err; i++) {
        struct dp_mixer_bucket *b = &m->buckets[i];
        if (!b->pending || !find_users(m, s, i))
            continue;
        err = dp_exchange_complete(&b->exchange, s->users);
        if (!err)
            err = dp_mixer_use(m, b);
    }
    return err;
}

/* ---- adopting ---------------------------------------------------------------------------------- */

static void drop_exchanges(struct dp_mixer *m)
{
    dp_exchange_group_fini(&m->shared);
    for (int32_t i = 0; i < m->bucket_count; i++) {
        struct dp_mixer_bucket *b = &m->buckets[i];
        dp_exchange_fini(&b->exchange);
        b->pending = false;
        b->used = 0;
    }
    m->death->averages = 0;
}

static void take_comm(struct dp_mixer *m, struct dp_comm *comm)
{
    dp_comm_close(m->death->comm);
    m->death->comm = m->config.comm = comm;
}

static void take_graph(struct dp_mixer *m, struct dp_graph *g)
{
    dp_graph_free(m->death->graph);
    m->death->graph = g;
    m->config.graph = g ? g : m->death->given;
}

/* The furthest worker's. */
static void take_scale(struct dp_mixer *m, const struct survey *s)
{
    const int64_t furthest = largest(s, ITERATIONS);

    for (int i = s->size - 1; i >= 0; i--)
        if (row_of(s, i)[ITERATIONS] == furthest) {
            memcpy(&m->loss_scale.scale, &row_of(s, i)[SCALE], sizeof(m->loss_scale.scale));
            m->loss_scale.good = (int32_t)row_of(s, i)[GOOD_STEPS];
        }
}

static void align(struct dp_mixer *m, const struct survey *s)
{
    const bool started = largest(s, STARTED);

    m->iterations = started ? largest(s, ITERATIONS) : 0;
    m->traced = started ? m->traced : 0;
    take_scale(m, s);
    for (int32_t i = 0; i < m->bucket_count; i++)
        m->buckets[i].updates = largest(s, UPDATES);
    m->open = m->overflow = m->any_given = false;
    memset(m->given, 0, (size_t)m->config.count * sizeof(*m->given));
    dp_mixer_begin_iteration(m);
}

int dp_mixer_adopt(struct dp_mixer *m, struct dp_comm *comm, struct dp_graph *g)
{
    char *flags = realloc(m->flags, (size_t)dp_comm_size(comm));

    drop_exchanges(m);
    take_graph(m, g);
    take_comm(m, comm);
    dp_mixer_state_free(m->state); /* of the tensors of another graph */
    m->state = NULL;
    if (!flags)
        return dp_fail(DP_ENOMEM, "no memory for %d workers", dp_comm_size(comm));
    m->flags = flags;
    int err = dp_mixer_make_group(m);
    return err ? err : dp_mixer_make_exchanges(m);
}

/* One that was before the buckets while another one had made them has the same trace. */
static int adopt(struct dp_mixer *m, const struct survey *s)
{
    struct dp_graph *g;
    int err = dp_graph_without(m->config.graph, s->alive, &g);

    if (err) {
        dp_comm_close(s->comm);
        return err;
    }
    err = dp_mixer_adopt(m, s->comm, g);
    if (!err && !m->started && largest(s, STARTED))
        err = dp_mixer_make_buckets(m);
    if (!err)
        err = dp_gradients_zero(m->parameters, m->config.count);
    if (!err)
        align(m, s);
    return err;
}

/* ---- the whole --------------------------------------------------------------------------------- */

/* A death, or a silence that may be one, ends what is under way, and all begin it again; anything else
 * ends the group. */
static bool may_be_death(int err)
{
    return err == DP_ECOMM || err == DP_ETIMEDOUT;
}

static int agree(struct dp_comm *comm, bool *all_live)
{
    bool *alive = calloc((size_t)dp_comm_size(comm), sizeof(*alive));
    int err = alive ? dp_comm_agree_alive(comm, alive)
                    : dp_fail(DP_ENOMEM, "no memory to agree with %d workers", dp_comm_size(comm));

    *all_live = !err;
    for (int i = 0; i < dp_comm_size(comm) && !err; i++)
        *all_live = *all_live && alive[i];
    free(alive);
    return err;
}

int dp_mixer_conclude(struct dp_comm *comm, int err, bool *again)
{
    bool all_live = false;
    int failed = err && !may_be_death(err) ? err : dp_comm_settle_silence(comm);

    if (!failed)
        failed = agree(comm, &all_live);

    *again = !failed && !all_live;
    return failed ? failed : all_live ? err : 0;
}

static int take_turn(struct dp_mixer *m, bool *again)
{
    struct survey s;
    struct dp_comm *comm;
    int err = dp_comm_shrink(m->config.comm, &comm);

    if (err)
        return err;
    err = survey_init(&s, m, comm);
    if (!err) {
        err = ask(&s, m);
        err = dp_mixer_conclude(comm, err ? err : make_good(m, &s), again);
    }
    if (err || *again) {
        dp_comm_close(comm);
    } else {
        err = adopt(m, &s);
        err = dp_mixer_conclude(m->config.comm, err, again);
    }
    survey_fini(&s);
    return err;
}

int dp_mixer_survive(struct dp_mixer *m)
{
    bool again = true;
    int err = 0;

    if (!m->death)
        return dp_fail(DP_ESTATE, "a mixer that does not survive, expected one with config.survive");
    const int before = dp_comm_size(m->config.comm);
    err = dp_comm_settle_silence(m->config.comm);
    while (!err && again)
        err = take_turn(m, &again);
    if (err) {
        if (err != DP_EABORTED)
            dp_comm_fail(m->config.comm, err);
        return err;
    }
    const int now = dp_comm_size(m->config.comm);
    if (dp_comm_rank(m->config.comm) == 0)
        dp_log(DP_LOG_WARN,
               "mixing goes on with %d of %d workers from iteration %lld on: graph %s of %d rounds",
               now, before, (long long)m->iterations, m->config.graph->name, m->config.graph->period);
    return 0;
}
