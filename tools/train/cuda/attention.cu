/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.cu - fused causal attention: scores never leave the block. Of a row the forward keeps the
 * log of the sum of exp(score) alone, from which the backward has the probabilities again.
 *
 * A block has ATTENTION_ROWS rows of one head, and goes over the other side in tiles of as many. Eight
 * threads share a row: of a tile's scores each has two, of the row's sums every eighth column.
 *
 * Source: Dao et al., "FlashAttention", 2022; Milakov and Gimelshein, "Online normalizer calculation for
 * softmax", 2018.
 */

#ifndef DP_TRAIN_ATTENTION_SHAPE
#define DP_TRAIN_ATTENTION_SHAPE
enum {
    ROWS = ATTENTION_ROWS,
    SHARERS = BLOCK_THREADS / ROWS,
    SHARE = ATTENTION_DEPTH / SHARERS, /* most columns of a thread */
    SCORES = ROWS + 1                  /* stride of a tile of scores */
};
#endif

/* Where a head of a sequence begins in qkv (its query) and in y, and in lse. */
DEVICE size_t NAME(head_qkv)(const struct attention_args *a)
{
    return (size_t)block_z() * (size_t)a->context * 3 * (size_t)a->width +
           (size_t)block_y() * (size_t)(a->width / a->heads);
}

DEVICE size_t NAME(head_y)(const struct attention_args *a)
{
    return (size_t)block_z() * (size_t)a->context * (size_t)a->width +
           (size_t)block_y() * (size_t)(a->width / a->heads);
}

DEVICE size_t NAME(head_lse)(const struct attention_args *a)
{
    return ((size_t)block_z() * (size_t)a->heads + (size_t)block_y()) * (size_t)a->context;
}

/* ROWS rows from `row` on into a tile; those behind the end are zero. */
DEVICE void NAME(load_tile)(const struct attention_args *a, const void *x, size_t at, size_t stride,
                            int row, float *tile)
{
    const int depth = a->width / a->heads;

    for (int i = thread_id(); i < ROWS * depth; i += thread_count()) {
        const int r = i / depth, d = i % depth;
        tile[r * (depth + 1) + d] =
            row + r < a->context ? LOAD(x, at + (size_t)(row + r) * stride + (size_t)d) : 0.0f;
    }
}

DEVICE float NAME(dot)(int depth, const float *x, const float *y)
{
    float sum = 0;

    for (int d = 0; d < depth; d++)
        sum += x[d] * y[d];
    return sum;
}

/* sums[k] += sum over the tile's rows i of weights[i] tile[i][sharer + k * SHARERS] */
DEVICE void NAME(add_rows)(int depth, const float *weights, const float *tile, int sharer,
                           float *sums)
{
    for (int i = 0; i < ROWS; i++) {
        const float w = weights[i], *row = tile + i * (depth + 1);
        UNROLL for (int k = 0; k < SHARE; k++)
            if (sharer + k * SHARERS < depth)
                sums[k] += w * row[sharer + k * SHARERS];
    }
}

DEVICE void NAME(store_row)(int depth, const float *sums, float scale, int sharer, void *to,
                            size_t at)
{
    UNROLL for (int k = 0; k < SHARE; k++)
        if (sharer + k * SHARERS < depth)
            STORE(to, at + (size_t)(sharer + k * SHARERS), sums[k] * scale);
}

KERNEL(NAME(attention_forward), attention_args)
{
    const int depth = a.width / a.heads, first = block_x() * ROWS;
    const int r = thread_id() / SHARERS, sharer = thread_id() % SHARERS, row = first + r;
    const size_t tile = (size_t)ROWS * (size_t)(depth + 1), stride = 3 * (size_t)a.width;
    const size_t at = NAME(head_qkv)(&a);
    const float scale = 1 / sqrtf((float)depth);
    float *q = block_memory(), *k = q + tile, *v = k + tile, *scores = v + tile;
    float sums[SHARE] = {0}, most = -3.402823466e38f, total = 0;

    NAME(load_tile)(&a, a.qkv, at, stride, first, q);
    for (int key = 0; key <= first; key += ROWS) {
        NAME(load_tile)(&a, a.qkv, at + (size_t)a.width, stride, key, k);
        NAME(load_tile)(&a, a.qkv, at + 2 * (size_t)a.width, stride, key, v);
        block_sync();
        for (int j = sharer; j < ROWS; j += SHARERS)
            scores[r * SCORES + j] =
                key + j <= row
                    ? scale * NAME(dot)(depth, q + r * (depth + 1), k + j * (depth + 1))
                    : -3.402823466e38f;
        block_sync();
        float highest = most, weights[ROWS];
        for (int j = 0; j < ROWS; j++)
            highest = fmaxf(highest, scores[r * SCORES + j]);
        const float shrink = expf(most - highest);
        total *= shrink;
        UNROLL for (int c = 0; c < SHARE; c++)
            sums[c] *= shrink;
        UNROLL for (int j = 0; j < ROWS; j++) {
            weights[j] = key + j <= row ? expf(scores[r * SCORES + j] - highest) : 0.0f;
            total += weights[j];
        }
        most = highest;
        NAME(add_rows)(depth, weights, v, sharer, sums);
        block_sync();
    }
    if (row >= a.context)
        return;
    NAME(store_row)(depth, sums, 1 / total, sharer, a.y,
                    NAME(head_y)(&a) + (size_t)row * (size_t)a.width);
    if (sharer == 0)
        a.lse[NAME(head_lse)(&a) + (size_t)row] = most + logf(total);
}

/* delta = sum of dy y, a warp a row of a head. */
KERNEL(NAME(attention_delta), attention_args)
{
    const int row = block_x() * BLOCK_ROWS + thread_id() / WARP_LANES, depth = a.width / a.heads;
    const int lane = thread_id() % WARP_LANES;
    const size_t at = NAME(head_y)(&a) + (size_t)row * (size_t)a.width;
    float sum = 0;

    if (row >= a.context)
        return;
    for (int d = lane; d < depth; d += WARP_LANES)
        sum += LOAD(a.dy, at + (size_t)d) * LOAD(a.y, at + (size_t)d);
    sum = warp_sum(sum);
    if (lane == 0)
        a.delta[NAME(head_lse)(&a) + (size_t)row] = sum;
}

/* A block has queries; it goes over the keys that these see. */
KERNEL(NAME(attention_dq), attention_args)
{
    const int depth = a.width / a.heads, first = block_x() * ROWS;
    const int r = thread_id() / SHARERS, sharer = thread_id() % SHARERS, row = first + r;
    const size_t tile = (size_t)ROWS * (size_t)(depth + 1), stride = 3 * (size_t)a.width;
    const size_t at = NAME(head_qkv)(&a), of = NAME(head_lse)(&a);
    const float scale = 1 / sqrtf((float)depth);
    const float lse = row < a.context ? a.lse[of + (size_t)row] : 0.0f;
    const float delta = row < a.context ? a.delta[of + (size_t)row] : 0.0f;
    float *q = block_memory(), *dy = q + tile, *k = dy + tile, *v = k + tile, *ds = v + tile;
    float sums[SHARE] = {0};

    NAME(load_tile)(&a, a.qkv, at, stride, first, q);
    NAME(load_tile)(&a, a.dy, NAME(head_y)(&a), (size_t)a.width, first, dy);
    for (int key = 0; key <= first; key += ROWS) {
        NAME(load_tile)(&a, a.qkv, at + (size_t)a.width, stride, key, k);
        NAME(load_tile)(&a, a.qkv, at + 2 * (size_t)a.width, stride, key, v);
        block_sync();
        for (int j = sharer; j < ROWS; j += SHARERS) {
            const float s = NAME(dot)(depth, q + r * (depth + 1), k + j * (depth + 1));
            const float dp = NAME(dot)(depth, dy + r * (depth + 1), v + j * (depth + 1));
            ds[r * SCORES + j] = key + j <= row ? expf(scale * s - lse) * (dp - delta) : 0.0f;
        }
        block_sync();
        NAME(add_rows)(depth, ds + r * SCORES, k, sharer, sums);
        block_sync();
    }
    if (row < a.context)
        NAME(store_row)(depth, sums, scale, sharer, a.dqkv, at + (size_t)row * stride);
}

/* A block has keys; it goes over the queries that see them. */
KERNEL(NAME(attention_dkv), attention_args)
{
    const int depth = a.width / a.heads, first = block_x() * ROWS;
    const int r = thread_id() / SHARERS, sharer = thread_id() % SHARERS, row = first + r;
    const size_t tile = (size_t)ROWS * (size_t)(depth + 1), stride = 3 * (size_t)a.width;
    const size_t at = NAME(head_qkv)(&a), of = NAME(head_lse)(&a);
    const float scale = 1 / sqrtf((float)depth);
    float *k = block_memory(), *v = k + tile, *q = v + tile, *dy = q + tile, *p = dy + tile;
    float *ds = p + ROWS * SCORES, dk[SHARE] = {0}, dv[SHARE] = {0};

    NAME(load_tile)(&a, a.qkv, at + (size_t)a.width, stride, first, k);
    NAME(load_tile)(&a, a.qkv, at + 2 * (size_t)a.width, stride, first, v);
    for (int query = first; query < a.context; query += ROWS) {
        NAME(load_tile)(&a, a.qkv, at, stride, query, q);
        NAME(load_tile)(&a, a.dy, NAME(head_y)(&a), (size_t)a.width, query, dy);
        block_sync();
        for (int j = sharer; j < ROWS; j += SHARERS) {
            const bool seen = query + j >= row && query + j < a.context;
            const size_t i = of + (size_t)(seen ? query + j : 0);
            const float s = NAME(dot)(depth, q + j * (depth + 1), k + r * (depth + 1));
            const float dp = NAME(dot)(depth, dy + j * (depth + 1), v + r * (depth + 1));
            p[r * SCORES + j] = seen ? expf(scale * s - a.lse[i]) : 0.0f;
            ds[r * SCORES + j] = p[r * SCORES + j] * (dp - a.delta[i]);
        }
        block_sync();
        NAME(add_rows)(depth, p + r * SCORES, dy, sharer, dv);
        NAME(add_rows)(depth, ds + r * SCORES, q, sharer, dk);
        block_sync();
    }
    if (row >= a.context)
        return;
    NAME(store_row)(depth, dk, scale, sharer, a.dqkv, at + (size_t)a.width + (size_t)row * stride);
    NAME(store_row)(depth, dv, 1, sharer, a.dqkv, at + 2 * (size_t)a.width + (size_t)row * stride);
}
