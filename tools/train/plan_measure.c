/* SPDX-License-Identifier: Apache-2.0 */
#include "train/plan_measure.h"

#include "clock.h"
#include "train/gpt.h"

#include <dualpipe/optimizer.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/random.h>

#include <stdlib.h>

/* Runs of a measurement: as many as fit the time, within bounds. */
enum { FEWEST_RUNS = 3, MOST_RUNS = 15 };
static const double enough_ns = 0.5e9;

/* One layer as a stage of a pipeline that has a stage for each. */
struct layer {
    struct gpt_stage *stage;
    struct dp_stage_call call;
    struct dp_optimizer *optimizer;
    double *squares; /* [tensors] of its gradients */
    double f_ns[MOST_RUNS], i_ns[MOST_RUNS], w_ns[MOST_RUNS], norm_ns[MOST_RUNS], update_ns[MOST_RUNS];
};

/* The model. Border i is what layer i reads, and the gradient that it gives back. */
struct measured {
    struct gpt_config config;
    int count;
    int32_t *blocks; /* [count] */
    struct layer *layers;
    struct dp_border *borders; /* [count + 1] */
    DLTensor *values, *grads;  /* [count + 1] */
    DLTensor labels;
};

static size_t bytes_of(const struct dp_tensor_spec *spec)
{
    size_t count = 1;

    for (int i = 0; i < spec->ndim; i++)
        count *= (size_t)spec->shape[i];
    return count * (size_t)spec->dtype.bits / 8;
}

/* A tensor of a border, zero. */
static int make_tensor(struct dp_border *border, DLTensor *t)
{
    struct dp_tensor_spec *spec = &border->tensors[0];

    *t = (DLTensor){calloc(1, bytes_of(spec)), {kDLCPU, 0}, spec->ndim, spec->dtype, spec->shape,
                    NULL, 0};
    return t->data ? 0 : DP_ENOMEM;
}

/* Any bytes: which they are costs nothing, but that they are different does. */
static void draw_bytes(const struct measured *m, uint32_t where, struct dp_border *border, DLTensor *t)
{
    const struct dp_random_key key = dp_random_key(m->config.seed, 0, where, 0);
    uint8_t *bytes = t->data;
    uint32_t block[4];

    for (size_t i = 0; i < bytes_of(&border->tensors[0]); i++) {
        dp_random_block(key, i, block);
        bytes[i] = (uint8_t)block[0];
    }
}

static int make_borders(struct measured *m)
{
    int err = 0;

    gpt_borders(&m->config, m->count, m->borders);
    for (int i = 0; i <= m->count && !err; i++) {
        err = make_tensor(&m->borders[i], &m->values[i]);
        if (!err)
            err = make_tensor(&m->borders[i], &m->grads[i]);
    }
    if (!err)
        err = make_tensor(&m->borders[0], &m->labels);
    if (err)
        return err;
    draw_bytes(m, 0, &m->borders[0], &m->values[0]);
    draw_bytes(m, 1, &m->borders[0], &m->labels);
    return 0;
}

static int make_layer(struct measured *m, int i)
{
    const struct dp_optimizer_config adamw = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    struct layer *l = &m->layers[i];
    int err = gpt_stage_new(&m->config, i, m->count, &l->stage);

    if (err)
        return err;
    l->call = (struct dp_stage_call){.stage = i, .training = true, .in = &m->values[i],
                                     .gout = &m->grads[i + 1], .grads = l->stage->grads_list,
                                     .random = dp_random_key(m->config.seed, 0, (uint32_t)i, 0),
                                     .save = calloc(1, l->stage->save_bytes + 1)};
    l->squares = calloc(l->stage->params.tensors_len + 1, sizeof(*l->squares));
    if (!l->call.save || !l->squares)
        return DP_ENOMEM;
    return dp_optimizer_new(&adamw, l->stage->parameters, (int32_t)l->stage->params.tensors_len,
                            &l->optimizer);
}

static int make_all(struct measured *m, const struct gpt_config *config)
{
    const size_t n = (size_t)config->layers + 2;

    *m = (struct measured){.config = *config,
                           .count = (int)n,
                           .blocks = calloc(n, sizeof(*m->blocks)),
                           .layers = calloc(n, sizeof(*m->layers)),
                           .borders = calloc(n + 1, sizeof(*m->borders)),
                           .values = calloc(n + 1, sizeof(*m->values)),
                           .grads = calloc(n + 1, sizeof(*m->grads))};
    if (!m->blocks || !m->layers || !m->borders || !m->values || !m->grads)
        return DP_ENOMEM;
    for (int i = 1; i <= config->layers; i++)
        m->blocks[i] = 1;
    m->config.blocks = m->blocks;
    int err = make_borders(m);
    for (int i = 0; i < m->count && !err; i++)
        err = make_layer(m, i);
    return err;
}

static void free_all(struct measured *m)
{
    for (int i = 0; i < m->count && m->layers; i++) {
        struct layer *l = &m->layers[i];
        dp_optimizer_free(l->optimizer);
        free(l->squares);
        free(l->call.save);
        gpt_stage_free(l->stage);
    }
    for (int i = 0; i <= m->count; i++) {
        free(m->values ? m->values[i].data : NULL);
        free(m->grads ? m->grads[i].data : NULL);
    }
    free(m->labels.data);
    free(m->layers);
    free(m->blocks);
    free(m->borders);
    free(m->values);
    free(m->grads);
}

/* ---- a step, layer by layer ------------------------------------------------------------------ */

static int run_forward(struct measured *m, int i, int run)
{
    struct layer *l = &m->layers[i];
    const double began_ns = now_ns();
    double loss;
    int32_t count;
    int err = gpt_stage_ops.forward(l->stage, &l->call, &m->values[i], &m->values[i + 1]);

    if (!err && l->stage->has_head)
        err = gpt_loss_ops.loss(NULL, &l->call, &m->values[i + 1], &m->labels, &loss, 1, &count);
    l->f_ns[run] = now_ns() - began_ns;
    return err;
}

static int run_backward(struct measured *m, int i, int run)
{
    struct layer *l = &m->layers[i];
    DLTensor *gout = &m->grads[i + 1];
    const double began_ns = now_ns();
    int err = 0;

    if (l->stage->has_head)
        err = gpt_loss_ops.loss_backward(NULL, &l->call, &m->values[i + 1], &m->labels, 1, gout);
    if (!err)
        err = gpt_stage_ops.backward(l->stage, &l->call, gout, &m->grads[i], DP_BACKWARD_INPUT);
    const double between_ns = now_ns();
    if (!err)
        err = gpt_stage_ops.weight(l->stage, &l->call);
    l->i_ns[run] = between_ns - began_ns;
    l->w_ns[run] = now_ns() - between_ns;
    return err;
}

static int run_norm(struct measured *m, int i, int run)
{
    struct layer *l = &m->layers[i];
    const double began_ns = now_ns();
    const int err = dp_gradient_squares(l->stage->parameters,
                                        (int32_t)l->stage->params.tensors_len, l->squares);

    l->norm_ns[run] = now_ns() - began_ns;
    return err;
}

static int run_update(struct measured *m, int i, int run)
{
    const struct dp_optimizer_step step = {.rate = 1e-4, .scale = 1, .zero_grads = true};
    struct layer *l = &m->layers[i];
    const double began_ns = now_ns();
    const int err = dp_optimizer_step(l->optimizer, &step);

    l->update_ns[run] = now_ns() - began_ns;
    return err;
}

/* As a rank's layers run one after the other, not one again and again: weights and gradients of a layer
 * are no longer in the cache that the layers before have filled. */
static int run_all(struct measured *m, int run)
{
    int err = 0;

    for (int i = 0; i < m->count && !err; i++)
        err = run_forward(m, i, run);
    for (int i = m->count - 1; i >= 0 && !err; i--)
        err = run_backward(m, i, run);
    for (int i = 0; i < m->count && !err; i++)
        err = run_norm(m, i, run);
    for (int i = 0; i < m->count && !err; i++)
        err = run_update(m, i, run);
    return err;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *ns, int runs)
{
    qsort(ns, (size_t)runs, sizeof(*ns), compare);
    return ns[runs / 2];
}

int plan_measure(const struct gpt_config *config, struct layer_times *times)
{
    struct measured m;
    int runs = 0;
    int err = make_all(&m, config);

    if (!err)
        err = run_all(&m, 0); /* touches the memory; the next one overwrites its times */
    const double began_ns = now_ns();
    while (!err && runs < MOST_RUNS && (runs < FEWEST_RUNS || now_ns() < began_ns + enough_ns))
        err = run_all(&m, runs++);
    for (int i = 0; i < m.count && !err; i++) {
        struct layer *l = &m.layers[i];
        times[i] = (struct layer_times){.f_ns = median(l->f_ns, runs),
                                        .i_ns = median(l->i_ns, runs),
                                        .w_ns = median(l->w_ns, runs),
                                        .norm_ns = median(l->norm_ns, runs),
                                        .update_ns = median(l->update_ns, runs)};
    }
    free_all(&m);
    return err;
}
