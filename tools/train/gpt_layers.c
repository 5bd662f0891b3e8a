/* SPDX-License-Identifier: Apache-2.0 */
#include "train/gpt_layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensors of a block's parameters, in the order in which they lie in memory. */
enum block_tensor {
    NORM1_GAIN, NORM1_BIAS, QKV, QKV_BIAS, PROJ, PROJ_BIAS,
    NORM2_GAIN, NORM2_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS,
    BLOCK_TENSORS
};

/* Of the ends, and the most of a group. */
enum embedding_tensor { TABLE, POSITIONS, EMBEDDING_TENSORS };
enum head_tensor { FINAL_GAIN, FINAL_BIAS, HEAD, HEAD_BIAS, HEAD_TENSORS };
enum { MAX_TENSORS = BLOCK_TENSORS };

/* ---- parameters ------------------------------------------------------------------------------ */

/* Group 0 is the embedding of bytes and positions, groups 1 .. L are the blocks, group L + 1
 * is the final norm and the head: a tied one is a copy of the embedding of bytes, [256][width]. A vector
 * has one row. */
struct tensor {
    const char *name;
    int group, rows, cols;
    float mean, deviation; /* of the initial values */
    bool tied;             /* one parameter with the other one that is */
};

static size_t tensor_count(const struct tensor *t)
{
    return (size_t)t->rows * (size_t)t->cols;
}

/* A tied tensor other than the first. */
static bool tensor_is_copy(const struct tensor *t)
{
    return t->tied && t->group > 0;
}

/* Initial weights are drawn as if in a step that no training reaches. */
static const uint64_t init_step = UINT32_MAX;

static float deviation_of(const struct gpt_config *c)
{
    return 1 / sqrtf((float)c->width);
}

static int embedding_tensors(const struct gpt_config *c, struct tensor *out)
{
    const float deviation = deviation_of(c);
    const struct tensor list[EMBEDDING_TENSORS] = {
        [TABLE] = {"token embedding", 0, GPT_BYTES, c->width, 0, deviation, c->tied},
        [POSITIONS] = {"position embedding", 0, c->context, c->width, 0, deviation, false},
    };
    memcpy(out, list, sizeof(list));
    return EMBEDDING_TENSORS;
}

/* What is added to the residual stream starts smaller, so that its variance does not grow with the
 * number of blocks (GPT-2). */
static int block_tensors(const struct gpt_config *c, int group, struct tensor *out)
{
    const int w = c->width, inner = MLP_FACTOR * w;
    const float deviation = deviation_of(c), residual = deviation / sqrtf(2 * (float)c->layers);
    const struct tensor list[BLOCK_TENSORS] = {
        [NORM1_GAIN] = {"norm 1 gain", group, 1, w, 1, 0, false},
        [NORM1_BIAS] = {"norm 1 bias", group, 1, w, 0, 0, false},
        [QKV] = {"qkv", group, w, 3 * w, 0, deviation, false},
        [QKV_BIAS] = {"qkv bias", group, 1, 3 * w, 0, 0, false},
        [PROJ] = {"proj", group, w, w, 0, residual, false},
        [PROJ_BIAS] = {"proj bias", group, 1, w, 0, 0, false},
        [NORM2_GAIN] = {"norm 2 gain", group, 1, w, 1, 0, false},
        [NORM2_BIAS] = {"norm 2 bias", group, 1, w, 0, 0, false},
        [UP] = {"up", group, w, inner, 0, deviation, false},
        [UP_BIAS] = {"up bias", group, 1, inner, 0, 0, false},
        [DOWN] = {"down", group, inner, w, 0, residual, false},
        [DOWN_BIAS] = {"down bias", group, 1, w, 0, 0, false},
    };
    memcpy(out, list, sizeof(list));
    return BLOCK_TENSORS;
}

static int head_tensors(const struct gpt_config *c, struct tensor *out)
{
    const int group = c->layers + 1;
    const float deviation = deviation_of(c);
    const struct tensor list[HEAD_TENSORS] = {
        [FINAL_GAIN] = {"final norm gain", group, 1, c->width, 1, 0, false},
        [FINAL_BIAS] = {"final norm bias", group, 1, c->width, 0, 0, false},
        [HEAD] = {"head", group, c->tied ? GPT_BYTES : c->width, c->tied ? c->width : GPT_BYTES, 0,
                  deviation, c->tied},
        [HEAD_BIAS] = {"head bias", group, 1, GPT_BYTES, 0, 0, false},
    };
    memcpy(out, list, sizeof(list));
    return HEAD_TENSORS;
}

static int params_of_group(const struct gpt_config *c, int group, struct tensor *out)
{
    if (group == 0)
        return embedding_tensors(c, out);
    return group <= c->layers ? block_tensors(c, group, out) : head_tensors(c, out);
}

size_t gpt_parameter_count(const struct gpt_config *config)
{
    struct tensor list[MAX_TENSORS];
    size_t count = 0;

    for (int group = 0; group < config->layers + 2; group++)
        for (int i = params_of_group(config, group, list); i-- > 0;)
            count += tensor_is_copy(&list[i]) ? 0 : tensor_count(&list[i]);
    return count;
}

static void params_draw_tensor(const struct tensor *t, int index, uint64_t seed, real *w)
{
    const int where = tensor_is_copy(t) ? TABLE : t->group * MAX_TENSORS + index;
    const struct dp_random_key key = dp_random_key(seed, init_step, (uint32_t)where, 0);
    const size_t count = tensor_count(t);
    float normal[256];

    for (size_t at = 0; at < count; at += 256) {
        size_t n = count - at < 256 ? count - at : 256;
        dp_random_normal(key, at, normal, n);
        for (size_t i = 0; i < n; i++)
            w[at + i] = t->mean + t->deviation * normal[i];
    }
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* What the functions of a part are told: what is the same for all micro-batches, and the call. */
struct part {
    struct attention attention;
    int n, width;       /* n: tokens, sequences * context */
    float dropout_rate;
    bool tied;
    struct compute compute;
    real *branch;       /* scratch [n][width] */
    real *scores;       /* scratch of attention */
    real *w[MAX_TENSORS], *dw[MAX_TENSORS];
    struct dp_random_key keys[2]; /* of its dropouts */
    const void *in;
    void *save;
};

/* Forward and backward leave in the save area all that weight needs, so that it may come much later. */
struct part_ops {
    size_t (*save_bytes)(const struct part *p);
    void (*forward)(const struct part *p, const void *in, void *out);
    void (*backward)(const struct part *p, const void *gout, void *gin);
    void (*weight)(const struct part *p);
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* A group of parameters and what computes with them; its place in the list is its number. */
struct gpt_layer {
    struct dp_layer layer;
    const struct part_ops *ops;
    const struct gpt_layers *gpt;
    char name[24];
    struct tensor tensors[MAX_TENSORS];
    struct dp_parameter_spec parameters[MAX_TENSORS];
};

struct gpt_layers {
    struct gpt_config config;
    bool widens;              /* on the CPU layers compute in reals with parameters that were rounded */
    struct part shape; /* but what belongs to a call */
    struct dp_border tokens, x, logits;
    struct dp_model model;
    const struct dp_layer **list; /* [config.layers + 2] */
    struct gpt_layer *layers;
};

static const void *data_of(const DLTensor *t)
{
    return t && t->data ? gpt_data(t) : NULL;
}

static size_t count_of(const struct gpt_layer *l)
{
    size_t count = 0;

    for (int i = 0; i < l->layer.parameter_count; i++)
        count += tensor_count(&l->tensors[i]);
    return count;
}

/* On the CPU bfloat16 layers compute in reals, with weights that were rounded. */
static void load(size_t count, const uint16_t *from, real *to)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        float x;
        memcpy(&x, &bits, sizeof(x));
        to[i] = (real)x;
    }
}

static void widen(struct part *p, const struct gpt_layer *l, const struct dp_layer_call *call,
                  real *room)
{
    for (int i = 0; i < l->layer.parameter_count; i++) {
        p->w[i] = room;
        load(tensor_count(&l->tensors[i]), call->rounded[i].data, room);
        room += tensor_count(&l->tensors[i]);
    }
}

/* Where in `base` the scratch memory of a call is; returns its bytes. base NULL: to learn those only. */
static size_t place_scratch(struct part *p, void *base)
{
    const struct compute_area areas[] = {
        {&p->branch, (size_t)p->n * (size_t)p->width, AREA_ACTIVATIONS},
        {&p->scores, p->compute.ops->attention_scratch(&p->attention), AREA_BYTES},
    };

    return compute_place(&p->compute, areas, sizeof(areas) / sizeof(areas[0]), base);
}

static struct part part_of(const struct gpt_layer *l, const struct dp_layer_call *call)
{
    struct part p = l->gpt->shape;
    struct compute *c = &p.compute;

    c->stream = call->stream;
    c->values = call->values;
    c->rounded = call->rounded;
    c->tensors = call->rounded ? l->layer.parameter_count : 0;
    p.in = data_of(call->in);
    p.save = call->save;
    p.dropout_rate = call->training ? p.dropout_rate : 0;
    const size_t used = place_scratch(&p, call->scratch);
    for (int i = 0; i < l->layer.parameter_count; i++) {
        p.w[i] = gpt_data(&call->values[i]);
        p.dw[i] = call->grads[i].data ? gpt_data(&call->grads[i]) : NULL;
    }
    if (l->gpt->widens)
        widen(&p, l, call, (void *)((char *)call->scratch + used));
    for (uint32_t which = 0; which < 2; which++)
        p.keys[which] = dp_random_key(call->random.key, call->step,
                                      2 * (uint32_t)call->layer + which, (uint32_t)call->mb_global);
    return p;
}

static size_t numbers_of(const struct part *p)
{
    return (size_t)p->n * (size_t)p->width;
}

/* ---- the embedding --------------------------------------------------------------------------- */

static size_t embedding_save_bytes(const struct part *p)
{
    return numbers_of(p) * p->compute.size;
}

static void embedding_forward(const struct part *p, const void *in, void *out)
{
    const struct compute *c = &p->compute;

    c->ops->embed_forward(c, p->n, p->attention.context, p->width, in, p->w[TABLE], p->w[POSITIONS],
                          out);
    c->ops->dropout(c, p->keys[0], p->dropout_rate, numbers_of(p), out);
}

/* Tokens have no gradient. */
static void embedding_backward(const struct part *p, const void *gout,
                               __attribute__((unused)) void *gin)
{
    const struct compute *c = &p->compute;

    c->ops->copy(c, numbers_of(p), gout, p->save);
    c->ops->dropout(c, p->keys[0], p->dropout_rate, numbers_of(p), p->save);
}

static void embedding_weight(const struct part *p)
{
    const struct compute *c = &p->compute;

    c->ops->embed_weight(c, p->n, p->attention.context, p->width, p->in, p->save, p->dw[TABLE],
                         p->dw[POSITIONS]);
}

static const struct part_ops embedding = {embedding_save_bytes, embedding_forward,
                                          embedding_backward, embedding_weight};

/* ---- a block --------------------------------------------------------------------------------- */

/* One transformer block, pre-norm: attention, then an MLP, each added to what it read.
 *
 *      x ---+--> norm 1 -> qkv -> attention -> proj -> dropout --+--> x
 *      x ---+--> norm 2 -> up  -> gelu      -> down -> dropout --+--> x
 *
 * Forward and backward work in place on the residual stream. */

/* What one micro-batch leaves behind in one block: activations, the norms' rstd, and p, which is what
 * attention keeps. */
struct block_save {
    /* Forward: slope is gelu'. */
    real *norm1, *xhat1, *rstd1, *qkv, *p, *mixed;
    real *norm2, *xhat2, *rstd2, *slope, *active;
    /* Backward: gradients with respect to the outputs of norm 1, qkv, ... */
    real *d_norm1, *d_qkv, *d_proj;
    real *d_norm2, *d_up, *d_down;
};

/* Lay the save area out from base on; returns its bytes. base may be NULL, to learn those only. */
static size_t place_block(const struct part *p, void *base, struct block_save *save)
{
    const size_t n = (size_t)p->n, nc = numbers_of(p);
    const struct compute *c = &p->compute;
    const size_t kept = c->ops->attention_kept(&p->attention);
    const struct compute_area areas[] = {
        {&save->norm1, nc, AREA_ACTIVATIONS},
        {&save->xhat1, nc, AREA_ACTIVATIONS},
        {&save->rstd1, n, AREA_REALS},
        {&save->qkv, 3 * nc, AREA_ACTIVATIONS},
        {&save->p, kept, AREA_BYTES},
        {&save->mixed, nc, AREA_ACTIVATIONS},
        {&save->norm2, nc, AREA_ACTIVATIONS},
        {&save->xhat2, nc, AREA_ACTIVATIONS},
        {&save->rstd2, n, AREA_REALS},
        {&save->slope, MLP_FACTOR * nc, AREA_ACTIVATIONS},
        {&save->active, MLP_FACTOR * nc, AREA_ACTIVATIONS},
        {&save->d_norm1, nc, AREA_ACTIVATIONS},
        {&save->d_qkv, 3 * nc, AREA_ACTIVATIONS},
        {&save->d_proj, nc, AREA_ACTIVATIONS},
        {&save->d_norm2, nc, AREA_ACTIVATIONS},
        {&save->d_up, MLP_FACTOR * nc, AREA_ACTIVATIONS},
        {&save->d_down, nc, AREA_ACTIVATIONS},
    };

    return compute_place(c, areas, sizeof(areas) / sizeof(areas[0]), base);
}

static size_t block_save_bytes(const struct part *p)
{
    struct block_save save;

    return place_block(p, NULL, &save);
}

static void block_forward(const struct part *p, const void *in, void *x)
{
    const struct compute *c = &p->compute;
    const struct compute_ops *ops = c->ops;
    const int n = p->n, width = p->width, inner = MLP_FACTOR * width;
    struct block_save save;
    const size_t nc = numbers_of(p), ni = (size_t)n * (size_t)inner;

    place_block(p, p->save, &save);
    ops->copy(c, nc, in, x);
    ops->norm_forward(c, n, width, x, p->w[NORM1_GAIN], p->w[NORM1_BIAS], save.norm1, save.xhat1,
                      save.rstd1);
    ops->linear_forward(c, n, width, 3 * width, false, save.norm1, p->w[QKV], p->w[QKV_BIAS],
                        save.qkv);
    ops->attention_forward(c, &p->attention, save.qkv, save.p, save.mixed);
    ops->linear_forward(c, n, width, width, false, save.mixed, p->w[PROJ], p->w[PROJ_BIAS],
                        p->branch);
    ops->dropout(c, p->keys[0], p->dropout_rate, nc, p->branch);
    ops->add(c, nc, p->branch, x);

    ops->norm_forward(c, n, width, x, p->w[NORM2_GAIN], p->w[NORM2_BIAS], save.norm2, save.xhat2,
                      save.rstd2);
    ops->linear_forward(c, n, width, inner, false, save.norm2, p->w[UP], p->w[UP_BIAS], save.slope);
    ops->gelu_forward(c, ni, save.slope, save.active);
    ops->linear_forward(c, n, inner, width, false, save.active, p->w[DOWN], p->w[DOWN_BIAS],
                        p->branch);
    ops->dropout(c, p->keys[1], p->dropout_rate, nc, p->branch);
    ops->add(c, nc, p->branch, x);
}

static void block_backward(const struct part *p, const void *gout, void *dx)
{
    const struct compute *c = &p->compute;
    const struct compute_ops *ops = c->ops;
    const int n = p->n, width = p->width, inner = MLP_FACTOR * width;
    struct block_save save;
    const size_t nc = numbers_of(p), ni = (size_t)n * (size_t)inner;

    place_block(p, p->save, &save);
    ops->copy(c, nc, gout, dx);
    ops->copy(c, nc, dx, save.d_down);
    ops->dropout(c, p->keys[1], p->dropout_rate, nc, save.d_down);
    ops->linear_backward(c, n, inner, width, false, save.d_down, p->w[DOWN], save.d_up);
    ops->gelu_backward(c, ni, save.slope, save.d_up);
    ops->linear_backward(c, n, width, inner, false, save.d_up, p->w[UP], save.d_norm2);
    ops->norm_backward(c, n, width, save.d_norm2, p->w[NORM2_GAIN], save.xhat2, save.rstd2, dx);

    ops->copy(c, nc, dx, save.d_proj);
    ops->dropout(c, p->keys[0], p->dropout_rate, nc, save.d_proj);
    ops->linear_backward(c, n, width, width, false, save.d_proj, p->w[PROJ], p->branch);
    ops->attention_backward(c, &p->attention, save.qkv, save.p, save.mixed, p->branch,
                            save.d_qkv, p->scores);
    ops->linear_backward(c, n, width, 3 * width, false, save.d_qkv, p->w[QKV], save.d_norm1);
    ops->norm_backward(c, n, width, save.d_norm1, p->w[NORM1_GAIN], save.xhat1, save.rstd1, dx);
}

static void block_weight(const struct part *p)
{
    const struct compute *c = &p->compute;
    const struct compute_ops *ops = c->ops;
    const int n = p->n, width = p->width, inner = MLP_FACTOR * width;
    struct block_save save;

    place_block(p, p->save, &save);
    ops->norm_weight(c, n, width, save.d_norm1, save.xhat1, p->dw[NORM1_GAIN], p->dw[NORM1_BIAS]);
    ops->linear_weight(c, n, width, 3 * width, false, save.norm1, save.d_qkv, p->dw[QKV],
                       p->dw[QKV_BIAS]);
    ops->linear_weight(c, n, width, width, false, save.mixed, save.d_proj, p->dw[PROJ],
                       p->dw[PROJ_BIAS]);
    ops->norm_weight(c, n, width, save.d_norm2, save.xhat2, p->dw[NORM2_GAIN], p->dw[NORM2_BIAS]);
    ops->linear_weight(c, n, width, inner, false, save.norm2, save.d_up, p->dw[UP], p->dw[UP_BIAS]);
    ops->linear_weight(c, n, inner, width, false, save.active, save.d_down, p->dw[DOWN],
                       p->dw[DOWN_BIAS]);
}

static const struct part_ops block = {block_save_bytes, block_forward, block_backward, block_weight};

/* ---- the head, a norm and the logits --------------------------------------------------------- */

/* What one micro-batch leaves behind in the head. */
struct head_save {
    real *norm, *xhat, *rstd, *d_norm, *d_logits;
};

static size_t place_head(const struct part *p, void *base, struct head_save *save)
{
    const size_t n = (size_t)p->n, nc = numbers_of(p);
    const struct compute_area areas[] = {
        {&save->norm, nc, AREA_ACTIVATIONS},
        {&save->xhat, nc, AREA_ACTIVATIONS},
        {&save->rstd, n, AREA_REALS},
        {&save->d_norm, nc, AREA_ACTIVATIONS},
        {&save->d_logits, n * GPT_BYTES, AREA_ACTIVATIONS},
    };

    return compute_place(&p->compute, areas, sizeof(areas) / sizeof(areas[0]), base);
}

static size_t head_save_bytes(const struct part *p)
{
    struct head_save save;

    return place_head(p, NULL, &save);
}

static void head_forward(const struct part *p, const void *in, void *out)
{
    const struct compute *c = &p->compute;
    struct head_save save;

    place_head(p, p->save, &save);
    c->ops->norm_forward(c, p->n, p->width, in, p->w[FINAL_GAIN], p->w[FINAL_BIAS], save.norm,
                         save.xhat, save.rstd);
    c->ops->linear_forward(c, p->n, p->width, GPT_BYTES, p->tied, save.norm, p->w[HEAD],
                           p->w[HEAD_BIAS], out);
}

static void head_backward(const struct part *p, const void *gout, void *gin)
{
    const struct compute *c = &p->compute;
    struct head_save save;

    place_head(p, p->save, &save);
    c->ops->copy(c, (size_t)p->n * GPT_BYTES, gout, save.d_logits);
    c->ops->linear_backward(c, p->n, p->width, GPT_BYTES, p->tied, gout, p->w[HEAD], save.d_norm);
    c->ops->zero(c, numbers_of(p), gin);
    c->ops->norm_backward(c, p->n, p->width, save.d_norm, p->w[FINAL_GAIN], save.xhat, save.rstd,
                          gin);
}

static void head_weight(const struct part *p)
{
    const struct compute *c = &p->compute;
    struct head_save save;

    place_head(p, p->save, &save);
    c->ops->norm_weight(c, p->n, p->width, save.d_norm, save.xhat, p->dw[FINAL_GAIN],
                        p->dw[FINAL_BIAS]);
    c->ops->linear_weight(c, p->n, p->width, GPT_BYTES, p->tied, save.norm, save.d_logits,
                          p->dw[HEAD], p->dw[HEAD_BIAS]);
}

static const struct part_ops head = {head_save_bytes, head_forward, head_backward, head_weight};

/* ---- a callback as it is called -------------------------------------------------------------- */

struct work {
    struct gpt_layer *layer;
    const struct dp_layer_call *call;
    const DLTensor *in, *gout;
    DLTensor *out, *gin;
    enum { FORWARD, BACKWARD, BACKWARD_INPUT, WEIGHT } kind;
};

static int queue(void *arg)
{
    const struct work *w = arg;
    const struct part_ops *ops = w->layer->ops;
    const struct part p = part_of(w->layer, w->call);

    if (w->kind == FORWARD)
        ops->forward(&p, data_of(w->in), gpt_data(w->out));
    else if (w->kind != WEIGHT)
        ops->backward(&p, data_of(w->gout), w->gin ? gpt_data(w->gin) : NULL);
    if (w->kind == BACKWARD || w->kind == WEIGHT)
        ops->weight(&p);
    return p.compute.ops->error(&p.compute);
}

static int run(struct work *w)
{
    const struct dp_layer_call *call = w->call;
    struct compute c = w->layer->gpt->shape.compute;
    const struct compute_key key = {
        w->layer,        data_of(w->in ? w->in : call->in), data_of(w->out), data_of(w->gout),
        data_of(w->gin), call->save,                        data_of(call->grads), (uint64_t)w->kind,
        data_of(call->values)};

    c.stream = call->stream;
    return c.ops->carry_out(&c, &key, w->layer->gpt->config.dropout == 0, queue, w);
}

static int forward(void *user, const struct dp_layer_call *call, const DLTensor *in, DLTensor *out)
{
    return run(&(struct work){user, call, in, NULL, out, NULL, FORWARD});
}

static int backward(void *user, const struct dp_layer_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    return run(&(struct work){user, call, NULL, gout, NULL, gin,
                              mode == DP_BACKWARD_FULL ? BACKWARD : BACKWARD_INPUT});
}

static int weight(void *user, const struct dp_layer_call *call)
{
    return run(&(struct work){user, call, NULL, NULL, NULL, NULL, WEIGHT});
}

static const struct dp_layer_ops layer_ops = {forward, backward, weight};

/* ---- the loss -------------------------------------------------------------------------------- */

static int rows_of(const DLTensor *logits)
{
    return (int)(logits->shape[0] * logits->shape[1]);
}

static int classes_of(const DLTensor *logits)
{
    return (int)logits->shape[2];
}

/* Where the loss is computed: its user says it, NULL is the CPU. */
static struct compute compute_of(const void *user, const struct dp_stage_call *call)
{
    struct compute c = user ? *(const struct compute *)user : compute_cpu;

    c.stream = call->stream;
    return c;
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    const struct compute c = compute_of(user, call);

    (void)max;
    c.ops->entropy_forward(&c, rows_of(out), classes_of(out), gpt_data(out), gpt_data(label),
                           values);
    *count = 1;
    return c.ops->error(&c);
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *label, double scale, DLTensor *gout)
{
    const struct compute c = compute_of(user, call);

    c.ops->entropy_backward(&c, rows_of(out), classes_of(out), gpt_data(out), gpt_data(label),
                            scale, gpt_data(gout));
    return c.ops->error(&c);
}

static const struct dp_loss_ops loss_ops = {loss, loss_backward};

/* ---- making them ----------------------------------------------------------------------------- */

static int fill(void *user, int32_t index, uint64_t seed, DLTensor *value)
{
    const struct gpt_layer *l = user;

    params_draw_tensor(&l->tensors[index], index, seed, gpt_data(value));
    return 0;
}

/* One tensor [sequences][context][width], or [sequences][context] of tokens; micro-batches have so many
 * rows. */
static struct dp_border border_of(const struct gpt_layers *g, DLDataType type, int width)
{
    return (struct dp_border){1, {{.dtype = type,
                                   .ndim = width ? 3 : 2,
                                   .shape = {1, g->config.context, width},
                                   .extent = {1},
                                   .no_grad = !width}}};
}

static const DLDataType byte_type = {kDLUInt, 8, 1}, real_type = {kDLFloat, 8 * sizeof(real), 1},
                        bfloat16_type = {kDLBfloat, 16, 1};

static void describe_parameters(struct gpt_layer *l, int group)
{
    l->layer.parameter_count = params_of_group(&l->gpt->config, group, l->tensors);
    l->layer.parameters = l->parameters;
    for (int i = 0; i < l->layer.parameter_count; i++) {
        const struct tensor *t = &l->tensors[i];
        l->parameters[i] = (struct dp_parameter_spec){
            .name = t->name,
            .tied = tensor_is_copy(t) ? "token embedding" : NULL,
            .flags = t->rows == 1 ? DP_PARAMETER_NO_DECAY : 0,
            .dtype = real_type,
            .ndim = 2,
            .shape = {t->rows, t->cols},
            .fill = fill,
        };
    }
}

/* Blocks are spread evenly, whatever the ends take beside them. */
static const double end_cost = 1e-3;

static void describe(struct gpt_layers *g, int group)
{
    const bool first = group == 0, last = group == g->config.layers + 1;
    struct gpt_layer *l = &g->layers[group];
    struct part measured = g->shape;

    if (!first && !last)
        snprintf(l->name, sizeof(l->name), "block %d", group);
    l->gpt = g;
    l->ops = first ? &embedding : last ? &head : &block;
    l->layer = (struct dp_layer){
        .ops = &layer_ops,
        .user = l,
        .name = l->name,
        .cost = first || last ? end_cost : 1,
        .out = last ? &g->logits : &g->x,
        .save.whole = l->ops->save_bytes(&g->shape),
        .scratch_bytes = (first || last) && !g->widens ? 0 : place_scratch(&measured, NULL),
        .drops_input = !first,
    };
    describe_parameters(l, group);
    if (g->widens)
        l->layer.scratch_bytes += count_of(l) * sizeof(real);
    g->list[group] = &l->layer;
}

int gpt_layers_new(const struct gpt_config *config, const struct compute *compute, bool bf16,
                   struct gpt_layers **out)
{
    const size_t count = (size_t)config->layers + 2;
    const DLDataType type = compute && compute->size == 2 ? bfloat16_type : real_type;
    struct gpt_layers *g = calloc(1, sizeof(*g));

    if (!g)
        return DP_ENOMEM;
    g->config = *config;
    g->widens = bf16 && !compute;
    g->shape = (struct part){
        .attention = {config->batch, config->context, config->heads, config->width},
        .n = config->batch * config->context,
        .width = config->width,
        .tied = config->tied,
        .dropout_rate = config->dropout,
        .compute = compute ? *compute : compute_cpu};
    g->list = calloc(count, sizeof(struct dp_layer *));
    g->layers = calloc(count, sizeof(*g->layers));
    if (!g->list || !g->layers) {
        gpt_layers_free(g);
        return DP_ENOMEM;
    }
    g->tokens = border_of(g, byte_type, 0);
    g->x = border_of(g, type, config->width);
    g->logits = border_of(g, type, GPT_BYTES);
    for (size_t i = 0; i < count; i++)
        describe(g, (int)i);
    g->model = (struct dp_model){.layers = g->list,
                                 .layer_count = (int32_t)count,
                                 .input = &g->tokens,
                                 .labels = &g->tokens,
                                 .concurrent = true,
                                 .loss = &loss_ops,
                                 .loss_user = (void *)compute};
    *out = g;
    return 0;
}

void gpt_layers_free(struct gpt_layers *g)
{
    if (!g)
        return;
    free(g->list);
    free(g->layers);
    free(g);
}

const struct dp_model *gpt_layers_model(const struct gpt_layers *g)
{
    return &g->model;
}

int gpt_layers_of_stage(const struct gpt_config *c, int stage, int stages, int *first)
{
    const bool given = c->blocks && stages > 1;
    const int blocks = given ? c->blocks[stage] : c->layers / stages;

    *first = stage > 0;
    for (int s = 0; s < stage; s++)
        *first += given ? c->blocks[s] : blocks;
    return blocks + (stage == 0) + (stage == stages - 1);
}

/* ---- how it learns --------------------------------------------------------------------------- */

struct dp_optimizer_config gpt_optimizer(double decay)
{
    struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);

    config.beta2 = 0.95;
    config.weight_decay = decay;
    return config;
}

double gpt_rate(uint64_t step, uint64_t steps, uint64_t warmup, double peak)
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
