/* SPDX-License-Identifier: Apache-2.0 */
#include "train/ends.h"
#include "train/gpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the save area ------------------------------------------------------------------------- */

struct stage_save {
    real *d_embedding; /* first stage */
    real *blocks;      /* of each block, one after the other */
    struct head_save head; /* last stage */
};

static size_t stage_save_init(struct stage_save *save, const struct gpt_stage *g, void *base)
{
    struct block_save block;
    real *head;
    const struct part parts[] = {
        {&save->d_embedding,
         g->has_embedding ? (size_t)g->shape.n * (size_t)g->config.width : 0, PART_ACTIVATIONS},
        {&save->blocks,
         (size_t)(g->end_block - g->first_block) * block_save_init(&block, &g->shape, NULL),
         PART_BYTES},
        {&head, g->has_head ? head_save_init(&save->head, &g->shape, NULL) : 0, PART_BYTES},
    };
    const size_t bytes =
        parts_place(&g->shape.compute, parts, sizeof(parts) / sizeof(parts[0]), base);

    head_save_init(&save->head, &g->shape, head);
    return bytes;
}

/* ---- forward, backward, weight ------------------------------------------------------------- */

struct dp_random_key gpt_dropout_key(uint64_t seed, uint64_t step, int group, int which, int mb)
{
    return dp_random_key(seed, step, (uint32_t)(2 * group + which), (uint32_t)mb);
}

static struct dp_random_key dropout_key(const struct dp_stage_call *call, int group, int which)
{
    return gpt_dropout_key(call->random.key, call->step, group, which, call->mb_global);
}

/* What the callbacks need of one block of one micro-batch. */
struct block_call {
    struct block_save save;
    struct dp_random_key keys[2];
    real *tensors[BLOCK_TENSORS];
};

static void block_call_init(struct block_call *b, const struct gpt_stage *g, int group,
                            const struct dp_stage_call *call, const struct stage_save *save)
{
    size_t len = block_save_init(&b->save, &g->shape, NULL);

    block_save_init(&b->save, &g->shape,
                    (char *)save->blocks + (size_t)(group - g->first_block) * len);
    b->keys[0] = dropout_key(call, group, 0);
    b->keys[1] = dropout_key(call, group, 1);
}

/* The first tensor of a group in the stage's list, and their number. */
static int group_tensors(const struct gpt_stage *g, int group, int *count)
{
    const struct tensor *t = g->params.tensors;
    size_t first = 0, end;

    while (first < g->params.tensors_len && t[first].group != group)
        first++;
    for (end = first; end < g->params.tensors_len && t[end].group == group;)
        end++;
    *count = (int)(end - first);
    return (int)first;
}

/* In a callback: where to add the gradients of a group's tensors. */
static void grads_group(const struct gpt_stage *g, int group, const struct dp_stage_call *call,
                        real *dw[])
{
    int count, first = group_tensors(g, group, &count);

    for (int i = 0; i < count; i++)
        dw[i] = gpt_data(call->grads[first + i]);
}

/* What is computed in a callback is queued in its stream. */
static const struct gpt_stage *begin(void *user, const struct dp_stage_call *call)
{
    struct gpt_stage *g = user;

    g->shape.compute.stream = call->stream;
    return g;
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    const struct gpt_stage *g = begin(user, call);
    struct block_shape shape = g->shape;
    const struct compute *c = &shape.compute;
    struct stage_save save;
    void *x = g->has_head ? g->residual : gpt_data(out);

    if (!call->training)
        shape.dropout_rate = 0;
    stage_save_init(&save, g, call->save);
    real *w[MAX_TENSORS];
    if (g->has_embedding) {
        params_group(&g->params, 0, g->weights, w);
        embedding_forward(&shape, w, dropout_key(call, 0, 0), gpt_data(in), x);
    } else
        c->ops->copy(c, (size_t)g->shape.n * (size_t)g->config.width, gpt_data(in), x);
    for (int group = g->first_block; group < g->end_block; group++) {
        struct block_call b;
        block_call_init(&b, g, group, call, &save);
        params_group(&g->params, group, g->weights, b.tensors);
        block_forward(&shape, b.tensors, &b.save, b.keys, x);
    }
    if (g->has_head) {
        params_group(&g->params, g->config.layers + 1, g->weights, w);
        head_forward(&shape, g->config.tied, w, &save.head, x, gpt_data(out));
    }
    return c->ops->error(c);
}

static int weight(void *user, const struct dp_stage_call *call)
{
    const struct gpt_stage *g = begin(user, call);
    const struct compute *c = &g->shape.compute;
    real *dw[MAX_TENSORS];
    struct stage_save save;

    stage_save_init(&save, g, call->save);
    if (g->has_head) {
        grads_group(g, g->config.layers + 1, call, dw);
        head_weight(&g->shape, g->config.tied, &save.head, dw);
    }
    for (int group = g->first_block; group < g->end_block; group++) {
        struct block_call b;
        block_call_init(&b, g, group, call, &save);
        grads_group(g, group, call, b.tensors);
        block_weight(&g->shape, &b.save, b.tensors);
    }
    if (g->has_embedding) {
        grads_group(g, 0, call, dw);
        embedding_weight(&g->shape, gpt_data(call->in), save.d_embedding, dw);
    }
    return c->ops->error(c);
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout, DLTensor *gin,
                 enum dp_backward_mode mode)
{
    const struct gpt_stage *g = begin(user, call);
    const struct compute *c = &g->shape.compute;
    size_t nc = (size_t)g->shape.n * (size_t)g->config.width;
    struct stage_save save;

    stage_save_init(&save, g, call->save);
    void *dx = g->has_embedding ? save.d_embedding : gpt_data(gin);
    real *w[MAX_TENSORS];
    if (g->has_head) {
        params_group(&g->params, g->config.layers + 1, g->weights, w);
        head_backward(&g->shape, g->config.tied, w, &save.head, gpt_data(gout), dx);
    } else
        c->ops->copy(c, nc, gpt_data(gout), dx);
    for (int group = g->end_block - 1; group >= g->first_block; group--) {
        struct block_call b;
        block_call_init(&b, g, group, call, &save);
        params_group(&g->params, group, g->weights, b.tensors);
        block_backward(&g->shape, b.tensors, &b.save, b.keys, dx);
    }
    if (g->has_embedding)
        embedding_backward(&g->shape, dropout_key(call, 0, 0), dx);
    return mode == DP_BACKWARD_FULL ? weight(user, call) : c->ops->error(c);
}

const struct dp_stage_ops gpt_stage_ops = {
    .forward = forward, .backward = backward, .weight = weight};

/* ---- the loss ------------------------------------------------------------------------------ */

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

const struct dp_loss_ops gpt_loss_ops = {loss, loss_backward};

/* ---- making a stage ------------------------------------------------------------------------- */

static const DLDataType dtype_byte = {kDLUInt, 8, 1};
static const DLDataType dtype_real = {kDLFloat, 8 * sizeof(real), 1};

void gpt_borders(const struct gpt_config *c, int stages, struct dp_border *borders)
{
    const struct dp_tensor_spec tokens = {
        .dtype = dtype_byte, .ndim = 2, .shape = {c->batch, c->context}, .no_grad = true};
    const bool bf16 = c->compute && c->compute->size == 2;
    const struct dp_tensor_spec x = {
        .dtype = bf16 ? (DLDataType){kDLBfloat, 16, 1} : dtype_real,
        .ndim = 3,
        .shape = {c->batch, c->context, c->width}};

    for (int s = 0; s <= stages; s++)
        borders[s] = (struct dp_border){1, {s == 0 ? tokens : x}};
    borders[stages].tensors[0].shape[2] = GPT_BYTES;
}

int gpt_blocks_before(const struct gpt_config *c, int stage, int stages)
{
    int before = 0;

    if (!c->blocks || stages == 1)
        return c->layers / stages * stage;
    for (int s = 0; s < stage; s++)
        before += c->blocks[s];
    return before;
}

struct block_shape gpt_shape(const struct gpt_config *c)
{
    return (struct block_shape){.attention = {c->batch, c->context, c->heads, c->width},
                                .n = c->batch * c->context,
                                .dropout_rate = c->dropout,
                                .compute = c->compute ? *c->compute : compute_cpu};
}

/* Everything but the memory. */
static struct gpt_stage stage_shape(const struct gpt_config *c, int stage, int stages)
{
    struct stage_save save;
    struct gpt_stage g = {
        .config = *c,
        .shape = gpt_shape(c),
        .first_block = 1 + gpt_blocks_before(c, stage, stages),
        .end_block = 1 + gpt_blocks_before(c, stage + 1, stages),
        .has_embedding = stage == 0,
        .has_head = stage == stages - 1,
    };
    g.first_group = g.has_embedding ? 0 : g.first_block;
    g.end_group = g.has_head ? c->layers + 2 : g.end_block;
    g.save_bytes = stage_save_init(&save, &g, NULL);
    return g;
}

/* Scratch of a stage: residual, branch, that of attention. Returns its bytes. */
static size_t scratch_init(struct gpt_stage *g, void *base)
{
    struct block_shape shape = g->shape;
    real *residual, *rest;
    const struct part parts[] = {
        {&residual, (size_t)g->shape.n * (size_t)g->config.width, PART_ACTIVATIONS},
        {&rest, block_scratch_init(&shape, NULL), PART_BYTES},
    };
    const size_t bytes =
        parts_place(&shape.compute, parts, sizeof(parts) / sizeof(parts[0]), base);

    g->residual = residual;
    block_scratch_init(&g->shape, rest);
    return bytes;
}

struct gpt_stage_size gpt_stage_size(const struct gpt_config *config, int stage, int stages)
{
    struct gpt_stage g = stage_shape(config, stage, stages);

    return (struct gpt_stage_size){
        .param_count = params_count(config, g.first_group, g.end_group),
        .save_bytes = g.save_bytes,
        .scratch_bytes = scratch_init(&g, NULL),
    };
}

static int list_alloc(struct gpt_stage *g)
{
    if (params_init(&g->params, &g->config, g->first_group, g->end_group) < 0)
        return DP_ENOMEM;
    g->tensors = calloc(g->params.tensors_len, sizeof(*g->tensors));
    g->parameters = calloc(g->params.tensors_len, sizeof(*g->parameters));
    g->grads_list = calloc(g->params.tensors_len, sizeof(DLTensor *));
    return g->tensors && g->parameters && g->grads_list ? 0 : DP_ENOMEM;
}

static int memory_alloc(struct gpt_stage *g)
{
    void *scratch = calloc(scratch_init(g, NULL), 1);

    g->weights = calloc(g->params.count, sizeof(real));
    g->grads = calloc(g->params.count, sizeof(real));
    g->residual = scratch;
    if (!g->weights || !g->grads || !scratch)
        return DP_ENOMEM;
    scratch_init(g, scratch);
    return 0;
}

static DLTensor tensor_view(const struct gpt_stage *g, const struct gpt_tensor *t,
                            const struct tensor *param, real *base)
{
    return (DLTensor){base ? base + param->offset : NULL,
                      g->shape.compute.dl,
                      2,
                      dtype_real,
                      (int64_t *)t->shape,
                      NULL,
                      0};
}

static void name_tensor(const struct gpt_stage *g, const struct tensor *param, char *name,
                        size_t len)
{
    bool in_block = param->group > 0 && param->group <= g->config.layers;

    if (in_block)
        snprintf(name, len, "block %d %s", param->group, param->name);
    else
        snprintf(name, len, "%s", param->name);
}

const char gpt_tied_name[] = "token embedding";

const char *gpt_saved_name(const struct gpt_stage *g, size_t i)
{
    return tensor_is_copy(&g->params.tensors[i]) ? gpt_tied_name : g->tensors[i].name;
}

static void describe_parameters(struct gpt_stage *g)
{
    for (size_t i = 0; i < g->params.tensors_len; i++) {
        const struct tensor *param = &g->params.tensors[i];
        struct gpt_tensor *t = &g->tensors[i];
        name_tensor(g, param, t->name, sizeof(t->name));
        t->shape[0] = param->rows;
        t->shape[1] = param->cols;
        t->value = tensor_view(g, t, param, g->weights);
        t->grad = tensor_view(g, t, param, g->grads);
        g->grads_list[i] = &t->grad;
        g->parameters[i] = (struct dp_parameter){
            .name = t->name,
            .flags = param->rows == 1 ? DP_PARAMETER_NO_DECAY : 0,
            .value = &t->value,
            .grad = &t->grad,
            .tied = param->tied ? gpt_tied_name : NULL,
        };
    }
}

void gpt_stage_set_memory(struct gpt_stage *g, real *weights, real *grads, void *scratch)
{
    g->weights = weights;
    g->grads = grads;
    scratch_init(g, scratch);
    describe_parameters(g);
}

static int stage_new(const struct gpt_config *config, int stage, int stages, bool bare,
                     struct gpt_stage **out)
{
    struct gpt_stage *g = malloc(sizeof(*g));
    if (!g)
        return DP_ENOMEM;

    *g = stage_shape(config, stage, stages);
    g->bare = bare;
    int err = list_alloc(g);
    if (!err && !bare)
        err = memory_alloc(g);
    if (err) {
        gpt_stage_free(g);
        return err;
    }
    if (g->weights)
        params_draw(&g->params, config->seed, g->weights);
    describe_parameters(g);
    *out = g;
    return 0;
}

int gpt_stage_new(const struct gpt_config *config, int stage, int stages, struct gpt_stage **out)
{
    return stage_new(config, stage, stages, false, out);
}

int gpt_stage_new_bare(const struct gpt_config *config, int stage, int stages,
                       struct gpt_stage **out)
{
    return stage_new(config, stage, stages, true, out);
}

void gpt_stage_free(struct gpt_stage *g)
{
    if (!g)
        return;
    free(g->grads_list);
    free(g->parameters);
    free(g->tensors);
    if (!g->bare) {
        free(g->residual);
        free(g->grads);
        free(g->weights);
    }
    params_fini(&g->params);
    free(g);
}

struct dp_stage gpt_stage_view(struct gpt_stage *g)
{
    return (struct dp_stage){
        .ops = &gpt_stage_ops,
        .user = g,
        .save_bytes = g->save_bytes,
        .parameter_count = (int32_t)g->params.tensors_len,
        .parameters = g->parameters,
    };
}
