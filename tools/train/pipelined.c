/* SPDX-License-Identifier: Apache-2.0
 *
 * pipelined.c - a step through dp_pipeline: how a model, a schedule and a communicator are put
 * together. One pipeline trains and evaluates.
 */
#include "train/engine.h"

#include <dualpipe/optimizer.h>

#include <stdlib.h>
#include <string.h>

struct pipelined {
    struct engine base;
    struct dp_border *borders; /* [stages + 1] */
    struct dp_pipeline *pipeline;
    const struct dp_schedule *forward;
};

/* ---- a step -------------------------------------------------------------------------------- */

/* The part of the batch that flows in a slot's stream begins at this micro-batch. */
static size_t first_mb(const struct engine *e, const struct dp_slot *slot)
{
    return (size_t)engine_first_mb(e) + (size_t)slot->stream * (size_t)e->schedule->mb_per_stream;
}

/* A stream's micro-batches from first on, as views; a sequence has `len` of the bytes. */
static int split_bytes(const struct engine *e, const struct dp_schedule *s, size_t first,
                       uint8_t *bytes, int len, struct dp_microbatches **out)
{
    const struct gpt_config *c = &e->config;
    int64_t shape[] = {(int64_t)s->mb_per_stream * c->batch, len};
    bytes += first * (size_t)c->batch * (size_t)len;
    const DLTensor all = {bytes, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&all)});

    return dp_split(&args, NULL, &(struct dp_split_options){.count = s->mb_per_stream}, out);
}

static int run(struct engine *e, const struct dp_schedule *s, const struct batch *batch,
               double *losses)
{
    struct pipelined *p = (struct pipelined *)e;
    struct dp_microbatches *tokens = NULL, *labels = NULL;
    struct dp_step step = {.schedule = s};
    int err = 0;

    for (int i = 0; i < dp_schedule_slot_count(s, engine_rank(e)) && !err; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, engine_rank(e), i);
        size_t first = first_mb(e, slot);
        if (dp_slot_is_first(slot))
            err = split_bytes(e, s, first, batch->tokens, e->config.context, &tokens);
        if (dp_slot_is_last(slot) && !err)
            err = split_bytes(e, s, first, batch->labels, e->config.context, &labels);
        if (dp_slot_is_last(slot))
            step.losses = losses + first;
    }
    dp_recorder_enable(e->recorder, !s->forward_only);
    step.inputs = tokens;
    step.labels = labels;
    if (!err)
        err = dp_pipeline_step(p->pipeline, &step);
    dp_microbatches_free(tokens);
    dp_microbatches_free(labels);
    return err;
}

static int train(struct engine *e, const struct batch *batch, double *losses)
{
    return run(e, e->schedule, batch, losses);
}

static int evaluate(struct engine *e, const struct batch *batch, double *losses)
{
    return run(e, ((struct pipelined *)e)->forward, batch, losses);
}

/* ---- all weights on rank 0 ------------------------------------------------------------------- */

/* The first rank that holds a stage, in which slot, and which process that is; copies are all
 * equal. */
struct holder {
    int rank, slot, process;
};

static struct holder holder_of(const struct dp_schedule *s, int stage)
{
    struct holder h = {0};

    while (h.slot == dp_schedule_slot_count(s, h.rank) ||
           dp_schedule_slot(s, h.rank, h.slot)->stage != stage)
        if (++h.slot > dp_schedule_slot_count(s, h.rank))
            h = (struct holder){.rank = h.rank + 1};
    h.process = s->group_rank[h.rank];
    return h;
}

static void read_weights(const struct gpt_stage *g, real *out)
{
    for (size_t i = 0; i < g->params.tensors_len; i++)
        memcpy(out + g->params.tensors[i].offset, gpt_data(&g->tensors[i].value),
               tensor_count(&g->params.tensors[i]) * sizeof(real));
}

static int send_weights(struct engine *e, const struct gpt_stage *g, int stage)
{
    const size_t bytes = g->params.count * sizeof(real);
    real *weights = malloc(bytes);
    struct dp_request req;
    int err = weights ? 0 : DP_ENOMEM;

    if (!err)
        read_weights(g, weights);
    if (!err)
        err = dp_comm_isend(e->comm, 0, DP_CHANNEL_REDUCE, (uint64_t)stage, weights, bytes, &req);
    if (!err)
        err = dp_comm_wait(e->comm, &req, 0);
    free(weights);
    return err;
}

static int receive_weights(struct engine *e, int from, int stage, real *weights, size_t count)
{
    struct dp_request req;
    int err = dp_comm_irecv(e->comm, from, DP_CHANNEL_REDUCE, (uint64_t)stage, weights,
                            count * sizeof(real), &req);

    return err ? err : dp_comm_wait(e->comm, &req, from);
}

static int gather(struct engine *e, real *weights)
{
    const struct dp_schedule *s = e->schedule;
    size_t at = 0;
    int err = 0;

    for (int stage = 0; !err && stage < s->stages; stage++) {
        size_t count = gpt_stage_size(&e->config, stage, s->stages).param_count;
        struct holder h = holder_of(s, stage);
        if (weights && h.process == 0)
            read_weights(e->stages[h.slot], weights + at);
        else if (weights)
            err = receive_weights(e, h.process, stage, weights + at, count);
        else if (h.rank == engine_rank(e))
            err = send_weights(e, e->stages[h.slot], stage);
        at += count;
    }
    return err;
}

static int sum_tied(struct engine *e)
{
    return dp_pipeline_sum_tied(((struct pipelined *)e)->pipeline);
}

static int broadcast_tied(struct engine *e)
{
    return dp_pipeline_broadcast_tied(((struct pipelined *)e)->pipeline);
}

static bool owns(const struct engine *e, int slot, int tensor)
{
    return dp_pipeline_owns(((const struct pipelined *)e)->pipeline, slot, tensor);
}

static void seek(struct engine *e, uint64_t step)
{
    dp_pipeline_seek(((struct pipelined *)e)->pipeline, step);
}

/* ---- making one ---------------------------------------------------------------------------- */

static void pipelined_free(struct engine *e)
{
    struct pipelined *p = (struct pipelined *)e;

    dp_pipeline_free(p->pipeline);
    dp_recorder_free(e->recorder);
    free(p->borders);
    for (int i = 0; i < e->stage_count; i++)
        gpt_stage_free(e->stages[i]);
    free(p);
}

static const struct engine_ops pipelined_ops = {
    .name = "pipelined", .train = train, .evaluate = evaluate, .gather = gather,
    .sum_tied = sum_tied, .broadcast_tied = broadcast_tied, .owns = owns, .seek = seek,
    .free = pipelined_free};

static int make_stage(struct pipelined *p, int stage, int i)
{
    struct engine *e = &p->base;

    return gpt_stage_new(&e->config, stage, e->schedule->stages, &e->stages[i]);
}

static int make_stages(struct pipelined *p, int rank, int (*make)(struct pipelined *, int, int))
{
    struct engine *e = &p->base;

    for (int i = 0; i < dp_schedule_slot_count(e->schedule, rank); i++) {
        const struct dp_slot *slot = dp_schedule_slot(e->schedule, rank, i);
        int err = make(p, slot->stage, i);
        e->stage_count += e->stages[i] != NULL;
        if (err)
            return err;
        e->second_copy[i] = slot->stream > 0;
    }
    return 0;
}

static int make_borders(struct pipelined *p)
{
    int stages = p->base.schedule->stages;

    p->borders = calloc((size_t)stages + 1, sizeof(*p->borders));
    if (!p->borders)
        return DP_ENOMEM;
    gpt_borders(&p->base.config, stages, p->borders);
    return 0;
}

/* stages[DP_MAX_SLOTS] is what the config refers to. */
static struct dp_pipeline_config describe(const struct pipelined *p,
                                          const struct pipelined_config *config,
                                          struct dp_stage *stages)
{
    for (int i = 0; i < p->base.stage_count; i++)
        stages[i] = gpt_stage_view(p->base.stages[i]);
    return (struct dp_pipeline_config){
        .schedule = config->training,
        .also = &p->forward,
        .also_count = 1,
        .comm = p->base.comm,
        .stages = stages,
        .borders = p->borders,
        .labels = &p->borders[0],
        .loss = &gpt_loss_ops,
        .loss_scale = engine_loss_scale(&p->base),
        .seed = p->base.config.seed,
        .fixed_order = !config->any_order,
        .order_blocks = config->order_blocks,
        .first_mb = engine_first_mb(&p->base),
        .execution = config->by_messages ? DP_EXECUTE_MESSAGES : DP_EXECUTE_LIST,
        .reduce = config->reduce,
        .reduce_user = config->reduce_user,
        .recorder = p->base.recorder,
    };
}

static int make_pipeline(struct pipelined *p, const struct pipelined_config *config)
{
    struct dp_stage stages[DP_MAX_SLOTS];
    struct dp_pipeline_memory memory;
    const struct dp_pipeline_config described = describe(p, config, stages);
    int err = dp_pipeline_new(&described, &p->pipeline);

    if (err)
        return err;
    dp_pipeline_memory(p->pipeline, &memory);
    p->base.pipeline_bytes = memory.total_bytes - memory.evicted_bytes;
    return 0;
}

static int make_all(struct pipelined *p, const struct pipelined_config *config)
{
    struct engine *e = &p->base;
    int err = make_stages(p, engine_rank(e), make_stage);

    if (!err)
        err = make_borders(p);
    if (!err)
        err = dp_recorder_new(dp_schedule_count(e->schedule, engine_rank(e)), 2, &e->recorder);
    return err ? err : make_pipeline(p, config);
}

static void take_config(struct pipelined *p, const struct pipelined_config *config)
{
    p->base = (struct engine){
        .ops = &pipelined_ops,
        .config = config->model,
        .replica = config->replica,
        .comm = config->comm,
        .schedule = config->training,
        .reduces = config->reduce,
    };
    if (!p->base.replica.count)
        p->base.replica.count = 1;
    p->base.microbatches = config->training->microbatches * p->base.replica.count;
    p->forward = config->forward;
}

int pipelined_new(const struct pipelined_config *config, struct engine **out)
{
    struct pipelined *p = calloc(1, sizeof(*p));
    if (!p)
        return DP_ENOMEM;

    take_config(p, config);
    int err = make_all(p, config);
    if (err) {
        pipelined_free(&p->base);
        return err;
    }
    *out = &p->base;
    return 0;
}
