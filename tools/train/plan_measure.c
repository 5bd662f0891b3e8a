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

struct layer_samples {
    double f_ns[RUNS], i_ns[RUNS], w_ns[RUNS];
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

/* Of a layer, in the order of a step: all layers' F, then I and W of the last layer first. */
static int run_forward(struct layer *l, double *f_ns)
{
    const double began_ns = now_ns();
    double loss;
    int32_t count;
    int err = gpt_stage_ops.forward(l->stage, &l->call, &l->in, &l->out);

    if (!err && l->stage->has_head)
        err = gpt_loss_ops.loss(NULL, &l->call, &l->out, &l->labels, &loss, 1, &count);
    *f_ns = now_ns() - began_ns;
    return err;
}

static int run_backward(struct layer *l, double *i_ns, double *w_ns)
{
    const double began_ns = now_ns();
    int err = 0;

    if (l->stage->has_head)
        err = gpt_loss_ops.loss_backward(NULL, &l->call, &l->out, &l->labels, 1, &l->gout);
    if (!err)
        err = gpt_stage_ops.backward(l->stage, &l->call, &l->gout, &l->gin, DP_BACKWARD_INPUT);
    const double between_ns = now_ns();
    if (!err)
        err = gpt_stage_ops.weight(l->stage, &l->call);
    *i_ns = between_ns - began_ns;
    *w_ns = now_ns() - between_ns;
    return err;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *ns)
{
    qsort(ns, RUNS, sizeof(*ns), compare);
    return ns[RUNS / 2];
}

/* As a rank's layers run one after the other, not one again and again: weights and gradients of a layer
 * are no longer in the cache that the layers before have filled. */
static int run_all(struct layer *l, int layers, struct layer_samples *s)
{
    int err = 0;

    for (int run = -1; run < RUNS && !err; run++) { /* the first one touches the memory */
        const int at = run < 0 ? 0 : run;
        for (int i = 0; i < layers && !err; i++)
            err = run_forward(&l[i], &s[i].f_ns[at]);
        for (int i = layers - 1; i >= 0 && !err; i--)
            err = run_backward(&l[i], &s[i].i_ns[at], &s[i].w_ns[at]);
    }
    return err;
}

int plan_measure(const struct gpt_config *config, struct layer_times *times)
{
    const int layers = config->layers + 2;
    const size_t n = (size_t)layers;
    struct gpt_config c = *config;
    int32_t *blocks = calloc(n, sizeof(*blocks));
    struct dp_border *borders = calloc(n + 1, sizeof(*borders));
    struct layer *all = calloc(n, sizeof(*all));
    struct layer_samples *samples = calloc(n, sizeof(*samples));
    int err = blocks && borders && all && samples ? 0 : DP_ENOMEM;

    for (int i = 1; i <= config->layers && !err; i++)
        blocks[i] = 1;
    c.blocks = blocks;
    if (!err)
        gpt_borders(&c, layers, borders);
    for (int i = 0; i < layers && !err; i++)
        err = layer_init(&all[i], &c, i, borders);
    if (!err)
        err = run_all(all, layers, samples);
    for (int i = 0; i < layers && all; i++)
        layer_fini(&all[i]);
    for (int i = 0; i < layers && !err; i++)
        times[i] = (struct layer_times){.f_ns = median(samples[i].f_ns),
                                        .i_ns = median(samples[i].i_ns),
                                        .w_ns = median(samples[i].w_ns)};
    free(samples);
    free(all);
    free(borders);
    free(blocks);
    return err;
}
