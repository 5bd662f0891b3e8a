/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt_sequential.c - the baseline: one micro-batch after the other through the whole model. This is
 * what every pipelined run must be equal to, so it shares nothing with the pipeline but the model.
 */
#include "gpt_sequential.h"

#include "base/fp16.h"

#include <stdlib.h>
#include <string.h>

static void bfloat16_round(size_t count, const real *from, real *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (real)dp_bfloat16_load(dp_bfloat16_store((float)from[i]));
}

static void bfloat16_add_rounded(size_t count, const real *x, real *sum)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = (real)dp_bfloat16_load(dp_bfloat16_store((float)(sum[i] + x[i])));
}

/* The gradients of one block; those of the first are the model's own. */
struct block_grads {
    real *grads;
    DLTensor *tensors, **list;
};

struct sequential {
    struct engine base;
    struct gpt_stage *model; /* base.stages[0] */
    uint64_t step;
    real *save, *logits, *d_logits;
    real *weights;                 /* bf16: the model's own, which it does not compute with; */
    real *rounded;                 /* what it computes with; */
    struct block_grads scratch;    /* the gradients of one micro-batch */
    int block_count;            /* of fixed order */
    struct block_grads *blocks; /* [block_count] where each block of micro-batches is summed */
};

/* A micro-batch's part of the batch and of the model's output, as the callbacks see them. */
struct views {
    int64_t shape[3], tokens_shape[2];
    DLTensor tokens, labels, logits, d_logits;
};

/* Block b begins at micro-batch b * M / blocks, rounded down (pipeline.h); M and mb are this
 * replica's. Where replicas hold whole blocks, these are the blocks of the batch of all replicas.
 */
static int block_of(const struct sequential *s, int mb)
{
    return ((mb + 1) * s->block_count - 1) / engine_own_microbatches(&s->base);
}

/* The place of a replica's micro-batch in the batch of all. */
static int global_mb(const struct sequential *s, int mb)
{
    return engine_first_mb(&s->base) + mb;
}

static void views_init(struct views *v, const struct sequential *s, const struct batch *batch,
                       int mb)
{
    const struct gpt_config *c = &s->base.config;
    size_t at = (size_t)global_mb(s, mb) * (size_t)c->batch;
    const DLTensor bytes = {NULL, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, v->shape, NULL, 0};
    const DLDataType dtype_real = {kDLFloat, 8 * sizeof(real), 1};
    const DLTensor reals = {NULL, {kDLCPU, 0}, 3, dtype_real, v->shape, NULL, 0};

    memcpy(v->shape, (int64_t[]){c->batch, c->context, GPT_BYTES}, sizeof(v->shape));
    memcpy(v->tokens_shape, (int64_t[]){c->batch, c->context}, sizeof(v->tokens_shape));
    v->tokens = v->labels = bytes;
    v->logits = v->d_logits = reals;
    v->tokens.shape = v->tokens_shape;
    v->tokens.data = batch->tokens + at * (size_t)c->context;
    v->labels.data = batch->labels + at * (size_t)c->context;
    v->logits.data = s->logits;
    v->d_logits.data = s->d_logits;
}

/* bf16: from now on the model computes with rounded weights. */
static void begin_rounded(struct sequential *s)
{
    if (!s->rounded)
        return;
    s->weights = s->model->weights;
    bfloat16_round(s->model->params.count, s->weights, s->rounded);
    s->model->weights = s->rounded;
}

static void end_rounded(struct sequential *s)
{
    if (s->rounded)
        s->model->weights = s->weights;
}

static struct dp_stage_call call_of(const struct sequential *s, const struct views *v, int mb,
                                    bool training)
{
    return (struct dp_stage_call){
        .mb = mb,
        .mb_global = global_mb(s, mb),
        .step = s->step,
        .training = training,
        .random = {.key = s->base.config.seed},
        .save = s->save,
        .in = &v->tokens,
        .grads = s->rounded ? s->scratch.list : s->blocks[block_of(s, mb)].list,
    };
}

static int forward(struct sequential *s, struct views *v, const struct dp_stage_call *call,
                   double *values)
{
    int32_t count;
    int err = gpt_stage_ops.forward(s->model, call, &v->tokens, &v->logits);

    return err ? err : gpt_loss_ops.loss(NULL, call, &v->logits, &v->labels, values, 1, &count);
}

static int backward(struct sequential *s, struct views *v, const struct dp_stage_call *call)
{
    int err = gpt_loss_ops.loss_backward(NULL, call, &v->logits, &v->labels,
                                         engine_loss_scale(&s->base), &v->d_logits);

    if (!err && s->rounded)
        memset(s->scratch.grads, 0, s->model->params.count * sizeof(real));
    if (!err)
        err = gpt_stage_ops.backward(s->model, call, &v->d_logits, NULL, DP_BACKWARD_FULL);
    if (!err && s->rounded)
        bfloat16_add_rounded(s->model->params.count, s->scratch.grads,
                             s->blocks[block_of(s, call->mb)].grads);
    return err;
}

static void clear_blocks(struct sequential *s)
{
    for (int b = 1; b < s->block_count; b++)
        memset(s->blocks[b].grads, 0, s->model->params.count * sizeof(real));
}

/* Pairwise, so that every way to hold blocks on ranks and replicas gives the same sum. */
static void sum_blocks(struct sequential *s)
{
    for (int step = 1; step < s->block_count; step *= 2)
        for (int b = 0; b + step < s->block_count; b += 2 * step)
            (s->rounded ? bfloat16_add_rounded : add)(s->model->params.count,
                                                      s->blocks[b + step].grads,
                                                      s->blocks[b].grads);
}

static int pass(struct sequential *s, const struct batch *batch, bool training, double *losses)
{
    int err = 0;

    begin_rounded(s);
    for (int mb = 0; mb < engine_own_microbatches(&s->base) && !err; mb++) {
        struct views v;
        views_init(&v, s, batch, mb);
        struct dp_stage_call call = call_of(s, &v, mb, training);
        err = forward(s, &v, &call, losses + global_mb(s, mb));
        if (!err && training)
            err = backward(s, &v, &call);
    }
    end_rounded(s);
    return err;
}

/* Gradients are added up in the order that pipeline.h defines for fixed_order. */
static int train(struct engine *e, const struct batch *batch, double *losses)
{
    struct sequential *s = (struct sequential *)e;

    clear_blocks(s);
    int err = pass(s, batch, true, losses);
    if (err)
        return err;
    sum_blocks(s);
    s->step++;
    return 0;
}

static int evaluate(struct engine *e, const struct batch *batch, double *losses)
{
    return pass((struct sequential *)e, batch, false, losses);
}

static int gather(struct engine *e, real *weights)
{
    struct sequential *s = (struct sequential *)e;

    memcpy(weights, s->model->weights, s->model->params.count * sizeof(real));
    return 0;
}

/* Where the tied head's values or gradients are; those of the table, which owns them, come first. */
static real *head_in(const struct gpt_stage *g, real *base)
{
    const struct tensor *t = g->params.tensors;

    while (!tensor_is_copy(t))
        t++;
    return base + t->offset;
}

static int sum_tied(struct engine *e)
{
    struct gpt_stage *g = ((struct sequential *)e)->model;
    const size_t count = tensor_count(&g->params.tensors[TABLE]);
    real *head = head_in(g, g->grads);

    add(count, head, g->grads + g->params.tensors[TABLE].offset);
    memset(head, 0, count * sizeof(real));
    return 0;
}

static int broadcast_tied(struct engine *e)
{
    struct gpt_stage *g = ((struct sequential *)e)->model;
    const struct tensor *table = &g->params.tensors[TABLE];

    memcpy(head_in(g, g->weights), g->weights + table->offset, tensor_count(table) * sizeof(real));
    return 0;
}

static bool owns(const struct engine *e, int slot, int tensor)
{
    return !tensor_is_copy(&e->stages[slot]->params.tensors[tensor]);
}

static void seek(struct engine *e, uint64_t step)
{
    ((struct sequential *)e)->step = step;
}

static int block_init(struct sequential *s, struct block_grads *block)
{
    size_t len = s->model->params.tensors_len;

    block->grads = block == s->blocks ? s->model->grads
                                      : calloc(s->model->params.count, sizeof(real));
    block->tensors = calloc(len, sizeof(*block->tensors));
    block->list = calloc(len, sizeof(DLTensor *));
    if (!block->grads || !block->tensors || !block->list)
        return DP_ENOMEM;
    gpt_grads_view(s->model, block->grads, block->tensors, block->list);
    return 0;
}

static void block_fini(struct sequential *s, struct block_grads *block)
{
    if (block != s->blocks)
        free(block->grads);
    free(block->tensors);
    free(block->list);
}

static void sequential_free(struct engine *e)
{
    struct sequential *s = (struct sequential *)e;

    for (int b = 0; b < s->block_count && s->blocks; b++)
        block_fini(s, &s->blocks[b]);
    block_fini(s, &s->scratch);
    free(s->rounded);
    free(s->blocks);
    gpt_stage_free(s->model);
    free(s->d_logits);
    free(s->logits);
    free(s->save);
    free(s);
}

static const struct engine_ops sequential_ops = {
    .name = "sequential",
    .train = train,
    .evaluate = evaluate,
    .gather = gather,
    .sum_tied = sum_tied,
    .broadcast_tied = broadcast_tied,
    .owns = owns,
    .seek = seek,
    .free = sequential_free,
};

static int sequential_alloc(struct sequential *s)
{
    const struct gpt_config *c = &s->base.config;
    size_t logits = (size_t)c->batch * (size_t)c->context * (size_t)GPT_BYTES;

    int err = gpt_stage_new(c, 0, 1, &s->model);
    if (err)
        return err;
    s->save = malloc(s->model->save_bytes);
    s->logits = calloc(logits, sizeof(real));
    s->d_logits = calloc(logits, sizeof(real));
    s->blocks = calloc((size_t)s->block_count, sizeof(*s->blocks));
    if (!s->save || !s->logits || !s->d_logits || !s->blocks)
        return DP_ENOMEM;
    for (int b = 0; b < s->block_count && !err; b++)
        err = block_init(s, &s->blocks[b]);
    return err;
}

static int rounded_alloc(struct sequential *s)
{
    s->rounded = malloc(s->model->params.count * sizeof(real));
    return s->rounded ? block_init(s, &s->scratch) : DP_ENOMEM;
}

int sequential_new(const struct sequential_config *config, struct engine **out)
{
    struct sequential *s = calloc(1, sizeof(*s));
    if (!s)
        return DP_ENOMEM;

    s->base = (struct engine){
        .ops = &sequential_ops,
        .config = config->model,
        .microbatches = config->microbatches,
        .replica = config->replica,
        .stage_count = 1,
    };
    if (!s->base.replica.count)
        s->base.replica.count = 1;
    s->block_count = config->order_blocks;
    int err = sequential_alloc(s);
    if (!err && config->bf16)
        err = rounded_alloc(s);
    if (err) {
        sequential_free(&s->base);
        return err;
    }
    s->base.stages[0] = s->model;
    *out = &s->base;
    return 0;
}
