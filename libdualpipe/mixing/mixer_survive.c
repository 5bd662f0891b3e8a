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
 *
 * And with new ones, or such as come back; the first ones, too, may die while they begin:
 *
 *      the workers                          a new one
 *      use what came
 *      dp_comm_grow                         dp_comm_join
 *      rank 0 tells how far the run is      makes its mixer
 *      agree: all live
 *      adopt the larger group               the same
 *      values and state                 ->  of the neighbour
 *      agree: all live
 *
 * Until the first agreement the old group is as it was, whatever becomes of the new one.
 */
#include "base/fail.h"
#include "base/sized.h"
#include "base/tensor.h"
#include "base/text.h"
#include "comm/internal.h"
#include "comm/lines.h"
#include "mixing/graph.h"
#include "mixing/internal.h"
#include "mixing/mixer_state.h"
#include "survival/internal.h"

#include <dualpipe/survival.h>

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

/* Go on over comm by graph g (NULL: the given one), both the mixer's from here on, also on an error;
 * what was in flight is dropped. Collective over comm. */
static int adopt(struct dp_mixer *m, struct dp_comm *comm, struct dp_graph *g)
{
    char *flags = realloc(m->flags, (size_t)dp_comm_size(comm));

    drop_exchanges(m);
    take_graph(m, g);
    take_comm(m, comm);
    free(m->state); /* of the tensors of another graph */
    m->state = NULL;
    if (!flags)
        return dp_fail(DP_ENOMEM, "no memory for %d workers", dp_comm_size(comm));
    m->flags = flags;
    int err = dp_mixer_make_group(m);
    return err ? err : dp_mixer_make_exchanges(m);
}

/* One that was before the buckets while another one had made them has the same trace. */
static int adopt_survivors(struct dp_mixer *m, const struct survey *s)
{
    struct dp_graph *g;
    int err = dp_graph_without(m->config.graph, s->alive, &g);

    if (err) {
        dp_comm_close(s->comm);
        return err;
    }
    err = adopt(m, s->comm, g);
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

/* The end of something collective that ended with err here: 0 if all ranks of comm live and it ended so;
 * *again: one has died, which ends it with 0. */
static int conclude(struct dp_comm *comm, int err, bool *again)
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
        err = conclude(comm, err ? err : make_good(m, &s), again);
    }
    if (err || *again) {
        dp_comm_close(comm);
    } else {
        err = adopt_survivors(m, &s);
        err = conclude(m->config.comm, err, again);
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

/* ---- the first ones ---------------------------------------------------------------------------- */

/* Where the group survives, a death meanwhile is one before iteration 0: those that live begin again. */
static int meet_alive(struct dp_mixer *m)
{
    bool again = true;
    int err = 0;

    while (!err && again) {
        err = conclude(m->config.comm, dp_mixer_meet(m), &again);
        if (again)
            err = dp_mixer_survive(m);
    }
    return err;
}

int dp_mixer_new_sized(const struct dp_mixer_config *config, struct dp_mixer **out, size_t size)
{
    DP_TAKE_KNOWN(dp_mixer_config, config, size);
    struct dp_mixer *m;
    int err = config_err ? config_err : dp_mixer_new_alone(config, &m);

    if (err) {
        if (config->comm)
            dp_comm_fail(config->comm, err);
        return err;
    }
    err = m->death ? meet_alive(m) : dp_mixer_meet(m);
    if (err) {
        dp_mixer_free(m);
        return err;
    }
    *out = m;
    return 0;
}

/* ---- new workers ------------------------------------------------------------------------------- */

/* What rank 0 tells; then the numbers of its state, and the graph that the run began with, as text. */
struct welcome {
    uint64_t list, options;
    int64_t workers, numbers, text; /* workers: before */
};

/* ---- values and state -------------------------------------------------------------------------- */

static int move(struct dp_comm *comm, int peer, bool sends, const DLTensor *t)
{
    enum { TAG = 0x61646d74 };
    struct dp_request req;
    void *at = dp_tensor_address(t);
    const size_t bytes = (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t);
    int err = sends ? dp_comm_isend(comm, peer, DP_CHANNEL_CONTROL, TAG, at, bytes, &req)
                    : dp_comm_irecv(comm, peer, DP_CHANNEL_CONTROL, TAG, at, bytes, &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

/* Parameters, frozen ones too, buffers, and all that dp_mixer_state names but the numbers and what is of
 * a worker's place in the graph, which has just been made anew. */
static int move_all(struct dp_mixer *m, int peer, bool sends)
{
    const struct dp_mixer_config *c = &m->config;
    const struct dp_named_tensor *tensors;
    int32_t count;
    int err = dp_mixer_state(m, &tensors, &count);

    for (int32_t i = 0; i < c->count && !err; i++)
        err = move(c->comm, peer, sends, c->parameters[i].value);
    for (int32_t i = 0; i < c->buffer_count && !err; i++)
        err = move(c->comm, peer, sends, c->buffers[i]);
    for (int32_t i = 1; i < count - dp_mixer_known_count(m) && !err; i++)
        err = move(c->comm, peer, sends, &tensors[i].tensor);
    return err;
}

/* New workers are `before`, before + 1 ... and the neighbour of one is that number modulo before. */
static int share_state(struct dp_mixer *m, int before)
{
    const int rank = dp_comm_rank(m->config.comm), size = dp_comm_size(m->config.comm);
    int err = 0;

    for (int r = before; r < size && !err; r++) {
        if (rank == r)
            err = move_all(m, r % before, false);
        else if (rank == r % before)
            err = move_all(m, r, true);
    }
    return err;
}

/* What a new one must have in common with the workers. */
static int hash_own(const struct dp_mixer *m, struct welcome *w)
{
    struct dp_text list = {0}, options = {0};

    dp_add_parameters(&list, m->parameters, m->config.count);
    dp_mixer_add_options(&m->config, &options);
    int err = dp_text_hash(&list, &w->list);
    if (!err)
        err = dp_text_hash(&options, &w->options);
    dp_text_fini(&list);
    dp_text_fini(&options);
    return err;
}

/* ---- telling ----------------------------------------------------------------------------------- */

static int tell(struct dp_mixer *m, struct dp_comm *comm)
{
    const struct dp_named_tensor *tensors = NULL;
    int32_t count;
    char *text = NULL;
    size_t len = 0;
    struct welcome w = {.workers = dp_comm_size(m->config.comm)};
    int err = dp_mixer_state(m, &tensors, &count);

    if (!err)
        err = hash_own(m, &w);
    if (!err)
        err = dp_graph_write(m->death->given, &text, &len);
    if (err)
        return err;
    w.numbers = tensors[0].tensor.shape[0];
    w.text = (int64_t)len;
    err = dp_comm_broadcast(comm, &w, sizeof(w), 0);
    if (!err)
        err = dp_comm_broadcast(comm, tensors[0].tensor.data, (size_t)w.numbers * sizeof(int64_t), 0);
    if (!err)
        err = dp_comm_broadcast(comm, text, len, 0);
    free(text);
    return err;
}

/* The first graph where there are as many again, *out is then NULL. The same on all. */
static int graph_for(const struct dp_graph *given, int workers, struct dp_graph **out)
{
    *out = NULL;
    return workers == given->workers ? 0 : dp_graph_of_size(given, workers, out);
}

/* What a new worker is told. */
struct told {
    struct welcome w;
    int64_t *numbers;
    char *text;
};

static void told_fini(struct told *t)
{
    free(t->numbers);
    free(t->text);
}

static int hear(struct dp_comm *comm, struct told *t)
{
    int err = dp_comm_broadcast(comm, &t->w, sizeof(t->w), 0);

    if (err)
        return err;
    t->numbers = calloc((size_t)t->w.numbers + 1, sizeof(*t->numbers));
    t->text = calloc((size_t)t->w.text + 1, 1);
    if (!t->numbers || !t->text)
        return dp_fail(DP_ENOMEM, "no memory for the numbers of a mixer's state");
    err = dp_comm_broadcast(comm, t->numbers, (size_t)t->w.numbers * sizeof(*t->numbers), 0);
    return err ? err : dp_comm_broadcast(comm, t->text, (size_t)t->w.text, 0);
}

/* ---- the workers ------------------------------------------------------------------------------- */

static int use_what_came(struct dp_mixer *m)
{
    int err = 0;

    for (int32_t i = 0; i < m->bucket_count && !err; i++) {
        err = dp_mixer_wait(&m->buckets[i]);
        if (!err && m->buckets[i].pending)
            err = dp_mixer_use(m, &m->buckets[i]);
    }
    dp_mixer_spread_tied(m);
    return err;
}

/* All live: 0. Otherwise the group that was to be is given up. */
static int agree_to_grow(struct dp_comm *comm, int err)
{
    bool again = false;

    err = conclude(comm, err, &again);
    return again ? dp_fail_quietly(DP_ECOMM, "a worker has died while others were admitted") : err;
}

static int check_admission(const struct dp_mixer *m)
{
    if (!m->death)
        return dp_fail(DP_ESTATE, "new workers for a mixer that does not survive, expected one with "
                       "config.survive");
    if (m->open || m->has_backup)
        return dp_fail(DP_ESTATE, "new workers between a forward and its step, or before a revert, "
                       "expected a mixer between two iterations");
    return 0;
}

static int go_on_together(struct dp_mixer *m, struct dp_comm *comm, struct dp_graph *g, int before)
{
    int err = adopt(m, comm, g);

    if (!err)
        err = share_state(m, before);
    return agree_to_grow(m->config.comm, err);
}

int dp_mixer_admit_sized(struct dp_mixer *m, int count, const struct dp_comm_config *config,
                         size_t size)
{
    const int before = dp_comm_size(m->config.comm);
    struct dp_comm *comm;
    struct dp_graph *g = NULL;
    int err = check_admission(m);

    if (!err)
        err = use_what_came(m);
    if (!err)
        err = dp_comm_grow_sized(m->config.comm, count, config, &comm, size);
    if (err)
        return err;
    err = dp_comm_survive(comm);
    if (!err)
        err = graph_for(m->death->given, dp_comm_size(comm), &g);
    if (!err)
        err = tell(m, comm);
    err = agree_to_grow(comm, err);
    if (err) {
        dp_comm_close(comm);
        dp_graph_free(g);
        return err == DP_EABORTED ? DP_ECOMM : err;
    }
    err = go_on_together(m, comm, g, before);
    if (!err && dp_comm_rank(comm) == 0)
        dp_log(DP_LOG_WARN, "mixing goes on with %d workers, %d of them new, from iteration %lld on: "
               "graph %s of %d rounds", dp_comm_size(comm), count, (long long)m->iterations,
               m->config.graph->name, m->config.graph->period);
    return err;
}

/* ---- a new one --------------------------------------------------------------------------------- */

static int compare(const struct dp_mixer *m, const struct welcome *w)
{
    struct welcome own;
    int err = hash_own(m, &own);

    if (err)
        return err;
    if (own.list != w->list)
        return dp_fail(DP_EMISMATCH, "a list of %d parameters that is not that of the workers",
                       m->config.count);
    if (own.options != w->options)
        return dp_fail(DP_EMISMATCH, "bucket size, algorithm or its numbers are not those of the "
                       "workers");
    return 0;
}

static int make(const struct dp_mixer_config *config, struct told *t, struct dp_mixer **out)
{
    struct dp_mixer_config full = *config;
    struct dp_graph *given, *g = NULL;
    int err = dp_graph_read(t->text, (size_t)t->w.text, &given);

    if (err)
        return err;
    err = graph_for(given, dp_comm_size(config->comm), &g);
    full.graph = g ? g : given;
    full.survive = true;
    if (!err)
        err = dp_mixer_new_alone(&full, out);
    if (err) {
        dp_graph_free(given);
        dp_graph_free(g);
        return err;
    }
    (*out)->death->given = (*out)->death->own_given = given;
    (*out)->death->graph = g;
    return compare(*out, &t->w);
}

static int begin(struct dp_mixer *m, const struct told *t)
{
    int err = dp_mixer_make_group(m);

    if (!err)
        err = dp_mixer_take_numbers(m, t->numbers, t->w.numbers);
    for (int32_t i = 0; i < m->bucket_count && !err; i++) {
        m->buckets[i].pending = false;
        m->buckets[i].exchange.mass = 1;
    }
    if (!err)
        err = share_state(m, (int)t->w.workers);
    dp_mixer_spread_tied(m);
    return agree_to_grow(m->config.comm, err);
}

int dp_mixer_join_sized(const struct dp_mixer_config *config, struct dp_mixer **out, size_t size)
{
    DP_TAKE(dp_mixer_config, config, size);
    struct dp_mixer *m = NULL;
    struct told t = {0};
    int err = config->comm ? dp_comm_survive(config->comm)
                           : dp_fail(DP_ESTATE, "no communicator, expected that of dp_comm_join");

    if (!err)
        err = hear(config->comm, &t);
    if (!err)
        err = make(config, &t, &m);
    if (config->comm)
        err = agree_to_grow(config->comm, err);
    if (!err)
        err = begin(m, &t);
    told_fini(&t);
    if (err)
        dp_mixer_free(m);
    else
        *out = m;
    return err;
}
