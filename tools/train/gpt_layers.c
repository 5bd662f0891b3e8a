/* SPDX-License-Identifier: Apache-2.0 */
#include "train/gpt_layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the three kinds of layers, as data --------------------------------------------------------- */

/* Tensors of parameters, in the order in which they lie in memory. */
enum { TABLE, POSITIONS };
enum {
    NORM1_GAIN, NORM1_BIAS, QKV, QKV_BIAS, PROJ, PROJ_BIAS,
    NORM2_GAIN, NORM2_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS
};
enum { FINAL_GAIN, FINAL_BIAS, HEAD, HEAD_BIAS };

/* Sizes in terms of the model's. KEPT: what attention keeps. */
enum size { ONE, WIDTH, TRIPLE, INNER, BYTES, CONTEXT, KEPT };

/* What is added to the residual stream starts smaller, so that its variance does not grow with the
 * number of blocks (GPT-2). */
struct parameter {
    const char *name;
    enum size rows, cols; /* a vector has one row */
    float mean;           /* of the initial values */
    enum { CONSTANT, DRAWN_WIDE, DRAWN_SMALL } spread;
    bool ties; /* with --tie-embeddings: the head's is a copy of the embedding of bytes, [256][width] */
};

/* A tensor of a call: what a step reads and writes. STREAM: the residual stream, its gradient, or the
 * layer's input; OUT: its output, or the gradient of that; BRANCH: scratch. Others lie in the save area:
 * what one micro-batch leaves behind. d_X is the gradient of X. */
enum { STREAM, OUT, BRANCH, SAVED };
enum { E_DY = SAVED };
enum {
    NORM1 = SAVED, XHAT1, RSTD1, MIXING, P, MIXED, NORM2, XHAT2, RSTD2, SLOPE, ACTIVE,
    D_NORM1, D_MIXING, D_PROJ, D_NORM2, D_UP, D_DOWN, TENSORS_OF_CALL
};
enum { H_NORM = SAVED, H_XHAT, H_RSTD, H_DNORM, D_LOGITS };

struct area {
    enum size columns; /* of [tokens] rows */
    enum compute_unit unit;
};

/* One operation of compute.h, and where it finds what. Forward y from x, backward dx from dy; all that
 * weight needs is in the save area, so that it may come much later. */
struct step {
    enum { EMBED, NORM, LINEAR, ATTENTION, GELU, JOIN } kind; /* JOIN: dropout, and add to the stream */
    int w; /* the first of its parameters; JOIN: its dropout's key */
    int x, y, dx, dy;
    enum size in, out;
    int kept, rstd; /* NORM: xhat and rstd; ATTENTION: what it keeps */
    bool ties;
};

enum { MAX_TENSORS = DOWN_BIAS + 1, MAX_STEPS = 10 };

struct layer_kind {
    struct parameter parameters[MAX_TENSORS];
    struct area areas[TENSORS_OF_CALL - SAVED];
    struct step steps[MAX_STEPS];
    int parameter_count, area_count, step_count;
    bool is_residual; /* works in place on the stream */
};

static const struct layer_kind embedding = {
    .parameter_count = 2, .area_count = 1, .step_count = 1,
    .parameters = {[TABLE] = {"token embedding", BYTES, WIDTH, 0, DRAWN_WIDE, true},
                   [POSITIONS] = {"position embedding", CONTEXT, WIDTH, 0, DRAWN_WIDE}},
    .areas = {{WIDTH, AREA_ACTIVATIONS}},
    .steps = {{EMBED, TABLE, STREAM, OUT, STREAM, E_DY, ONE, WIDTH}},
};

/* One transformer block, pre-norm: attention, then an MLP, each added to what it read.
 *
 *      x ---+--> norm 1 -> qkv -> attention -> proj -> dropout --+--> x
 *      x ---+--> norm 2 -> up  -> gelu      -> down -> dropout --+--> x
 */
static const struct layer_kind block = {
    .parameter_count = MAX_TENSORS, .area_count = TENSORS_OF_CALL - SAVED, .step_count = MAX_STEPS,
    .is_residual = true,
    .parameters = {[NORM1_GAIN] = {"norm 1 gain", ONE, WIDTH, 1},
                   [NORM1_BIAS] = {"norm 1 bias", ONE, WIDTH},
                   [QKV] = {"qkv", WIDTH, TRIPLE, 0, DRAWN_WIDE},
                   [QKV_BIAS] = {"qkv bias", ONE, TRIPLE},
                   [PROJ] = {"proj", WIDTH, WIDTH, 0, DRAWN_SMALL},
                   [PROJ_BIAS] = {"proj bias", ONE, WIDTH},
                   [NORM2_GAIN] = {"norm 2 gain", ONE, WIDTH, 1},
                   [NORM2_BIAS] = {"norm 2 bias", ONE, WIDTH},
                   [UP] = {"up", WIDTH, INNER, 0, DRAWN_WIDE},
                   [UP_BIAS] = {"up bias", ONE, INNER},
                   [DOWN] = {"down", INNER, WIDTH, 0, DRAWN_SMALL},
                   [DOWN_BIAS] = {"down bias", ONE, WIDTH}},
#define AREA(of, columns) [of - SAVED] = {columns, AREA_ACTIVATIONS}
    .areas = {AREA(NORM1, WIDTH), AREA(XHAT1, WIDTH), [RSTD1 - SAVED] = {ONE, AREA_REALS},
              AREA(MIXING, TRIPLE), [P - SAVED] = {KEPT, AREA_BYTES}, AREA(MIXED, WIDTH),
              AREA(NORM2, WIDTH), AREA(XHAT2, WIDTH), [RSTD2 - SAVED] = {ONE, AREA_REALS},
              AREA(SLOPE, INNER), AREA(ACTIVE, INNER), AREA(D_NORM1, WIDTH), AREA(D_MIXING, TRIPLE),
              AREA(D_PROJ, WIDTH), AREA(D_NORM2, WIDTH), AREA(D_UP, INNER), AREA(D_DOWN, WIDTH)},
    .steps = {{NORM, NORM1_GAIN, STREAM, NORM1, STREAM, D_NORM1, .kept = XHAT1, .rstd = RSTD1},
              {LINEAR, QKV, NORM1, MIXING, D_NORM1, D_MIXING, WIDTH, TRIPLE},
              {ATTENTION, 0, MIXING, MIXED, D_MIXING, BRANCH, .kept = P},
              {LINEAR, PROJ, MIXED, BRANCH, BRANCH, D_PROJ, WIDTH, WIDTH},
              {JOIN, 0, BRANCH, STREAM, D_PROJ, STREAM},
              {NORM, NORM2_GAIN, STREAM, NORM2, STREAM, D_NORM2, .kept = XHAT2, .rstd = RSTD2},
              {LINEAR, UP, NORM2, SLOPE, D_NORM2, D_UP, WIDTH, INNER},
              {GELU, 0, SLOPE, ACTIVE, D_UP, D_UP},
              {LINEAR, DOWN, ACTIVE, BRANCH, D_UP, D_DOWN, INNER, WIDTH},
              {JOIN, 1, BRANCH, STREAM, D_DOWN, STREAM}},
};

/* The final norm and the logits. */
static const struct layer_kind head = {
    .parameter_count = 4, .area_count = 5, .step_count = 2,
    .parameters = {[FINAL_GAIN] = {"final norm gain", ONE, WIDTH, 1},
                   [FINAL_BIAS] = {"final norm bias", ONE, WIDTH},
                   [HEAD] = {"head", WIDTH, BYTES, 0, DRAWN_WIDE, true},
                   [HEAD_BIAS] = {"head bias", ONE, BYTES}},
    .areas = {AREA(H_NORM, WIDTH), AREA(H_XHAT, WIDTH), [H_RSTD - SAVED] = {ONE, AREA_REALS},
              AREA(H_DNORM, WIDTH), AREA(D_LOGITS, BYTES)},
#undef AREA
    .steps = {{NORM, FINAL_GAIN, STREAM, H_NORM, STREAM, H_DNORM, .kept = H_XHAT, .rstd = H_RSTD},
              {LINEAR, HEAD, H_NORM, OUT, H_DNORM, D_LOGITS, WIDTH, BYTES, .ties = true}},
};

static int size_of(enum size size, int width, int context)
{
    const int sizes[] = {1, width, 3 * width, MLP_FACTOR * width, GPT_BYTES, context};

    return sizes[size];
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Group 0 is the embedding of bytes and positions, groups 1 .. L are the blocks, group L + 1 is the
 * final norm and the head. */
static const struct layer_kind *kind_of(const struct gpt_config *c, int group)
{
    return group == 0 ? &embedding : group <= c->layers ? &block : &head;
}

static size_t elements_of(const struct gpt_config *c, const struct parameter *p)
{
    return (size_t)size_of(p->rows, c->width, c->context) *
           (size_t)size_of(p->cols, c->width, c->context);
}

/* A tied tensor other than the first. */
static bool is_copy(const struct gpt_config *c, int group, const struct parameter *p)
{
    return c->tied && p->ties && group > 0;
}

size_t gpt_parameter_count(const struct gpt_config *config)
{
    size_t count = 0;

    for (int group = 0; group < config->layers + 2; group++)
        for (int i = 0; i < kind_of(config, group)->parameter_count; i++) {
            const struct parameter *p = &kind_of(config, group)->parameters[i];
            count += is_copy(config, group, p) ? 0 : elements_of(config, p);
        }
    return count;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* What is the same for all micro-batches, and the call. */
struct part {
    struct attention attention;
    int n, width;       /* n: tokens, sequences * context */
    float dropout_rate;
    bool tied;
    struct compute compute;
    real *scores;       /* scratch of attention */
    real *at[TENSORS_OF_CALL];
    real *w[MAX_TENSORS], *dw[MAX_TENSORS];
    struct dp_random_key keys[2]; /* of its dropouts */
    const void *in;
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* A group of parameters and what computes with them; its place in the list is its number. */
struct gpt_layer {
    struct dp_layer layer;
    const struct layer_kind *kind;
    const struct gpt_layers *gpt;
    char name[24];
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
        const size_t count = elements_of(&l->gpt->config, &l->kind->parameters[i]);
        p->w[i] = room;
        load(count, call->rounded[i].data, room);
        room += count;
    }
}

/* Where in `base` the scratch memory of a call is, or its save area; returns its bytes. base NULL: to
 * learn those only. */
static size_t place_scratch(struct part *p, void *base)
{
    const struct compute *c = &p->compute;
    const size_t branch = (size_t)p->n * (size_t)p->width;
    const size_t scores = c->ops->attention_scratch(&p->attention);
    const size_t used = compute_place(c, branch, AREA_ACTIVATIONS, base, &p->at[BRANCH]);

    return used + compute_place(c, scores, AREA_BYTES, base ? (char *)base + used : NULL, &p->scores);
}

static size_t numbers_of(const struct part *p, enum size columns)
{
    return (size_t)p->n * (size_t)size_of(columns, p->width, 0);
}

static size_t place_saved(struct part *p, const struct layer_kind *kind, void *base)
{
    const struct compute *c = &p->compute;
    size_t used = 0;

    for (int i = 0; i < kind->area_count; i++) {
        const enum size columns = kind->areas[i].columns;
        const size_t count = columns == KEPT ? c->ops->attention_kept(&p->attention)
                                             : numbers_of(p, columns);
        used += compute_place(c, count, kind->areas[i].unit, base ? (char *)base + used : NULL,
                              &p->at[SAVED + i]);
    }
    return used;
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
    place_saved(&p, l->kind, call->save);
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

/* ---- steps ------------------------------------------------------------------------------------- */

static void step_forward(const struct part *p, const struct step *s)
{
    const struct compute *c = &p->compute;
    const int in = size_of(s->in, p->width, 0), out = size_of(s->out, p->width, 0);
    real *x = p->at[s->x], *y = p->at[s->y], *const *w = p->w + s->w;

    switch (s->kind) {
    case EMBED:
        c->ops->embed_forward(c, p->n, p->attention.context, p->width, p->in, w[0], w[1], y);
        c->ops->dropout(c, p->keys[0], p->dropout_rate, numbers_of(p, WIDTH), y);
        return;
    case NORM:
        c->ops->norm_forward(c, p->n, p->width, x, w[0], w[1], y, p->at[s->kept], p->at[s->rstd]);
        return;
    case LINEAR:
        c->ops->linear_forward(c, p->n, in, out, s->ties && p->tied, x, w[0], w[1], y);
        return;
    case ATTENTION:
        c->ops->attention_forward(c, &p->attention, x, p->at[s->kept], y);
        return;
    case GELU:
        c->ops->gelu_forward(c, numbers_of(p, INNER), x, y);
        return;
    case JOIN:
        c->ops->dropout(c, p->keys[s->w], p->dropout_rate, numbers_of(p, WIDTH), x);
        c->ops->add(c, numbers_of(p, WIDTH), x, y);
        return;
    }
}

static void step_backward(const struct part *p, const struct step *s)
{
    const struct compute *c = &p->compute;
    const int in = size_of(s->in, p->width, 0), out = size_of(s->out, p->width, 0);
    real *dx = p->at[s->dx], *dy = p->at[s->dy];

    switch (s->kind) {
    case EMBED: /* tokens have no gradient */
        c->ops->dropout(c, p->keys[0], p->dropout_rate, numbers_of(p, WIDTH), dy);
        return;
    case NORM:
        c->ops->norm_backward(c, p->n, p->width, dy, p->w[s->w], p->at[s->kept], p->at[s->rstd], dx);
        return;
    case LINEAR:
        c->ops->linear_backward(c, p->n, in, out, s->ties && p->tied, dy, p->w[s->w], dx);
        return;
    case ATTENTION:
        c->ops->attention_backward(c, &p->attention, p->at[s->x], p->at[s->kept], p->at[s->y], dy, dx,
                                   p->scores);
        return;
    case GELU:
        c->ops->gelu_backward(c, numbers_of(p, INNER), p->at[s->x], dy);
        return;
    case JOIN:
        c->ops->copy(c, numbers_of(p, WIDTH), dy, dx);
        c->ops->dropout(c, p->keys[s->w], p->dropout_rate, numbers_of(p, WIDTH), dx);
        return;
    }
}

static void step_weight(const struct part *p, const struct step *s)
{
    const struct compute *c = &p->compute;
    const int in = size_of(s->in, p->width, 0), out = size_of(s->out, p->width, 0);
    real *dy = p->at[s->dy], *const *dw = p->dw + s->w;

    if (s->kind == EMBED)
        c->ops->embed_weight(c, p->n, p->attention.context, p->width, p->in, dy, dw[0], dw[1]);
    else if (s->kind == NORM)
        c->ops->norm_weight(c, p->n, p->width, dy, p->at[s->kept], dw[0], dw[1]);
    else if (s->kind == LINEAR)
        c->ops->linear_weight(c, p->n, in, out, s->ties && p->tied, p->at[s->x], dy, dw[0], dw[1]);
}

static void layer_forward(struct part *p, const struct layer_kind *kind, const void *in, void *out)
{
    p->in = in;
    p->at[STREAM] = kind->is_residual ? out : (real *)(uintptr_t)in;
    p->at[OUT] = out;
    if (kind->is_residual)
        p->compute.ops->copy(&p->compute, numbers_of(p, WIDTH), in, out);
    for (int i = 0; i < kind->step_count; i++)
        step_forward(p, &kind->steps[i]);
}

static void layer_backward(struct part *p, const struct layer_kind *kind, const void *gout, void *gin)
{
    const struct step *last = &kind->steps[kind->step_count - 1];
    const struct compute *c = &p->compute;

    p->at[STREAM] = gin;
    if (!kind->is_residual && gin) /* to which a norm adds */
        c->ops->zero(c, numbers_of(p, WIDTH), gin);
    c->ops->copy(c, numbers_of(p, kind->is_residual ? WIDTH : last->out), gout, p->at[last->dy]);
    for (int i = kind->step_count - 1; i >= 0; i--)
        step_backward(p, &kind->steps[i]);
}

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
    const struct layer_kind *kind = w->layer->kind;
    struct part p = part_of(w->layer, w->call);

    if (w->kind == FORWARD)
        layer_forward(&p, kind, data_of(w->in), gpt_data(w->out));
    else if (w->kind != WEIGHT)
        layer_backward(&p, kind, data_of(w->gout), w->gin ? gpt_data(w->gin) : NULL);
    for (int i = 0; (w->kind == BACKWARD || w->kind == WEIGHT) && i < kind->step_count; i++)
        step_weight(&p, &kind->steps[i]);
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

/* Initial weights are drawn as if in a step that no training reaches. */
static int fill(void *user, int32_t index, uint64_t seed, DLTensor *value)
{
    const struct gpt_layer *l = user;
    const struct gpt_config *c = &l->gpt->config;
    const struct parameter *p = &l->kind->parameters[index];
    const int group = (int)(l - l->gpt->layers);
    const int where = is_copy(c, group, p) ? TABLE : group * MAX_TENSORS + index;
    const struct dp_random_key key = dp_random_key(seed, UINT32_MAX, (uint32_t)where, 0);
    const float wide = 1 / sqrtf((float)c->width), small = wide / sqrtf(2 * (float)c->layers);
    const float deviation = p->spread == DRAWN_WIDE ? wide : p->spread == DRAWN_SMALL ? small : 0;
    const size_t count = elements_of(c, p);
    real *w = gpt_data(value);
    float normal[256];

    for (size_t at = 0; at < count; at += 256) {
        size_t n = count - at < 256 ? count - at : 256;
        dp_random_normal(key, at, normal, n);
        for (size_t i = 0; i < n; i++)
            w[at + i] = p->mean + deviation * normal[i];
    }
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

/* Returns how many numbers they are. */
static size_t describe_parameters(struct gpt_layer *l, int group)
{
    const struct gpt_config *c = &l->gpt->config;
    size_t count = 0;

    l->layer.parameter_count = l->kind->parameter_count;
    l->layer.parameters = l->parameters;
    for (int i = 0; i < l->kind->parameter_count; i++) {
        const struct parameter *p = &l->kind->parameters[i];
        const bool copy = is_copy(c, group, p);
        const int rows = size_of(copy ? p->cols : p->rows, c->width, c->context);
        l->parameters[i] = (struct dp_parameter_spec){
            .name = p->name,
            .tied = copy ? embedding.parameters[TABLE].name : NULL,
            .flags = rows == 1 ? DP_PARAMETER_NO_DECAY : 0,
            .dtype = real_type,
            .ndim = 2,
            .shape = {rows, size_of(copy ? p->rows : p->cols, c->width, c->context)},
            .fill = fill,
        };
        count += elements_of(c, p);
    }
    return count;
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
    l->kind = kind_of(&g->config, group);
    l->layer = (struct dp_layer){
        .ops = &layer_ops,
        .user = l,
        .name = l->name,
        .cost = first || last ? end_cost : 1,
        .out = last ? &g->logits : &g->x,
        .save.whole = place_saved(&measured, l->kind, NULL),
        .scratch_bytes = (first || last) && !g->widens ? 0 : place_scratch(&measured, NULL),
        .drops_input = !first,
    };
    const size_t count = describe_parameters(l, group);
    if (g->widens)
        l->layer.scratch_bytes += count * sizeof(real);
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
