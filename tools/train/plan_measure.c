/* SPDX-License-Identifier: Apache-2.0 */
#include "train/plan_measure.h"

#include "train/gpt.h"

#include <dualpipe/pipeline.h>

#include <stdlib.h>
#include <time.h>

enum { RUNS = 5 };

/* One layer as a stage of a pipeline that has a stage for each. */
struct layer {
    struct gpt_stage *stage;
    struct dp_stage_call call;
    DLTensor in, out, gin, gout, labels;
    int64_t label_shape[2];
};

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* A tensor of a border, zero. */
static int make_tensor(struct dp_border *border, DLTensor *t)
{
    struct dp_tensor_spec *spec = &border->tensors[0];
    size_t count = 1;

    for (int i = 0; i < spec->ndim; i++)
        count *= (size_t)spec->shape[i];
    *t = (DLTensor){calloc(count, (size_t)spec->dtype.bits / 8), {kDLCPU, 0}, spec->ndim,
                    spec->dtype, spec->shape, NULL, 0};
    return t->data ? 0 : DP_ENOMEM;
}

static int layer_init(struct layer *l, const struct gpt_config *c, int i, struct dp_border *borders)
{
    int err = gpt_stage_new(c, i, c->layers + 2, &l->stage);

    if (!err)
        err = make_tensor(&borders[i], &l->in);
    if (!err)
        err = make_tensor(&borders[i + 1], &l->out);
    if (!err)
        err = make_tensor(&borders[i], &l->gin);
    if (!err)
        err = make_tensor(&borders[i + 1], &l->gout);
    if (err)
        return err;
    l->label_shape[0] = c->batch;
    l->label_shape[1] = config_rows(c);
    l->labels = (DLTensor){calloc((size_t)c->batch, (size_t)config_rows(c)), {kDLCPU, 0}, 2,
                           {kDLUInt, 8, 1}, l->label_shape, NULL, 0};
    l->call = (struct dp_stage_call){.stage = i, .training = true, .in = &l->in, .gout = &l->gout,
                                     .grads = l->stage->grads_list,
                                     .random = dp_random_key(c->seed, 0, (uint32_t)i, 0),
                                     .save = calloc(1, l->stage->save_bytes + 1)};
    return l->labels.data && l->call.save ? 0 : DP_ENOMEM;
}

static void layer_fini(struct layer *l)
{
    free(l->in.data);
    free(l->out.data);
    free(l->gin.data);
    free(l->gout.data);
    free(l->labels.data);
    free(l->call.save);
    gpt_stage_free(l->stage);
}

static void note_least(double *least, double ns)
{
    if (*least <= 0 || ns < *least)
        *least = ns;
}

/* F, I and W once; the head's with the loss. */
static int run_once(struct layer *l, struct layer_times *times)
{
    const struct dp_stage_ops *ops = &gpt_stage_ops;
    const bool last = l->stage->has_head;
    double loss, at[4] = {now_ns()};
    int32_t count;
    int err = ops->forward(l->stage, &l->call, &l->in, &l->out);

    if (!err && last)
        err = gpt_loss_ops.loss(NULL, &l->call, &l->out, &l->labels, &loss, 1, &count);
    at[1] = now_ns();
    if (!err && last)
        err = gpt_loss_ops.loss_backward(NULL, &l->call, &l->out, &l->labels, 1, &l->gout);
    if (!err)
        err = ops->backward(l->stage, &l->call, &l->gout, &l->gin, DP_BACKWARD_INPUT);
    at[2] = now_ns();
    if (!err)
        err = ops->weight(l->stage, &l->call);
    at[3] = now_ns();
    note_least(&times->f_ns, at[1] - at[0]);
    note_least(&times->i_ns, at[2] - at[1]);
    note_least(&times->w_ns, at[3] - at[2]);
    return err;
}

static int measure_layer(const struct gpt_config *c, int i, struct dp_border *borders,
                         struct layer_times *times)
{
    struct layer l = {0};
    int err = layer_init(&l, c, i, borders);

    *times = (struct layer_times){0};
    for (int run = 0; run < RUNS && !err; run++)
        err = run_once(&l, times);
    layer_fini(&l);
    return err;
}

int plan_measure(const struct gpt_config *config, struct layer_times *times)
{
    const int layers = config->layers + 2;
    struct gpt_config c = *config;
    int32_t *blocks = calloc((size_t)layers, sizeof(*blocks));
    struct dp_border *borders = calloc((size_t)layers + 1, sizeof(*borders));
    int err = blocks && borders ? 0 : DP_ENOMEM;

    for (int i = 1; i <= config->layers && !err; i++)
        blocks[i] = 1;
    c.blocks = blocks;
    if (!err)
        gpt_borders(&c, layers, borders);
    for (int i = 0; i < layers && !err; i++)
        err = measure_layer(&c, i, borders, &times[i]);
    free(borders);
    free(blocks);
    return err;
}
