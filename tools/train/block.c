/* SPDX-License-Identifier: Apache-2.0 */
#include "train/block.h"

#include <string.h>

size_t parts_lay_out(const struct part *parts, size_t len, real *base)
{
    size_t used = 0;

    for (size_t i = 0; i < len; i++) {
        *parts[i].at = base ? base + used : NULL;
        used += parts[i].count;
    }
    return used;
}

size_t block_save_init(struct block_save *save, const struct block_shape *shape, real *base)
{
    size_t n = (size_t)shape->n, nc = n * (size_t)shape->attention.width;
    size_t scores = n * (size_t)shape->attention.heads * (size_t)shape->attention.context;
    const struct part parts[] = {
        {&save->norm1, nc}, {&save->xhat1, nc}, {&save->rstd1, n}, {&save->qkv, 3 * nc},
        {&save->p, scores}, {&save->mixed, nc}, {&save->norm2, nc}, {&save->xhat2, nc},
        {&save->rstd2, n}, {&save->slope, MLP_FACTOR * nc}, {&save->active, MLP_FACTOR * nc},
        {&save->d_norm1, nc}, {&save->d_qkv, 3 * nc}, {&save->d_proj, nc}, {&save->d_norm2, nc},
        {&save->d_up, MLP_FACTOR * nc}, {&save->d_down, nc},
    };

    return parts_lay_out(parts, sizeof(parts) / sizeof(parts[0]), base);
}

void block_forward(const struct block_shape *shape, real *const w[], const struct block_save *save,
                   const struct dp_random_key keys[2], real *x)
{
    int n = shape->n, width = shape->attention.width, inner = MLP_FACTOR * width;
    size_t nc = (size_t)n * (size_t)width, ni = (size_t)n * (size_t)inner;
    real *branch = shape->branch;

    norm_forward(n, width, x, w[NORM1_GAIN], w[NORM1_BIAS], save->norm1, save->xhat1, save->rstd1);
    linear_forward(n, width, 3 * width, save->norm1, w[QKV], w[QKV_BIAS], save->qkv);
    attention_forward(&shape->attention, save->qkv, save->p, save->mixed);
    linear_forward(n, width, width, save->mixed, w[PROJ], w[PROJ_BIAS], branch);
    dropout(keys[0], shape->dropout_rate, nc, branch);
    add(nc, branch, x);

    norm_forward(n, width, x, w[NORM2_GAIN], w[NORM2_BIAS], save->norm2, save->xhat2, save->rstd2);
    linear_forward(n, width, inner, save->norm2, w[UP], w[UP_BIAS], save->slope);
    gelu_forward(ni, save->slope, save->active);
    linear_forward(n, inner, width, save->active, w[DOWN], w[DOWN_BIAS], branch);
    dropout(keys[1], shape->dropout_rate, nc, branch);
    add(nc, branch, x);
}

void block_backward(const struct block_shape *shape, real *const w[], const struct block_save *save,
                    const struct dp_random_key keys[2], real *dx)
{
    int n = shape->n, width = shape->attention.width, inner = MLP_FACTOR * width;
    size_t nc = (size_t)n * (size_t)width, ni = (size_t)n * (size_t)inner;
    real *d_mixed = shape->branch;

    memcpy(save->d_down, dx, nc * sizeof(real));
    dropout(keys[1], shape->dropout_rate, nc, save->d_down);
    linear_backward(n, inner, width, save->d_down, w[DOWN], save->d_up);
    gelu_backward(ni, save->slope, save->d_up);
    linear_backward(n, width, inner, save->d_up, w[UP], save->d_norm2);
    norm_backward(n, width, save->d_norm2, w[NORM2_GAIN], save->xhat2, save->rstd2, dx);

    memcpy(save->d_proj, dx, nc * sizeof(real));
    dropout(keys[0], shape->dropout_rate, nc, save->d_proj);
    linear_backward(n, width, width, save->d_proj, w[PROJ], d_mixed);
    attention_backward(&shape->attention, save->qkv, save->p, d_mixed, save->d_qkv, shape->scores);
    linear_backward(n, width, 3 * width, save->d_qkv, w[QKV], save->d_norm1);
    norm_backward(n, width, save->d_norm1, w[NORM1_GAIN], save->xhat1, save->rstd1, dx);
}

void block_weight(const struct block_shape *shape, const struct block_save *save, real *const dw[])
{
    int n = shape->n, width = shape->attention.width, inner = MLP_FACTOR * width;

    norm_weight(n, width, save->d_norm1, save->xhat1, dw[NORM1_GAIN], dw[NORM1_BIAS]);
    linear_weight(n, width, 3 * width, save->norm1, save->d_qkv, dw[QKV], dw[QKV_BIAS]);
    linear_weight(n, width, width, save->mixed, save->d_proj, dw[PROJ], dw[PROJ_BIAS]);
    norm_weight(n, width, save->d_norm2, save->xhat2, dw[NORM2_GAIN], dw[NORM2_BIAS]);
    linear_weight(n, width, inner, save->norm2, save->d_up, dw[UP], dw[UP_BIAS]);
    linear_weight(n, inner, width, save->active, save->d_down, dw[DOWN], dw[DOWN_BIAS]);
}
