/* SPDX-License-Identifier: Apache-2.0 */
#include "train/gpt.h"

#include <stdlib.h>
#include <string.h>

/* ---- the save area ------------------------------------------------------------------------- */

struct stage_save {
    real *d_embedding;                            /* first stage */
    real *blocks;                                 /* of each block, one after the other */
    real *norm, *xhat, *rstd, *d_norm, *d_logits; /* last stage */
};

static size_t stage_save_init(struct stage_save *save, const struct gpt_stage *g, real *base)
{
    struct block_save block;
    size_t n = (size_t)g->shape.n, nc = n * (size_t)g->config.width;
    size_t head = g->has_head ? 1 : 0, blocks = (size_t)(g->end_block - g->first_block);
    const struct part parts[] = {
        {&save->d_embedding, g->has_embedding ? nc : 0},
        {&save->blocks, blocks * block_save_init(&block, &g->shape, NULL)},
        {&save->norm, head * nc}, {&save->xhat, head * nc}, {&save->rstd, head * n},
        {&save->d_norm, head * nc}, {&save->d_logits, head * n * GPT_BYTES},
    };

    return parts_lay_out(parts, sizeof(parts) / sizeof(parts[0]), base);
}

/* ---- forward, backward, weight ------------------------------------------------------------- */

static void *data_of(const DLTensor *t)
{
    return (char *)t->data + t->byte_offset;
}

/* The key of one of the two dropouts of a group. */
static struct dp_random_key dropout_key(const struct dp_stage_call *call, int group, int which)
{
    return dp_random_key(call->random.key, call->step, (uint32_t)(2 * group + which),
                         (uint32_t)call->mb_global);
}

/* What the callbacks need of one block of one micro-batch. */
struct block_call {
    struct block_save save;
    struct dp_random_key keys[2];
    real *tensors[BLOCK_TENSORS];
};

static void block_call_init(struct block_call *b, const struct gpt_stage *g, int group, real *base,
                            const struct dp_stage_call *call, const struct stage_save *save)
{
    size_t len = block_save_init(&b->save, &g->shape, NULL);

    block_save_init(&b->save, &g->shape, save->blocks + (size_t)(group - g->first_block) * len);
    b->keys[0] = dropout_key(call, group, 0);
    b->keys[1] = dropout_key(call, group, 1);
    params_group(&g->params, group, base, b->tensors);
}

static void embedding_forward(const struct gpt_stage *g, const struct dp_stage_call *call,
                              float dropout_rate, const uint8_t *tokens, real *x)
{
    int n = g->shape.n, width = g->config.width;
    real *w[EMBEDDING_TENSORS];

    params_group(&g->params, 0, g->weights, w);
    embed_forward(n, g->config.context, width, tokens, w[TABLE], w[POSITIONS], x);
    dropout(dropout_key(call, 0, 0), dropout_rate, (size_t)n * (size_t)width, x);
}

static void head_forward(const struct gpt_stage *g, const struct stage_save *save, const real *x,
                         real *logits)
{
    int n = g->shape.n, width = g->config.width;
    real *w[HEAD_TENSORS];

    params_group(&g->params, g->config.layers + 1, g->weights, w);
    norm_forward(n, width, x, w[FINAL_GAIN], w[FINAL_BIAS], save->norm, save->xhat, save->rstd);
    linear_forward(n, width, GPT_BYTES, save->norm, w[HEAD], w[HEAD_BIAS], logits);
}

static void head_backward(const struct gpt_stage *g, const struct stage_save *save,
                          const real *d_logits, real *dx)
{
    int n = g->shape.n, width = g->config.width;
    real *w[HEAD_TENSORS];

    params_group(&g->params, g->config.layers + 1, g->weights, w);
    memcpy(save->d_logits, d_logits, (size_t)n * GPT_BYTES * sizeof(real));
    linear_backward(n, width, GPT_BYTES, d_logits, w[HEAD], save->d_norm);
    memset(dx, 0, (size_t)n * (size_t)width * sizeof(real));
    norm_backward(n, width, save->d_norm, w[FINAL_GAIN], save->xhat, save->rstd, dx);
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    const struct gpt_stage *g = user;
    struct block_shape shape = g->shape;
    struct stage_save save;
    real *x = g->has_head ? g->residual : data_of(out);

    if (!call->training)
        shape.dropout_rate = 0;
    stage_save_init(&save, g, call->save);
    if (g->has_embedding)
        embedding_forward(g, call, shape.dropout_rate, data_of(in), x);
    else
        memcpy(x, data_of(in), (size_t)g->shape.n * (size_t)g->config.width * sizeof(real));
    for (int group = g->first_block; group < g->end_block; group++) {
        struct block_call b;
        block_call_init(&b, g, group, g->weights, call, &save);
        block_forward(&shape, b.tensors, &b.save, b.keys, x);
    }
    if (g->has_head)
        head_forward(g, &save, x, data_of(out));
    return 0;
}

static int weight(void *user, const struct dp_stage_call *call)
{
    const struct gpt_stage *g = user;
    int n = g->shape.n, width = g->config.width;
    real *grads = data_of(call->grads[0]), *dw[MAX_TENSORS];
    struct stage_save save;

    stage_save_init(&save, g, call->save);
    if (g->has_head) {
        params_group(&g->params, g->config.layers + 1, grads, dw);
        norm_weight(n, width, save.d_norm, save.xhat, dw[FINAL_GAIN], dw[FINAL_BIAS]);
        linear_weight(n, width, GPT_BYTES, save.norm, save.d_logits, dw[HEAD], dw[HEAD_BIAS]);
    }
    for (int group = g->first_block; group < g->end_block; group++) {
        struct block_call b;
        block_call_init(&b, g, group, grads, call, &save);
        block_weight(&g->shape, &b.save, b.tensors);
    }
    if (g->has_embedding) {
        params_group(&g->params, 0, grads, dw);
        embed_weight(n, g->config.context, width, data_of(call->in), save.d_embedding, dw[TABLE],
                     dw[POSITIONS]);
    }
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    const struct gpt_stage *g = user;
    size_t nc = (size_t)g->shape.n * (size_t)g->config.width;
    struct stage_save save;

    stage_save_init(&save, g, call->save);
    real *dx = g->has_embedding ? save.d_embedding : data_of(gin);
    if (g->has_head)
        head_backward(g, &save, data_of(gout), dx);
    else
        memcpy(dx, data_of(gout), nc * sizeof(real));
    for (int group = g->end_block - 1; group >= g->first_block; group--) {
        struct block_call b;
        block_call_init(&b, g, group, g->weights, call, &save);
        block_backward(&g->shape, b.tensors, &b.save, b.keys, dx);
    }
    if (g->has_embedding)
        dropout(dropout_key(call, 0, 0), g->shape.dropout_rate, nc, dx);
    return mode == DP_BACKWARD_FULL ? weight(user, call) : 0;
}

const struct dp_stage_ops gpt_stage_ops = {forward, backward, weight, NULL};

/* ---- the loss ------------------------------------------------------------------------------ */

static int rows_of(const DLTensor *logits)
{
    return (int)(logits->shape[0] * logits->shape[1]);
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    (void)user, (void)call, (void)max;
    values[0] = entropy_forward(rows_of(out), GPT_BYTES, data_of(out), data_of(label));
    *count = 1;
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *label, double scale, DLTensor *gout)
{
    (void)user, (void)call;
    entropy_backward(rows_of(out), GPT_BYTES, data_of(out), data_of(label), scale, data_of(gout));
    return 0;
}

const struct dp_loss_ops gpt_loss_ops = {loss, loss_backward};

/* ---- making a stage ------------------------------------------------------------------------- */

static const DLDataType dtype_byte = {kDLUInt, 8, 1};
static const DLDataType dtype_real = {kDLFloat, 8 * sizeof(real), 1};

void gpt_borders(const struct gpt_config *c, int stages, struct dp_border *borders)
{
    const struct dp_tensor_spec tokens = {dtype_byte, 2, {c->batch, c->context}, true};
    const struct dp_tensor_spec x = {dtype_real, 3, {c->batch, c->context, c->width}, false};

    for (int s = 0; s <= stages; s++)
        borders[s] = (struct dp_border){1, {s == 0 ? tokens : x}};
    borders[stages].tensors[0].shape[2] = GPT_BYTES;
}

/* Everything but the memory. */
static struct gpt_stage stage_shape(const struct gpt_config *c, int stage, int stages)
{
    int blocks = c->layers / stages;
    struct stage_save save;
    struct gpt_stage g = {
        .config = *c,
        .shape = {
            .attention = {c->batch, c->context, c->heads, c->width},
            .n = c->batch * c->context,
            .dropout_rate = c->dropout,
        },
        .first_block = 1 + stage * blocks,
        .end_block = 1 + (stage + 1) * blocks,
        .has_embedding = stage == 0,
        .has_head = stage == stages - 1,
    };
    g.first_group = g.has_embedding ? 0 : g.first_block;
    g.end_group = g.has_head ? c->layers + 2 : g.end_block;
    g.save_bytes = stage_save_init(&save, &g, NULL) * sizeof(real);
    return g;
}

/* Scratch of a stage: residual, branch, scores. */
static size_t scratch_count(const struct gpt_config *c)
{
    size_t nc = (size_t)c->batch * (size_t)c->context * (size_t)c->width;
    return 2 * nc + (size_t)c->context * (size_t)c->context;
}

struct gpt_stage_size gpt_stage_size(const struct gpt_config *config, int stage, int stages)
{
    struct gpt_stage g = stage_shape(config, stage, stages);

    return (struct gpt_stage_size){
        .param_count = params_count(config, g.first_group, g.end_group),
        .save_bytes = g.save_bytes,
        .scratch_bytes = scratch_count(config) * sizeof(real),
    };
}

static int stage_alloc(struct gpt_stage *g)
{
    size_t nc = (size_t)g->shape.n * (size_t)g->config.width;

    if (params_init(&g->params, &g->config, g->first_group, g->end_group) < 0)
        return DP_ENOMEM;
    g->weights = calloc(g->params.count, sizeof(real));
    g->grads = calloc(g->params.count, sizeof(real));
    g->residual = calloc(scratch_count(&g->config), sizeof(real));
    if (!g->weights || !g->grads || !g->residual)
        return DP_ENOMEM;
    g->shape.branch = g->residual + nc;
    g->shape.scores = g->residual + 2 * nc;
    return 0;
}

int gpt_stage_new(const struct gpt_config *config, int stage, int stages, struct gpt_stage **out)
{
    struct gpt_stage *g = malloc(sizeof(*g));
    if (!g)
        return DP_ENOMEM;

    *g = stage_shape(config, stage, stages);
    if (stage_alloc(g) < 0) {
        gpt_stage_free(g);
        return DP_ENOMEM;
    }
    params_draw(&g->params, config->seed, g->weights);
    g->grads_shape[0] = (int64_t)g->params.count;
    g->grads_tensor = (DLTensor){g->grads, {kDLCPU, 0}, 1, dtype_real, g->grads_shape, NULL, 0};
    g->grads_list[0] = &g->grads_tensor;
    *out = g;
    return 0;
}

void gpt_stage_free(struct gpt_stage *g)
{
    if (!g)
        return;
    free(g->residual);
    free(g->grads);
    free(g->weights);
    params_fini(&g->params);
    free(g);
}

struct dp_stage gpt_stage_view(struct gpt_stage *g)
{
    return (struct dp_stage){
        .ops = &gpt_stage_ops,
        .user = g,
        .save_bytes = g->save_bytes,
        .grad_count = 1,
        .grads = g->grads_list,
    };
}
