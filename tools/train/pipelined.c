/* SPDX-License-Identifier: Apache-2.0
 *
 * pipelined.c - a step through dp_pipeline: how a model, a schedule and a communicator are put
 * together. There are two pipelines over the same stages, one to train and one to evaluate.
 */
#include "train/engine.h"

#include <dualpipe/pipeline.h>

#include <stdlib.h>
#include <string.h>

struct pipelined {
    struct engine base;
    struct dp_border *borders; /* [stages + 1] */
    struct dp_tensor_spec label;
    struct dp_pipeline *training, *forward;
    const struct dp_schedule *forward_schedule;
};

/* ---- a step -------------------------------------------------------------------------------- */

/* The pipeline rank of this process, which a placement may have mapped. */
static int rank_of(const struct engine *e)
{
    int rank = 0;

    while (e->comm && e->schedule->group_rank[rank] != e->comm->rank)
        rank++;
    return rank;
}

/* The part of the batch that flows in a slot's stream begins at this micro-batch. */
static size_t first_mb(const struct dp_schedule *s, const struct dp_slot *slot)
{
    return (size_t)slot->stream * (size_t)s->mb_per_stream;
}

static int run(struct engine *e, struct dp_pipeline *pipe, const struct dp_schedule *s,
               const struct batch *batch, double *losses)
{
    const struct gpt_config *c = &e->config;
    size_t mb_bytes = (size_t)c->batch * (size_t)c->context;
    int64_t shape[] = {(int64_t)s->mb_per_stream * c->batch, c->context};
    DLTensor tokens = {NULL, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0}, labels = tokens;
    const DLTensor *inputs[] = {&tokens};
    struct dp_step step = {0};

    for (int i = 0; i < s->slots_per_rank; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, rank_of(e), i);
        if (dp_slot_is_first(slot)) {
            tokens.data = batch->tokens + first_mb(s, slot) * mb_bytes;
            step.inputs = inputs;
        }
        if (dp_slot_is_last(slot)) {
            labels.data = batch->labels + first_mb(s, slot) * mb_bytes;
            step.label = &labels;
            step.losses = losses + first_mb(s, slot);
        }
    }
    return dp_pipeline_step(pipe, &step);
}

static int train(struct engine *e, const struct batch *batch, double *losses)
{
    struct pipelined *p = (struct pipelined *)e;
    return run(e, p->training, e->schedule, batch, losses);
}

static int evaluate(struct engine *e, const struct batch *batch, double *losses)
{
    struct pipelined *p = (struct pipelined *)e;
    return run(e, p->forward, p->forward_schedule, batch, losses);
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

    while (dp_schedule_slot(s, h.rank, h.slot)->stage != stage)
        if (++h.slot == s->slots_per_rank)
            h = (struct holder){.rank = h.rank + 1};
    h.process = s->group_rank[h.rank];
    return h;
}

static int send_weights(struct engine *e, const struct gpt_stage *g, int stage)
{
    struct dp_request req;
    int err = dp_comm_isend(e->comm, 0, DP_CHANNEL_REDUCE, (uint64_t)stage, g->weights,
                            g->params.count * sizeof(real), &req);

    return err ? err : dp_comm_wait(e->comm, &req, 0);
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
            memcpy(weights + at, e->stages[h.slot]->weights, count * sizeof(real));
        else if (weights)
            err = receive_weights(e, h.process, stage, weights + at, count);
        else if (h.rank == rank_of(e))
            err = send_weights(e, e->stages[h.slot], stage);
        at += count;
    }
    return err;
}

/* ---- making one ---------------------------------------------------------------------------- */

static void pipelined_free(struct engine *e)
{
    struct pipelined *p = (struct pipelined *)e;

    dp_pipeline_free(p->forward);
    dp_pipeline_free(p->training);
    dp_recorder_free(e->recorder);
    free(p->borders);
    for (int i = 0; i < e->stage_count; i++)
        gpt_stage_free(e->stages[i]);
    free(p);
}

static const struct engine_ops pipelined_ops = {"pipelined", train, evaluate, gather,
                                                pipelined_free};

static int make_stages(struct engine *e)
{
    for (int i = 0; i < e->schedule->slots_per_rank; i++) {
        const struct dp_slot *slot = dp_schedule_slot(e->schedule, rank_of(e), i);
        int err = gpt_stage_new(&e->config, slot->stage, e->schedule->stages, &e->stages[i]);
        if (err)
            return err;
        e->second_copy[i] = slot->stream > 0;
        e->stage_count++;
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
    p->label = p->borders[0].tensors[0];
    return 0;
}

static int make_pipeline(struct pipelined *p, const struct dp_schedule *schedule, bool any_order,
                         struct dp_pipeline **out)
{
    struct dp_stage stages[DP_MAX_SLOTS];

    for (int i = 0; i < p->base.stage_count; i++)
        stages[i] = gpt_stage_view(p->base.stages[i]);
    return dp_pipeline_new(&(struct dp_pipeline_config){
        .schedule = schedule,
        .comm = p->base.comm,
        .stages = stages,
        .borders = p->borders,
        .label = &p->label,
        .loss = &gpt_loss_ops,
        .loss_scale = 1.0 / p->base.microbatches,
        .seed = p->base.config.seed,
        .fixed_order = !any_order && !schedule->forward_only,
        .recorder = schedule->forward_only ? NULL : p->base.recorder,
    }, out);
}

static int make_all(struct pipelined *p, const struct pipelined_config *config)
{
    struct engine *e = &p->base;
    int err = make_stages(e);

    if (!err)
        err = make_borders(p);
    if (!err)
        err = dp_recorder_new(dp_schedule_count(e->schedule, rank_of(e)), 2, &e->recorder);
    if (!err)
        err = make_pipeline(p, config->training, config->any_order, &p->training);
    if (!err)
        err = make_pipeline(p, config->forward, config->any_order, &p->forward);
    return err;
}

int pipelined_new(const struct pipelined_config *config, struct engine **out)
{
    struct pipelined *p = calloc(1, sizeof(*p));
    if (!p)
        return DP_ENOMEM;

    p->base = (struct engine){
        .ops = &pipelined_ops,
        .config = config->model,
        .microbatches = config->training->microbatches,
        .comm = config->comm,
        .schedule = config->training,
    };
    p->forward_schedule = config->forward;
    int err = make_all(p, config);
    if (err) {
        pipelined_free(&p->base);
        return err;
    }
    *out = &p->base;
    return 0;
}
