/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer.h"

#include "clock.h"
#include "train/late.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what all ranks must know ---------------------------------------------------------------- */

/* Add up values[count] over the ranks, in rank order. */
static int add_over_ranks(struct trainer *t, double *values, size_t count)
{
    if (!t->comm)
        return 0;
    int err = dp_comm_allgather(t->comm, values, t->all_sums, count * sizeof(double));
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

/* The sums of squares of a replica, by group. */
static double *squares_of(const struct trainer *t, size_t replica)
{
    return t->sums + (size_t)t->engine->microbatches + replica * t->groups;
}

static size_t own_column(const struct trainer *t)
{
    return t->columns > 1 ? (size_t)t->engine->replica.index : 0;
}

/* The group of a tensor, or of a piece of it: names begin with it. */
static size_t group_of(const struct gpt_stage *stage, const char *name)
{
    const struct params *p = &stage->params;
    size_t i = 0;

    for (size_t len = strcspn(name, "["); i < p->tensors_len; i++)
        if (!strncmp(stage->tensors[i].name, name, len) && !stage->tensors[i].name[len])
            break;
    return (size_t)p->tensors[i].group;
}

/* Add the squares of a slot's gradients to those of their groups; *sum is that of all of them.
 * counted: they are part of the model's norm. */
static int add_squares(struct trainer *t, int slot, bool counted, double *sum)
{
    const struct gpt_stage *stage = t->engine->stages[slot];
    int32_t count = (int32_t)stage->params.tensors_len;
    const struct dp_parameter *list = stage->parameters;
    double *groups = squares_of(t, own_column(t));

    if (t->config.kind)
        list = data_parallel_summed(&t->replicas, slot, &count);
    const int err = dp_gradient_squares(list, count, t->squares);
    if (err)
        return err;
    *sum = dp_gradient_sum(list, count, NULL, t->squares);
    for (size_t group = 0; group < t->groups && counted; group++) {
        for (int32_t i = 0; i < count; i++)
            t->in_group[i] = group_of(stage, list[i].name) == group;
        groups[group] += dp_gradient_sum(list, count, t->in_group, t->squares);
    }
    return 0;
}

/* The whole gradient counts each parameter once, although DualPipe holds it twice and so do
 * replicas whose gradients are summed, and is added up group by group, so that its norm is the same
 * under every schedule. */
static bool counts(const struct trainer *t, int slot)
{
    const struct engine *e = t->engine;

    if (t->config.kind == DATA_PARALLEL_SHARD)
        return true; /* each rank has another part */
    return !e->second_copy[slot] && (t->columns > 1 || e->replica.index == 0);
}

/* Those that mix and do not clip need not know any norm but their own. */
static bool updates_at_once(const struct trainer *t)
{
    return t->config.kind == DATA_PARALLEL_MIX && t->config.clip == 0;
}

/* A slot's gradients are summed over all that hold its stage. */
static int end_of_sum(struct trainer *t, int slot)
{
    const bool counted = counts(t, slot), at_once = updates_at_once(t);
    double sum = 0;
    int err = counted || at_once ? add_squares(t, slot, counted, &sum) : 0;

    if (err || !at_once)
        return err;
    return data_parallel_update(&t->replicas, slot,
                                &(struct dp_mixer_update){t->rate, 1, !isfinite(sum)});
}

/* Gradients of tied parameters are what they will be after sum_tied. */
static int end_of_step_sum(struct trainer *t, int slot)
{
    return t->engine->config.tied ? 0 : end_of_sum(t, slot);
}

static int reduce_launch(void *user, int slot)
{
    return data_parallel_sum(&((struct trainer *)user)->replicas, slot);
}

static int reduce_test(void *user, int slot)
{
    int err = data_parallel_test(&((struct trainer *)user)->replicas, slot);

    return err ? err : end_of_step_sum(user, slot);
}

static int reduce_wait(void *user, int slot)
{
    int err = data_parallel_wait(&((struct trainer *)user)->replicas, slot);

    return err ? err : end_of_step_sum(user, slot);
}

const struct dp_reduce_ops train_reduce_ops = {reduce_launch, reduce_test, reduce_wait, NULL};

/* Where the engine has not done it already. */
static int sum_gradients(struct trainer *t)
{
    int err = 0;

    for (int i = 0; i < t->engine->stage_count && !err; i++) {
        if (t->config.kind)
            err = reduce_launch(t, i);
        if (!err && t->config.kind)
            err = reduce_wait(t, i);
        else if (!err)
            err = end_of_step_sum(t, i);
    }
    return err;
}

/* Once each gradient is summed over all that hold its stage. */
static int sum_tied(struct trainer *t)
{
    const struct engine *e = t->engine;
    int err = e->config.tied ? e->ops->sum_tied(t->engine) : 0;

    for (int i = 0; i < e->stage_count && e->config.tied && !err; i++)
        err = end_of_sum(t, i);
    return err;
}

/* ---- how fast the ranks were ----------------------------------------------------------------- */

enum { PACE_VALUES = 2 }; /* at the end of t->sums, where each rank has its own */

/* Without a pipeline all of a step is compute. */
static void put_pace(struct trainer *t, int64_t train_ns)
{
    const struct engine *e = t->engine;
    struct dp_rank_pace pace = {.compute_ns = (double)train_ns, .step_ns = (double)train_ns};

    if (e->recorder &&
        dp_recorder_pace(e->recorder, e->schedule, engine_rank(e), &pace))
        pace = (struct dp_rank_pace){0};
    t->sums[t->sums_len - 2] = pace.compute_ns;
    t->sums[t->sums_len - 1] = pace.step_ns;
}

static void take_paces(struct trainer *t)
{
    for (int rank = 0; rank < t->ranks; rank++) {
        const double *mine = t->comm ? t->all_sums + (size_t)rank * t->sums_len : t->sums;
        t->paces[rank] = (struct dp_rank_pace){.compute_ns = mine[t->sums_len - 2],
                                               .step_ns = mine[t->sums_len - 1],
                                               .waited_for = -1};
    }
}

/* ---- a step -------------------------------------------------------------------------------- */

/* The gradient's norm of a replica. */
static double norm_of(const struct trainer *t, size_t replica)
{
    return sqrt(sum_of(squares_of(t, replica), t->groups));
}

static double largest_norm(const struct trainer *t)
{
    double norm = norm_of(t, 0);

    for (size_t i = 1; i < t->columns && isfinite(norm); i++) {
        double other = norm_of(t, i);
        norm = norm >= other ? norm : other; /* a NaN stays */
    }
    return norm;
}

struct dp_optimizer_config trainer_optimizer(double decay)
{
    struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);

    config.beta2 = 0.95;
    config.weight_decay = decay;
    return config;
}

static int update_slot(struct trainer *t, int slot, const struct dp_mixer_update *update)
{
    const struct gpt_stage *stage = t->engine->stages[slot];
    const struct dp_optimizer_step step = {
        .rate = update->rate, .scale = update->scale, .zero_grads = true};

    if (t->config.kind > DATA_PARALLEL_SUM)
        return data_parallel_update(&t->replicas, slot, update);
    if (update->skip)
        return dp_gradients_zero(stage->parameters, (int32_t)stage->params.tensors_len);
    int err = 0;
    if (t->in_files[slot])
        err = dp_offload_optimizer_step(t->in_files[slot], &step);
    else if (t->optimizers[slot])
        err = dp_optimizer_step(t->optimizers[slot], &step);
    return err;
}

/* All ranks know all norms, so all of them leave out the same steps. */
static int update(struct trainer *t, const struct step_result *r)
{
    const double scale = dp_clip_factor(norm_of(t, own_column(t)), t->config.clip, 0);
    const struct dp_mixer_update how = {t->rate, r->skipped ? 1 : scale, r->skipped};
    int err = 0;

    if (t->config.late)
        return late_update(t, &how);
    for (int i = 0; i < t->engine->stage_count && !updates_at_once(t) && !err; i++)
        err = update_slot(t, i, &how);
    if (!err && t->engine->config.tied)
        err = t->engine->ops->broadcast_tied(t->engine);
    return err ? err : data_parallel_settle(&t->replicas);
}

double trainer_rate(uint64_t step, uint64_t steps, uint64_t warmup, double peak)
{
    const struct dp_rate rate = {.kind = DP_RATE_COSINE,
                                 .peak = peak,
                                 .last = 0.1 * peak,
                                 .period = steps > warmup ? (int64_t)(steps - warmup) : 1,
                                 .hold = true,
                                 .warmup = (int64_t)warmup};

    /* No step has the rate 0. */
    return dp_rate_at(&rate, (int64_t)(step < warmup ? step + 1 : step));
}

/* All of a step but the change of the weights. */
static int learn(struct trainer *t, uint64_t step, struct step_result *result)
{
    const struct trainer_config *c = &t->config;
    struct engine *e = t->engine;
    size_t m = (size_t)e->microbatches;

    memset(t->sums, 0, t->sums_len * sizeof(double));
    t->rate = trainer_rate(step, c->steps, c->warmup, c->rate);
    data_batch(t->data, DATA_TRAIN, step, c->sequences, &t->batch);
    int err = data_parallel_begin(&t->replicas);
    const int64_t begun_ns = now_ns();
    if (!err)
        err = e->ops->train(e, &t->batch, t->sums);
    const int64_t train_ns = now_ns() - begun_ns;
    if (!err && !e->reduces)
        err = sum_gradients(t);
    if (!err)
        err = sum_tied(t);
    put_pace(t, train_ns);
    if (!err)
        err = add_over_ranks(t, t->sums, t->sums_len);
    if (err)
        return err;
    take_paces(t);
    double norm = largest_norm(t);
    *result = (struct step_result){
        .loss = sum_of(t->sums, m) / ((double)m * t->share),
        .norm = norm,
        .rate = t->rate,
        .skipped = !isfinite(norm),
    };
    return 0;
}

int trainer_step(struct trainer *t, uint64_t step, struct step_result *result)
{
    int err = learn(t, step, result);

    return err ? err : update(t, result);
}

static int evaluate(struct trainer *t, double *held_out)
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
        sum += sum_of(t->sums, m) / ((double)m * t->share);
    }
    *held_out = sum / HELD_OUT_BATCHES;
    return 0;
}

int trainer_held_out(struct trainer *t, double *held_out)
{
    int err = data_parallel_average(&t->replicas, true);

    if (!err)
        err = evaluate(t, held_out);
    return err ? err : data_parallel_revert(&t->replicas);
}

int trainer_finish(struct trainer *t)
{
    int err = data_parallel_average(&t->replicas, false);

    return err ? err : late_catch_up(t);
}

/* ---- making one ---------------------------------------------------------------------------- */

static int make_squares(struct trainer *t, int slot)
{
    int32_t count = (int32_t)t->engine->stages[slot]->params.tensors_len;

    if (t->config.kind)
        data_parallel_summed(&t->replicas, slot, &count);
    if (count <= t->squares_room)
        return 0;
    free(t->squares);
    free(t->in_group);
    t->squares = calloc((size_t)count, sizeof(*t->squares));
    t->in_group = calloc((size_t)count, sizeof(*t->in_group));
    t->squares_room = count;
    return t->squares && t->in_group ? 0 : DP_ENOMEM;
}

/* An optimizer of parameters in the host's memory; of none there is none. */
static int make_on_host(struct trainer *t, int slot, const struct dp_parameter *owned, int32_t count)
{
    const struct dp_optimizer_config config = trainer_optimizer(t->config.decay);

    if (!count)
        return 0;
    return t->config.state_folder
               ? dp_offload_optimizer_new(
                     &(struct dp_offload_optimizer_config){.optimizer = config,
                                                           .folder = t->config.state_folder},
                     owned, count, &t->in_files[slot])
               : dp_optimizer_new(&config, owned, count, &t->optimizers[slot]);
}

/* Mixers and shards have their own. Of tied parameters only the owner's is updated. */
static int make_optimizer(struct trainer *t, int slot)
{
    const struct gpt_stage *stage = t->engine->stages[slot];
    struct dp_parameter *owned;
    int32_t count = 0;

    if (t->config.kind > DATA_PARALLEL_SUM)
        return 0;
    owned = calloc(stage->params.tensors_len + 1, sizeof(*owned));
    if (!owned)
        return DP_ENOMEM;
    for (int i = 0; i < (int)stage->params.tensors_len; i++)
        if (!t->engine->config.tied || t->engine->ops->owns(t->engine, slot, i))
            owned[count++] = stage->parameters[i];
    const int err = make_on_host(t, slot, owned, count);
    free(owned);
    return err;
}

static int make_slots(struct trainer *t)
{
    int err = 0;

    for (int i = 0; !err && i < t->engine->stage_count; i++) {
        err = make_squares(t, i);
        if (!err)
            err = make_optimizer(t, i);
    }
    return err;
}

static int make_buffers(struct trainer *t)
{
    size_t bytes = (size_t)t->config.sequences * (size_t)t->engine->config.context;

    t->sums = calloc(t->sums_len, sizeof(double));
    t->all_sums = calloc(t->sums_len * (size_t)t->ranks, sizeof(double));
    t->batch.tokens = malloc(bytes);
    t->batch.labels = malloc(bytes);
    t->paces = calloc((size_t)t->ranks, sizeof(*t->paces));
    return t->sums && t->all_sums && t->paces && t->batch.tokens && t->batch.labels ? 0 : DP_ENOMEM;
}

int trainer_init(struct trainer *t, const struct trainer_config *config, const struct data *data,
                 struct engine *engine)
{
    struct dp_comm *comm = config->all ? config->all : engine->comm;

    *t = (struct trainer){
        .config = *config,
        .data = data,
        .engine = engine,
        .comm = comm,
        .ranks = comm ? dp_comm_size(comm) : 1,
        .share = 1,
        .groups = (size_t)engine->config.layers + 2,
        .columns = config->kind == DATA_PARALLEL_MIX ? (size_t)engine->replica.count : 1};
    t->sums_len = (size_t)engine->microbatches + t->columns * t->groups + PACE_VALUES;
    int err = make_buffers(t);
    if (!err)
        err = data_parallel_init(&t->replicas,
                                 &(struct data_parallel_config){.kind = config->kind,
                                                                .all = comm,
                                                                .data = config->data,
                                                                .graph = config->graph,
                                                                .how = config->how,
                                                                .optimizer = trainer_optimizer(
                                                                    t->config.decay)},
                                 engine);
    if (!err)
        err = make_slots(t);
    if (!err)
        err = late_init(t, update_slot);
    if (err)
        trainer_fini(t);
    return err;
}

void trainer_fini(struct trainer *t)
{
    data_parallel_fini(&t->replicas);
    late_fini(t);
    for (int i = 0; i < DP_MAX_SLOTS; i++) {
        dp_optimizer_free(t->optimizers[i]);
        dp_offload_optimizer_free(t->in_files[i]);
    }
    free(t->in_group);
    free(t->squares);
    free(t->batch.labels);
    free(t->batch.tokens);
    free(t->paces);
    free(t->all_sums);
    free(t->sums);
    *t = (struct trainer){0};
}
