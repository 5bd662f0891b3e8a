/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt_sequential.c - the baseline: one micro-batch after the other through the whole model. This is
 * what every pipelined run must be equal to, so it shares nothing with the pipeline but the model.
 */
#include "gpt_sequential.h"

#include <stdlib.h>
#include <string.h>

/* The gradients of one block; those of the first are the model's own. */
struct block_grads {
    DLTensor *tensors, **list; /* [parameters] */
};

/* A micro-batch's part of the batch and of the model's output, as the callbacks see them. */
struct views {
    int64_t shape[3], tokens_shape[2];
    DLTensor tokens, labels, logits, d_logits;
};

/* Block b begins at micro-batch b * M / blocks, rounded down (pipeline.h). */
static int block_of(const struct sequential *s, int mb)
{
    return ((mb + 1) * s->block_count - 1) / s->microbatches;
}

static void views_init(struct views *v, const struct sequential *s, const struct batch *batch,
                       int mb)
{
    const struct gpt_config *c = &s->config;
    size_t at = (size_t)mb * (size_t)c->batch;
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

static struct dp_stage_call call_of(const struct sequential *s, const struct views *v, int mb,
                                    bool training)
{
    return (struct dp_stage_call){
        .mb = mb,
        .mb_global = mb,
        .step = s->step,
        .training = training,
        .save = s->save,
        .in = &v->tokens,
        .grads = s->blocks[block_of(s, mb)].list,
    };
}

static const struct dp_loss_ops *loss_of(const struct sequential *s)
{
    return gpt_layers_model(s->gpt)->loss;
}

static int forward(struct sequential *s, struct views *v, const struct dp_stage_call *call,
                   double *values)
{
    int32_t count;
    int err = s->model.ops->forward(s->model.user, call, &v->tokens, &v->logits);

    return err ? err : loss_of(s)->loss(NULL, call, &v->logits, &v->labels, values, 1, &count);
}

static int backward(struct sequential *s, struct views *v, const struct dp_stage_call *call)
{
    DLTensor none = {0}; /* tokens have no gradient */
    int err = loss_of(s)->loss_backward(NULL, call, &v->logits, &v->labels, 1.0 / s->microbatches,
                                        &v->d_logits);

    return err ? err
               : s->model.ops->backward(s->model.user, call, &v->d_logits, &none, DP_BACKWARD_FULL);
}

static size_t count_of(const struct sequential *s, int32_t parameter)
{
    return (size_t)dp_parameter_elements(&s->model.parameters[parameter]);
}

static void clear_blocks(struct sequential *s)
{
    for (int b = 1; b < s->block_count; b++)
        for (int32_t i = 0; i < s->model.parameter_count; i++)
            memset(s->blocks[b].tensors[i].data, 0, count_of(s, i) * sizeof(real));
}

/* Pairwise, so that every way to hold blocks on ranks and replicas gives the same sum. */
static void sum_blocks(struct sequential *s)
{
    for (int step = 1; step < s->block_count; step *= 2)
        for (int b = 0; b + step < s->block_count; b += 2 * step)
            for (int32_t i = 0; i < s->model.parameter_count; i++)
                compute_cpu.ops->add(&compute_cpu, count_of(s, i),
                                     s->blocks[b + step].tensors[i].data,
                                     s->blocks[b].tensors[i].data);
}

size_t sequential_read(const struct dp_stage *model, bool gradients, real *out)
{
    size_t at = 0;

    for (int32_t i = 0; i < model->parameter_count; i++) {
        const struct dp_parameter *p = &model->parameters[i];
        const size_t count = (size_t)dp_parameter_elements(p);
        memcpy(out + at, (gradients ? p->grad : p->value)->data, count * sizeof(real));
        at += count;
    }
    return at;
}

static int pass(struct sequential *s, const struct batch *batch, bool training, double *losses)
{
    int err = 0;

    for (int mb = 0; mb < s->microbatches && !err; mb++) {
        struct views v;
        views_init(&v, s, batch, mb);
        struct dp_stage_call call = call_of(s, &v, mb, training);
        err = forward(s, &v, &call, &losses[mb]);
        if (!err && training)
            err = backward(s, &v, &call);
    }
    return err;
}

/* Gradients are added up in the order that pipeline.h defines for fixed_order. */
int sequential_train(struct sequential *s, const struct batch *batch, double *losses)
{
    clear_blocks(s);
    int err = pass(s, batch, true, losses);
    if (err)
        return err;
    sum_blocks(s);
    s->step++;
    return 0;
}

int sequential_evaluate(struct sequential *s, const struct batch *batch, double *losses)
{
    return pass(s, batch, false, losses);
}

static int block_init(struct sequential *s, struct block_grads *block)
{
    const size_t len = (size_t)s->model.parameter_count;

    block->tensors = calloc(len, sizeof(*block->tensors));
    block->list = calloc(len, sizeof(DLTensor *));
    if (!block->tensors || !block->list)
        return DP_ENOMEM;
    for (size_t i = 0; i < len; i++) {
        block->tensors[i] = *s->model.parameters[i].grad;
        block->list[i] = &block->tensors[i];
        if (block != s->blocks)
            block->tensors[i].data = calloc(count_of(s, (int32_t)i), sizeof(real));
        if (!block->tensors[i].data)
            return DP_ENOMEM;
    }
    return 0;
}

static void block_fini(struct sequential *s, struct block_grads *block)
{
    for (int32_t i = 0; i < s->model.parameter_count && block->tensors && block != s->blocks; i++)
        free(block->tensors[i].data);
    free(block->tensors);
    free(block->list);
}

void sequential_free(struct sequential *s)
{
    for (int b = 0; b < s->block_count && s->blocks; b++)
        block_fini(s, &s->blocks[b]);
    free(s->blocks);
    dp_layers_free(s->layers);
    gpt_layers_free(s->gpt);
    free(s->d_logits);
    free(s->logits);
    free(s->save);
    free(s);
}

static int sequential_alloc(struct sequential *s, const struct gpt_config *c)
{
    size_t logits = (size_t)c->batch * (size_t)c->context * (size_t)GPT_BYTES;

    s->config = *c;
    int err = gpt_layers_new(c, NULL, false, &s->gpt);
    if (!err)
        err = dp_layers_new(&(struct dp_layers_config){.model = gpt_layers_model(s->gpt),
                                                       .rows = c->batch,
                                                       .seed = c->seed},
                            &s->layers);
    if (!err)
        err = dp_layers_add(s->layers, 0, c->layers + 2, &s->model);
    if (err)
        return err;
    s->save = malloc(s->model.save_bytes);
    s->logits = calloc(logits, sizeof(real));
    s->d_logits = calloc(logits, sizeof(real));
    s->blocks = calloc((size_t)s->block_count, sizeof(*s->blocks));
    if (!s->save || !s->logits || !s->d_logits || !s->blocks)
        return DP_ENOMEM;
    for (int b = 0; b < s->block_count && !err; b++)
        err = block_init(s, &s->blocks[b]);
    return err;
}

int sequential_new(const struct gpt_config *config, int microbatches, int order_blocks,
                   struct sequential **out)
{
    struct sequential *s = calloc(1, sizeof(*s));
    if (!s)
        return DP_ENOMEM;

    s->microbatches = microbatches;
    s->block_count = order_blocks;
    const int err = sequential_alloc(s, config);
    if (err)
        sequential_free(s);
    else
        *out = s;
    return err;
}
