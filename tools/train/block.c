/* SPDX-License-Identifier: Apache-2.0 */
#include "train/block.h"

size_t block_scratch_init(struct block_shape *shape, void *base)
{
    const struct compute *c = &shape->compute;
    real *branch, *scores;
    const struct part parts[] = {
        {&branch, (size_t)shape->n * (size_t)shape->attention.width, PART_ACTIVATIONS},
        {&scores, c->ops->attention_scratch(&shape->attention), PART_BYTES},
    };
    const size_t bytes = parts_place(c, parts, sizeof(parts) / sizeof(parts[0]), base);

    shape->branch = branch;
    shape->scores = scores;
    return bytes;
}

size_t block_save_init(struct block_save *save, const struct block_shape *shape, void *base)
{
    size_t n = (size_t)shape->n, nc = n * (size_t)shape->attention.width;
    const struct compute *c = &shape->compute;
    size_t kept = c->ops->attention_kept(&shape->attention);
    const struct part parts[] = {
        {&save->norm1, nc, PART_ACTIVATIONS},
        {&save->xhat1, nc, PART_ACTIVATIONS},
        {&save->rstd1, n, PART_REALS},
        {&save->qkv, 3 * nc, PART_ACTIVATIONS},
        {&save->p, kept, PART_BYTES},
        {&save->mixed, nc, PART_ACTIVATIONS},
        {&save->norm2, nc, PART_ACTIVATIONS},
        {&save->xhat2, nc, PART_ACTIVATIONS},
        {&save->rstd2, n, PART_REALS},
        {&save->slope, MLP_FACTOR * nc, PART_ACTIVATIONS},
        {&save->active, MLP_FACTOR * nc, PART_ACTIVATIONS},
        {&save->d_norm1, nc, PART_ACTIVATIONS},
        {&save->d_qkv, 3 * nc, PART_ACTIVATIONS},
        {&save->d_proj, nc, PART_ACTIVATIONS},
        {&save->d_norm2, nc, PART_ACTIVATIONS},
        {&save->d_up, MLP_FACTOR * nc, PART_ACTIVATIONS},
        {&save->d_down, nc, PART_ACTIVATIONS},
    };

    return parts_place(c, parts, sizeof(parts) / sizeof(parts[0]), base);
}

void block_forward(const struct block_shape *shape, real *const w[], const struct block_save *save,
                   const struct dp_random_key keys[2], void *x)
{
    const struct compute *c = &shape->compute;
    const struct compute_ops *ops = c->ops;
    int n = shape->n, width = shape->attention.width, inner = MLP_FACTOR * width;
    size_t nc = (size_t)n * (size_t)width, ni = (size_t)n * (size_t)inner;
    void *branch = shape->branch;

    ops->norm_forward(c, n, width, x, w[NORM1_GAIN], w[NORM1_BIAS], save->norm1, save->xhat1,
                      save->rstd1);
    ops->linear_forward(c, n, width, 3 * width, save->norm1, w[QKV], w[QKV_BIAS], save->qkv);
    ops->attention_forward(c, &shape->attention, save->qkv, save->p, save->mixed);
    ops->linear_forward(c, n, width, width, save->mixed, w[PROJ], w[PROJ_BIAS], branch);
    ops->dropout(c, keys[0], shape->dropout_rate, nc, branch);
    ops->add(c, nc, branch, x);

    ops->norm_forward(c, n, width, x, w[NORM2_GAIN], w[NORM2_BIAS], save->norm2, save->xhat2,
                      save->rstd2);
    ops->linear_forward(c, n, width, inner, save->norm2, w[UP], w[UP_BIAS], save->slope);
    ops->gelu_forward(c, ni, save->slope, save->active);
    ops->linear_forward(c, n, inner, width, save->active, w[DOWN], w[DOWN_BIAS], branch);
    ops->dropout(c, keys[1], shape->dropout_rate, nc, branch);
    ops->add(c, nc, branch, x);
}

void block_backward(const struct block_shape *shape, real *const w[], const struct block_save *save,
                    const struct dp_random_key keys[2], void *dx)
{
    const struct compute *c = &shape->compute;
    const struct compute_ops *ops = c->ops;
    int n = shape->n, width = shape->attention.width, inner = MLP_FACTOR * width;
    size_t nc = (size_t)n * (size_t)width, ni = (size_t)n * (size_t)inner;
    void *d_mixed = shape->branch;

    ops->copy(c, nc, dx, save->d_down);
    ops->dropout(c, keys[1], shape->dropout_rate, nc, save->d_down);
    ops->linear_backward(c, n, inner, width, save->d_down, w[DOWN], save->d_up);
    ops->gelu_backward(c, ni, save->slope, save->d_up);
    ops->linear_backward(c, n, width, inner, save->d_up, w[UP], save->d_norm2);
    ops->norm_backward(c, n, width, save->d_norm2, w[NORM2_GAIN], save->xhat2, save->rstd2, dx);

    ops->copy(c, nc, dx, save->d_proj);
    ops->dropout(c, keys[0], shape->dropout_rate, nc, save->d_proj);
    ops->linear_backward(c, n, width, width, save->d_proj, w[PROJ], d_mixed);
    ops->attention_backward(c, &shape->attention, save->qkv, save->p, save->mixed, d_mixed,
                            save->d_qkv, shape->scores);
    ops->linear_backward(c, n, width, 3 * width, save->d_qkv, w[QKV], save->d_norm1);
    ops->norm_backward(c, n, width, save->d_norm1, w[NORM1_GAIN], save->xhat1, save->rstd1, dx);
}

void block_weight(const struct block_shape *shape, const struct block_save *save, real *const dw[])
{
    const struct compute *c = &shape->compute;
    const struct compute_ops *ops = c->ops;
    int n = shape->n, width = shape->attention.width, inner = MLP_FACTOR * width;

    ops->norm_weight(c, n, width, save->d_norm1, save->xhat1, dw[NORM1_GAIN], dw[NORM1_BIAS]);
    ops->linear_weight(c, n, width, 3 * width, save->norm1, save->d_qkv, dw[QKV], dw[QKV_BIAS]);
    ops->linear_weight(c, n, width, width, save->mixed, save->d_proj, dw[PROJ], dw[PROJ_BIAS]);
    ops->norm_weight(c, n, width, save->d_norm2, save->xhat2, dw[NORM2_GAIN], dw[NORM2_BIAS]);
    ops->linear_weight(c, n, width, inner, save->norm2, save->d_up, dw[UP], dw[UP_BIAS]);
    ops->linear_weight(c, n, inner, width, save->active, save->d_down, dw[DOWN], dw[DOWN_BIAS]);
}

/* ---- the ends -------------------------------------------------------------------------------- */

static size_t numbers_of(const struct block_shape *shape)
{
    return (size_t)shape->n * (size_t)shape->attention.width;
}

/* ---- the embedding --------------------------------------------------------------------------- */

void embedding_forward(const struct block_shape *shape, real *const w[], struct dp_random_key key,
                       const uint8_t *tokens, void *x)
{
    const struct compute *c = &shape->compute;
    const struct attention *a = &shape->attention;

    c->ops->embed_forward(c, shape->n, a->context, a->width, tokens, w[TABLE], w[POSITIONS], x);
    c->ops->dropout(c, key, shape->dropout_rate, numbers_of(shape), x);
}

void embedding_backward(const struct block_shape *shape, struct dp_random_key key, void *dx)
{
    const struct compute *c = &shape->compute;

    c->ops->dropout(c, key, shape->dropout_rate, numbers_of(shape), dx);
}

void embedding_weight(const struct block_shape *shape, const uint8_t *tokens, const void *dx,
                      real *const dw[])
{
    const struct compute *c = &shape->compute;
    const struct attention *a = &shape->attention;

    c->ops->embed_weight(c, shape->n, a->context, a->width, tokens, dx, dw[TABLE], dw[POSITIONS]);
}

/* ---- the head -------------------------------------------------------------------------------- */

size_t head_save_init(struct head_save *save, const struct block_shape *shape, void *base)
{
    const size_t n = (size_t)shape->n, nc = numbers_of(shape);
    const struct part parts[] = {
        {&save->norm, nc, PART_ACTIVATIONS},
        {&save->xhat, nc, PART_ACTIVATIONS},
        {&save->rstd, n, PART_REALS},
        {&save->d_norm, nc, PART_ACTIVATIONS},
        {&save->d_logits, n * GPT_BYTES, PART_ACTIVATIONS},
    };

    return parts_place(&shape->compute, parts, sizeof(parts) / sizeof(parts[0]), base);
}

void head_forward(const struct block_shape *shape, bool tied, real *const w[],
                  const struct head_save *save, const void *x, void *logits)
{
    const struct compute *c = &shape->compute;
    const int n = shape->n, width = shape->attention.width;

    c->ops->norm_forward(c, n, width, x, w[FINAL_GAIN], w[FINAL_BIAS], save->norm, save->xhat,
                         save->rstd);
    (tied ? c->ops->table_forward : c->ops->linear_forward)(c, n, width, GPT_BYTES, save->norm,
                                                            w[HEAD], w[HEAD_BIAS], logits);
}

void head_backward(const struct block_shape *shape, bool tied, real *const w[],
                   const struct head_save *save, const void *d_logits, void *dx)
{
    const struct compute *c = &shape->compute;
    const int n = shape->n, width = shape->attention.width;

    c->ops->copy(c, (size_t)n * GPT_BYTES, d_logits, save->d_logits);
    (tied ? c->ops->table_backward : c->ops->linear_backward)(c, n, width, GPT_BYTES, d_logits,
                                                              w[HEAD], save->d_norm);
    c->ops->zero(c, numbers_of(shape), dx);
    c->ops->norm_backward(c, n, width, save->d_norm, w[FINAL_GAIN], save->xhat, save->rstd, dx);
}

void head_weight(const struct block_shape *shape, bool tied, const struct head_save *save,
                 real *const dw[])
{
    const struct compute *c = &shape->compute;
    const int n = shape->n, width = shape->attention.width;

    c->ops->norm_weight(c, n, width, save->d_norm, save->xhat, dw[FINAL_GAIN], dw[FINAL_BIAS]);
    (tied ? c->ops->table_weight : c->ops->linear_weight)(c, n, width, GPT_BYTES, save->norm,
                                                          save->d_logits, dw[HEAD], dw[HEAD_BIAS]);
}
