/* SPDX-License-Identifier: Apache-2.0
 *
 * sequential.c - the baseline: one micro-batch after the other through the whole model. This is
 * what every pipelined run must be equal to, so it shares nothing with the pipeline but the model.
 */
#include "train/engine.h"

#include <stdlib.h>
#include <string.h>

struct sequential {
    struct engine base;
    struct gpt_stage *model; /* base.stages[0] */
    uint64_t step;
    real *save, *logits, *d_logits;
    real *late_grads; /* of the later half of the micro-batches */
    DLTensor late;
    DLTensor *late_list[1];
};

/* A micro-batch's part of the batch and of the model's output, as the callbacks see them. */
struct views {
    int64_t shape[3];
    DLTensor tokens, labels, logits, d_logits;
};

static void views_init(struct views *v, const struct sequential *s, const struct batch *batch,
                       int mb)
{
    const struct gpt_config *c = &s->base.config;
    size_t at = (size_t)mb * (size_t)c->batch * (size_t)c->context;
    const DLTensor bytes = {NULL, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, v->shape, NULL, 0};
    const DLDataType dtype_real = {kDLFloat, 8 * sizeof(real), 1};
    const DLTensor reals = {NULL, {kDLCPU, 0}, 3, dtype_real, v->shape, NULL, 0};

    memcpy(v->shape, (int64_t[]){c->batch, c->context, GPT_BYTES}, sizeof(v->shape));
    v->tokens = v->labels = bytes;
    v->logits = v->d_logits = reals;
    v->tokens.data = batch->tokens + at;
    v->labels.data = batch->labels + at;
    v->logits.data = s->logits;
    v->d_logits.data = s->d_logits;
}

static struct dp_stage_call call_of(const struct sequential *s, const struct views *v, int mb,
                                    bool training)
{
    bool late = mb >= s->base.microbatches / 2;

    return (struct dp_stage_call){
        .mb = mb,
        .mb_global = mb,
        .step = s->step,
        .training = training,
        .random = {.key = s->base.config.seed},
        .save = s->save,
        .in = &v->tokens,
        .grads = late ? s->late_list : s->model->grads_list,
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
                                         1.0 / s->base.microbatches, &v->d_logits);

    return err ? err
               : gpt_stage_ops.backward(s->model, call, &v->d_logits, NULL, DP_BACKWARD_FULL);
}

/* Gradients are added up in the order that pipeline.h defines: the sum of the earlier half of the
 * micro-batches plus the sum of the later half. */
static int train(struct engine *e, const struct batch *batch, double *losses)
{
    struct sequential *s = (struct sequential *)e;
    size_t count = s->model->params.count;

    memset(s->late_grads, 0, count * sizeof(real));
    for (int mb = 0; mb < e->microbatches; mb++) {
        struct views v;
        views_init(&v, s, batch, mb);
        struct dp_stage_call call = call_of(s, &v, mb, true);
        int err = forward(s, &v, &call, losses + mb);
        if (!err)
            err = backward(s, &v, &call);
        if (err)
            return err;
    }
    add(count, s->late_grads, s->model->grads);
    s->step++;
    return 0;
}

static int evaluate(struct engine *e, const struct batch *batch, double *losses)
{
    struct sequential *s = (struct sequential *)e;

    for (int mb = 0; mb < e->microbatches; mb++) {
        struct views v;
        views_init(&v, s, batch, mb);
        struct dp_stage_call call = call_of(s, &v, mb, false);
        int err = forward(s, &v, &call, losses + mb);
        if (err)
            return err;
    }
    return 0;
}

static int gather(struct engine *e, real *weights)
{
    struct sequential *s = (struct sequential *)e;

    memcpy(weights, s->model->weights, s->model->params.count * sizeof(real));
    return 0;
}

static void sequential_free(struct engine *e)
{
    struct sequential *s = (struct sequential *)e;

    gpt_stage_free(s->model);
    free(s->late_grads);
    free(s->d_logits);
    free(s->logits);
    free(s->save);
    free(s);
}

static const struct engine_ops sequential_ops = {"sequential", train, evaluate, gather,
                                                 sequential_free};

static int sequential_alloc(struct sequential *s)
{
    const struct gpt_config *c = &s->base.config;
    size_t logits = (size_t)c->batch * (size_t)c->context * GPT_BYTES;

    int err = gpt_stage_new(c, 0, 1, &s->model);
    if (err)
        return err;
    s->save = malloc(s->model->save_bytes);
    s->logits = calloc(logits, sizeof(real));
    s->d_logits = calloc(logits, sizeof(real));
    s->late_grads = calloc(s->model->params.count, sizeof(real));
    return s->save && s->logits && s->d_logits && s->late_grads ? 0 : DP_ENOMEM;
}

int sequential_new(const struct gpt_config *config, int microbatches, struct engine **out)
{
    struct sequential *s = calloc(1, sizeof(*s));
    if (!s)
        return DP_ENOMEM;

    s->base = (struct engine){
        .ops = &sequential_ops, .config = *config, .microbatches = microbatches, .stage_count = 1};
    int err = sequential_alloc(s);
    if (err) {
        sequential_free(&s->base);
        return err;
    }
    s->base.stages[0] = s->model;
    s->late = s->model->grads_tensor;
    s->late.data = s->late_grads;
    s->late_list[0] = &s->late;
    *out = &s->base;
    return 0;
}
