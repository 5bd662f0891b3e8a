/* SPDX-License-Identifier: Apache-2.0 */
#include "train/ends.h"

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
