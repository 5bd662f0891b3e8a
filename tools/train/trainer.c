/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_OUT_BATCHES = 4 };

/* ---- what all ranks must know ---------------------------------------------------------------- */

/* Add up values[count] over the ranks, in rank order. */
static int add_over_ranks(struct trainer *t, double *values, size_t count)
{
    if (!t->engine->comm)
        return 0;
    int err = dp_comm_allgather(t->engine->comm, values, t->all_sums, count * sizeof(double));
    if (err)
        return err;
    memset(values, 0, count * sizeof(double));
    for (int rank = 0; rank < t->ranks; rank++)
        for (size_t i = 0; i < count; i++)
            values[i] += t->all_sums[(size_t)rank * count + i];
    return 0;
}

static double sum_of(const double *values, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* Into t->sums: what this rank knows of a step, then what all know. The whole gradient counts each
 * parameter once, although DualPipe holds it twice, and is added up group by group, so that its
 * norm is the same under every schedule. */
static int share(struct trainer *t)
{
    struct engine *e = t->engine;

    for (int i = 0; i < e->stage_count; i++)
        if (!e->second_copy[i])
            optimizer_squares(e->stages[i], t->sums + e->microbatches);
    return add_over_ranks(t, t->sums, t->sums_len);
}

/* ---- a step -------------------------------------------------------------------------------- */

/* All ranks see the same norm, so all of them leave out the same steps. */
static void update(struct trainer *t, uint64_t step, const struct step_result *r)
{
    double scale = optimizer_clip(r->norm, t->config.clip);

    for (int i = 0; i < t->engine->stage_count; i++) {
        if (r->skipped)
            optimizer_skip(&t->optimizers[i]);
        else
            optimizer_step(&t->optimizers[i], step, r->rate, t->config.decay, scale);
    }
}

int trainer_step(struct trainer *t, uint64_t step, struct step_result *result)
{
    const struct trainer_config *c = &t->config;
    struct engine *e = t->engine;
    size_t m = (size_t)e->microbatches;

    memset(t->sums, 0, t->sums_len * sizeof(double));
    data_batch(t->data, DATA_TRAIN, step, c->sequences, &t->batch);
    int err = e->ops->train(e, &t->batch, t->sums);
    if (!err)
        err = share(t);
    if (err)
        return err;
    double norm = sqrt(sum_of(t->sums + m, t->sums_len - m));
    *result = (struct step_result){
        .loss = sum_of(t->sums, m) / (double)m,
        .norm = norm,
        .rate = optimizer_rate(step, c->steps, c->warmup, c->rate),
        .skipped = !isfinite(norm),
    };
    update(t, step, result);
    return 0;
}

int trainer_evaluate(struct trainer *t, double *held_out)
{
    struct engine *e = t->engine;
    size_t m = (size_t)e->microbatches;
    double sum = 0;

    for (uint64_t i = 0; i < HELD_OUT_BATCHES; i++) {
        memset(t->sums, 0, m * sizeof(double));
        data_batch(t->data, DATA_HELD_OUT, i, t->config.sequences, &t->batch);
        int err = e->ops->evaluate(e, &t->batch, t->sums);
        if (!err)
            err = add_over_ranks(t, t->sums, m);
        if (err)
            return err;
        sum += sum_of(t->sums, m) / (double)m;
    }
    *held_out = sum / HELD_OUT_BATCHES;
    return 0;
}

/* ---- making one ---------------------------------------------------------------------------- */

static int make_optimizers(struct trainer *t)
{
    int err = 0;

    for (int i = 0; !err && i < t->engine->stage_count; i++)
        err = optimizer_init(&t->optimizers[i], t->engine->stages[i]);
    return err;
}

int trainer_init(struct trainer *t, const struct trainer_config *config, const struct data *data,
                 struct engine *engine)
{
    size_t bytes = (size_t)config->sequences * (size_t)engine->config.context;
    size_t groups = (size_t)engine->config.layers + 2;
    int ranks = engine->comm ? engine->comm->size : 1;

    *t = (struct trainer){
        .config = *config, .data = data, .engine = engine, .ranks = ranks,
        .sums_len = (size_t)engine->microbatches + groups};
    t->sums = calloc(t->sums_len, sizeof(double));
    t->all_sums = calloc(t->sums_len * (size_t)ranks, sizeof(double));
    t->batch.tokens = malloc(bytes);
    t->batch.labels = malloc(bytes);
    if (t->sums && t->all_sums && t->batch.tokens && t->batch.labels && !make_optimizers(t))
        return 0;
    trainer_fini(t);
    return DP_ENOMEM;
}

void trainer_fini(struct trainer *t)
{
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        optimizer_fini(&t->optimizers[i]);
    free(t->batch.labels);
    free(t->batch.tokens);
    free(t->all_sums);
    free(t->sums);
}
