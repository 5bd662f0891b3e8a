/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_admit.c - new workers for a mixer that survives, or such as come back.
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
#include "comm/lines.h"
#include "mixing/graph.h"
#include "mixing/internal.h"
#include "mixing/mixer_state.h"

#include <dualpipe/survival.h>

#include <stdlib.h>

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

    err = dp_mixer_conclude(comm, err, &again);
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
    int err = dp_mixer_adopt(m, comm, g);

    if (!err)
        err = share_state(m, before);
    return agree_to_grow(m->config.comm, err);
}

int dp_mixer_admit_sized(struct dp_mixer *m, int count, const struct dp_comm_config *config,
                         size_t size)
{
    DP_TAKE(dp_comm_config, config, size);
    const int before = dp_comm_size(m->config.comm);
    struct dp_comm *comm;
    struct dp_graph *g = NULL;
    int err = check_admission(m);

    if (!err)
        err = use_what_came(m);
    if (!err)
        err = dp_comm_grow(m->config.comm, count, config, &comm);
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
