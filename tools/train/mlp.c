/* SPDX-License-Identifier: Apache-2.0
 *
 * mlp.c - mlp-bn, a classifier whose hidden layers have deferred batch normalisation:
 *
 *      features -> input -> x ---+--> hidden -> batch norm -> relu --+--> x ... -> output
 *                                '-----------------------------------'
 *
 * Group 0 is the input layer, the groups 1 .. L are the hidden layers, L + 1 is the output. A
 * micro-batch is normalised with its own statistics; the running ones, by which held-out batches
 * are normalised, change at the end of a step (statistics.h).
 */
#include "train/model.h"

#include <dualpipe/batch_norm.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum input_tensor { INPUT, INPUT_BIAS, INPUT_TENSORS };
enum hidden_tensor { HIDDEN, HIDDEN_BIAS, GAIN, BIAS, HIDDEN_TENSORS };
enum output_tensor { OUTPUT, OUTPUT_BIAS, OUTPUT_TENSORS };
enum { CLASSES = 10 };

/* ---- parameters ---------------------------------------------------------------------------- */

static int tensors(const struct gpt_config *c, int group, struct tensor *out)
{
    const int w = c->width, f = c->context;
    const float of_input = 1 / sqrtf((float)f), of_width = 1 / sqrtf((float)w);
    const float gain =
        1 / sqrtf((float)c->layers); /* so that the sum of all layers does not grow */
    const struct tensor input[INPUT_TENSORS] = {
        [INPUT] = {"input", group, f, w, 0, of_input, 0, false},
        [INPUT_BIAS] = {"input bias", group, 1, w, 0, 0, 0, false},
    };
    const struct tensor hidden[HIDDEN_TENSORS] = {
        [HIDDEN] = {"hidden", group, w, w, 0, of_width, 0, false},
        [HIDDEN_BIAS] = {"hidden bias", group, 1, w, 0, 0, 0, false},
        [GAIN] = {"gain", group, 1, w, gain, 0, 0, false},
        [BIAS] = {"bias", group, 1, w, 0, 0, 0, false},
    };
    const struct tensor output[OUTPUT_TENSORS] = {
        [OUTPUT] = {"output", group, w, CLASSES, 0, of_width, 0, false},
        [OUTPUT_BIAS] = {"output bias", group, 1, CLASSES, 0, 0, 0, false},
    };
    const bool first = group == 0, last = group == c->layers + 1;
    const struct tensor *list = first ? input : last ? output : hidden;
    const int len = first ? INPUT_TENSORS : last ? OUTPUT_TENSORS : HIDDEN_TENSORS;

    memcpy(out, list, (size_t)len * sizeof(*list));
    return len;
}

/* ---- the save area ------------------------------------------------------------------------- */

struct hidden_save {
    real *in, *xhat, *rstd, *out; /* out: of relu */
    real *d_norm, *d_hidden;      /* gradients with respect to the outputs of these */
};

struct mlp_save {
    real *features, *d_input; /* first stage */
    real *hidden;             /* of each layer, one after the other */
    real *last, *d_logits;    /* last stage */
};

static size_t hidden_save_init(struct hidden_save *save, const struct gpt_stage *g, real *base)
{
    const size_t width = (size_t)g->config.width, nw = (size_t)g->shape.n * width;
    const struct part parts[] = {
        {&save->in, nw, PART_REALS},      {&save->xhat, nw, PART_REALS},
        {&save->rstd, width, PART_REALS}, {&save->out, nw, PART_REALS},
        {&save->d_norm, nw, PART_REALS},  {&save->d_hidden, nw, PART_REALS},
    };

    return parts_lay_out(parts, sizeof(parts) / sizeof(parts[0]), base);
}

static size_t save_init(struct mlp_save *save, const struct gpt_stage *g, real *base)
{
    const size_t n = (size_t)g->shape.n, nw = n * (size_t)g->config.width;
    const size_t first = g->has_embedding, last = g->has_head;
    struct hidden_save hidden;
    const struct part parts[] = {
        {&save->features, first * n * (size_t)g->config.context, PART_REALS},
        {&save->d_input, first * nw, PART_REALS},
        {&save->hidden,
         (size_t)(g->end_block - g->first_block) * hidden_save_init(&hidden, g, NULL),
         PART_REALS},
        {&save->last, last * nw, PART_REALS},
        {&save->d_logits, last * n * CLASSES, PART_REALS},
    };

    return parts_lay_out(parts, sizeof(parts) / sizeof(parts[0]), base);
}

static size_t save_count(const struct gpt_stage *g)
{
    struct mlp_save save;

    return save_init(&save, g, NULL);
}

static struct hidden_save hidden_of(const struct gpt_stage *g, const struct mlp_save *save,
                                    int group)
{
    struct hidden_save hidden;
    const size_t len = hidden_save_init(&hidden, g, NULL);

    hidden_save_init(&hidden, g, save->hidden + (size_t)(group - g->first_block) * len);
    return hidden;
}

/* ---- forward, backward, weight ------------------------------------------------------------- */

static void input_forward(const struct gpt_stage *g, const struct mlp_save *save,
                          const uint8_t *features, real *x)
{
    const int n = g->shape.n, count = n * g->config.context;
    real *w[INPUT_TENSORS];

    for (int i = 0; i < count; i++)
        save->features[i] = ((real)features[i] - 128) / 64;
    params_group(&g->params, 0, g->weights, w);
    linear_forward(n, g->config.context, g->config.width, save->features, w[INPUT], w[INPUT_BIAS],
                   x);
}

static enum dp_batch_norm_mode mode_of(const struct dp_stage_call *call)
{
    return !call->training     ? DP_BATCH_NORM_EVALUATE
           : call->recomputing ? DP_BATCH_NORM_RECOMPUTE
                               : DP_BATCH_NORM_TRAIN;
}

static int hidden_forward(const struct gpt_stage *g, int group, const struct dp_stage_call *call,
                          const struct hidden_save *s, real *x)
{
    const int n = g->shape.n, width = g->config.width, count = n * width;
    real *w[HIDDEN_TENSORS];

    params_group(&g->params, group, g->weights, w);
    memcpy(s->in, x, (size_t)count * sizeof(real));
    linear_forward(n, width, width, x, w[HIDDEN], w[HIDDEN_BIAS], s->out);
    int err =
        dp_batch_norm_forward(g->norms[group - g->first_block], mode_of(call), call->mb_global, n,
                              s->out, w[GAIN], w[BIAS], s->out, s->xhat, s->rstd);
    for (int i = 0; i < count && !err; i++) {
        s->out[i] = s->out[i] > 0 ? s->out[i] : 0;
        x[i] += s->out[i];
    }
    return err;
}

static void hidden_backward(const struct gpt_stage *g, int group, const struct hidden_save *s,
                            real *dx)
{
    const int n = g->shape.n, width = g->config.width;
    const size_t count = (size_t)n * (size_t)width;
    real *w[HIDDEN_TENSORS];

    params_group(&g->params, group, g->weights, w);
    for (size_t i = 0; i < count; i++)
        s->d_norm[i] = s->out[i] > 0 ? dx[i] : 0;
    dp_batch_norm_backward(g->norms[group - g->first_block], n, s->d_norm, w[GAIN], s->xhat,
                           s->rstd, s->d_hidden);
    linear_backward(n, width, width, s->d_hidden, w[HIDDEN], g->shape.branch);
    add(count, g->shape.branch, dx);
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    const struct gpt_stage *g = user;
    const size_t x_bytes = (size_t)g->shape.n * (size_t)g->config.width * sizeof(real);
    real *x = g->has_head ? g->residual : gpt_data(out), *w[OUTPUT_TENSORS];
    struct mlp_save save;
    int err = 0;

    save_init(&save, g, call->save);
    if (g->has_embedding)
        input_forward(g, &save, gpt_data(in), x);
    else
        memcpy(x, gpt_data(in), x_bytes);
    for (int group = g->first_block; group < g->end_block && !err; group++) {
        const struct hidden_save hidden = hidden_of(g, &save, group);
        err = hidden_forward(g, group, call, &hidden, x);
    }
    if (!g->has_head || err)
        return err;
    params_group(&g->params, g->config.layers + 1, g->weights, w);
    memcpy(save.last, x, x_bytes);
    linear_forward(g->shape.n, g->config.width, CLASSES, x, w[OUTPUT], w[OUTPUT_BIAS],
                   gpt_data(out));
    return 0;
}

static void hidden_weight(const struct gpt_stage *g, int group, const struct dp_stage_call *call,
                          const struct hidden_save *s)
{
    const int n = g->shape.n, width = g->config.width;
    real *dw[HIDDEN_TENSORS];

    gpt_grads_group(g, group, call, dw);
    linear_weight(n, width, width, s->in, s->d_hidden, dw[HIDDEN], dw[HIDDEN_BIAS]);
    dp_batch_norm_weight(g->norms[group - g->first_block], n, s->d_norm, s->xhat, dw[GAIN],
                         dw[BIAS]);
}

static int weight(void *user, const struct dp_stage_call *call)
{
    const struct gpt_stage *g = user;
    const int n = g->shape.n, width = g->config.width;
    struct mlp_save save;
    real *dw[MAX_TENSORS];

    save_init(&save, g, call->save);
    if (g->has_head) {
        gpt_grads_group(g, g->config.layers + 1, call, dw);
        linear_weight(n, width, CLASSES, save.last, save.d_logits, dw[OUTPUT], dw[OUTPUT_BIAS]);
    }
    for (int group = g->first_block; group < g->end_block; group++) {
        const struct hidden_save hidden = hidden_of(g, &save, group);
        hidden_weight(g, group, call, &hidden);
    }
    if (g->has_embedding) {
        gpt_grads_group(g, 0, call, dw);
        linear_weight(n, g->config.context, width, save.features, save.d_input, dw[INPUT],
                      dw[INPUT_BIAS]);
    }
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    const struct gpt_stage *g = user;
    const size_t n = (size_t)g->shape.n, width = (size_t)g->config.width;
    struct mlp_save save;
    real *w[OUTPUT_TENSORS];

    save_init(&save, g, call->save);
    real *dx = g->has_embedding ? save.d_input : gpt_data(gin);
    if (g->has_head) {
        params_group(&g->params, g->config.layers + 1, g->weights, w);
        memcpy(save.d_logits, gpt_data(gout), n * CLASSES * sizeof(real));
        linear_backward(g->shape.n, g->config.width, CLASSES, save.d_logits, w[OUTPUT], dx);
    } else {
        memcpy(dx, gpt_data(gout), n * width * sizeof(real));
    }
    for (int group = g->end_block - 1; group >= g->first_block; group--) {
        const struct hidden_save hidden = hidden_of(g, &save, group);
        hidden_backward(g, group, &hidden, dx);
    }
    return mode == DP_BACKWARD_FULL ? weight(user, call) : 0;
}

static const struct dp_stage_ops ops = {.forward = forward, .backward = backward, .weight = weight};

/* ---- running statistics --------------------------------------------------------------------- */

static void fini(struct gpt_stage *g)
{
    for (int i = 0; i < g->end_block - g->first_block && g->norms; i++)
        dp_batch_norm_free(g->norms[i]);
    free(g->norms);
    g->norms = NULL;
}

static int init(struct gpt_stage *g)
{
    const struct dp_batch_norm_config config = {.channels = g->config.width,
                                                .microbatches = g->config.microbatches,
                                                .unbiased = g->config.norm.unbiased,
                                                .compat = g->config.norm.compat};
    const int blocks = g->end_block - g->first_block;
    int err = 0;

    g->norms = calloc((size_t)blocks, sizeof(struct dp_batch_norm *));
    if (!g->norms)
        return DP_ENOMEM;
    for (int i = 0; i < blocks && !err; i++)
        err = dp_batch_norm_new(&config, &g->norms[i]);
    return err;
}

const struct model mlp_bn_model = {"mlp-bn", CLASSES, tensors, save_count, &ops, init, fini};
