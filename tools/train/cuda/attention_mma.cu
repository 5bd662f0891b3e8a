/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_mma.cu - attention.cu's three kernels for bfloat16 and heads of up to MMA_DEPTH columns, on
 * tensor cores. A warp has 16 rows of its block's MMA_ROWS and goes over the other side in tiles of
 * MMA_ROWS, which the block loads together. The operands of mma.sync are spread over a warp so:
 *
 *      lane = 4 g + t      a 16 x 16   rows g, g + 8   columns 2t, 2t + 1, 2t + 8, 2t + 9
 *                          b 16 x 8    column g        rows    2t, 2t + 1, 2t + 8, 2t + 9
 *                          d 16 x 8    rows g, g + 8   columns 2t, 2t + 1
 *
 * so the sums of two products side by side are, as pairs of bfloat16, the left operand of the next one:
 * probabilities never leave their registers. A product over a tile's rows wants pairs of rows, and so has
 * the tile transposed. Rows of a tile are MMA_STRIDE apart, which spreads a warp over all banks.
 *
 * Source: Dao, "FlashAttention-2", 2023; PTX ISA, "Matrix fragments for mma.m16n8k16".
 */

enum {
    MMA_STRIDE = MMA_ROWS + 8,
    MMA_TILE = MMA_ROWS * MMA_STRIDE, /* elements; MMA_ROWS == MMA_DEPTH, so of a transpose, too */
    MMA_STEPS = MMA_DEPTH / 16,
    MMA_COLUMNS = MMA_DEPTH / 8
};

/* One matrix of all heads: where a head's begins, and how far its rows are apart. */
struct rows {
    const uint16_t *x;
    size_t stride;
    int count, depth;
};

DEVICE struct rows head_rows(const struct attention_args *a, const void *x, int columns, int part)
{
    const int depth = a->width / a->heads;
    const size_t stride = (size_t)columns * (size_t)a->width;
    const size_t at = (size_t)block_z() * (size_t)a->context * stride +
                      (size_t)part * (size_t)a->width + (size_t)block_y() * (size_t)depth;
    const struct rows r = {(const uint16_t *)x + at, stride, a->context, depth};

    return r;
}

/* Eight elements of a row; what is behind the end is zero. */
DEVICE struct chunk rows_chunk(const struct rows *r, int row, int column)
{
    const uint16_t *x = r->x + (size_t)row * r->stride + column;
    struct chunk c = {{0, 0, 0, 0}};

    if (row >= r->count || column >= r->depth)
        return c;
    if (r->depth % 8 == 0 && r->stride % 8 == 0)
        return chunk_load(x);
    for (int i = 0; i < 8 && column + i < r->depth; i++)
        c.pairs[i / 2] |= (uint32_t)x[i] << (16 * (i % 2));
    return c;
}

/* MMA_ROWS rows from `first` on into a tile, and into another as columns; either may be NULL. */
DEVICE void load_rows(const struct rows *r, int first, uint16_t *tile, uint16_t *turned)
{
    for (int i = thread_id(); i < MMA_ROWS * MMA_COLUMNS; i += BLOCK_THREADS) {
        const int row = i % MMA_ROWS, column = i / MMA_ROWS * 8;
        const struct chunk c = rows_chunk(r, first + row, column);
        if (tile)
            chunk_store(tile + row * MMA_STRIDE + column, c);
        UNROLL for (int k = 0; k < 8 && turned; k++)
            turned[(column + k) * MMA_STRIDE + row] = (uint16_t)(c.pairs[k / 2] >> (16 * (k % 2)));
    }
}

/* This warp's 16 rows of a tile, as left operands. */
DEVICE void take_left(const uint16_t *tile, uint32_t out[MMA_STEPS][4])
{
    const int lane = thread_id() % WARP_LANES;
    const uint16_t *at = tile + (thread_id() / WARP_LANES * 16 + lane / 4) * MMA_STRIDE + lane % 4 * 2;

    UNROLL for (int k = 0; k < MMA_STEPS; k++) {
        out[k][0] = pair_load(at + k * 16);
        out[k][1] = pair_load(at + k * 16 + 8 * MMA_STRIDE);
        out[k][2] = pair_load(at + k * 16 + 8);
        out[k][3] = pair_load(at + k * 16 + 8 * MMA_STRIDE + 8);
    }
}

/* sums += left (rows 8 n to 8 n + 7 of the tile, columns 16 k to 16 k + 15)' */
DEVICE void multiply(float sums[4], const uint32_t left[4], const uint16_t *tile, int n, int k)
{
    const int lane = thread_id() % WARP_LANES;
    const uint16_t *at = tile + (n * 8 + lane / 4) * MMA_STRIDE + k * 16 + lane % 4 * 2;
    const uint32_t right[2] = {pair_load(at), pair_load(at + 8)};

    warp_mma(sums, left, right);
}

/* The sums of two neighbours as a left operand. */
DEVICE void pack_left(const float sums[2][4], uint32_t left[4])
{
    UNROLL for (int i = 0; i < 4; i++)
        left[i] = bf16_pair(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
}

/* A warp's rows of a result: row g scaled by scale[0], row g + 8 by scale[1]. */
DEVICE void store_rows(const struct rows *r, int first, const float sums[MMA_COLUMNS][4],
                       const float scale[2])
{
    const int lane = thread_id() % WARP_LANES;

    UNROLL for (int i = 0; i < 4; i++) {
        const int row = first + thread_id() / WARP_LANES * 16 + lane / 4 + i / 2 * 8;
        uint16_t *to = (uint16_t *)r->x + (size_t)row * r->stride + lane % 4 * 2 + i % 2;
        UNROLL for (int n = 0; n < MMA_COLUMNS; n++)
            if (row < r->count && n * 8 + lane % 4 * 2 + i % 2 < r->depth)
                to[n * 8] = bf16_store(sums[n][i] * scale[i / 2]);
    }
}

/* exp2 of a score times this is exp of the score by the root of the depth. */
DEVICE float score_scale(const struct attention_args *a)
{
    return 1.4426950408889634f / sqrtf((float)(a->width / a->heads));
}

DEVICE size_t head_of_lse(const struct attention_args *a)
{
    return ((size_t)block_z() * (size_t)a->heads + (size_t)block_y()) * (size_t)a->context;
}

KERNEL(attention_forward_mma, attention_args)
{
    const struct rows q = head_rows(&a, a.qkv, 3, 0), k = head_rows(&a, a.qkv, 3, 1);
    const struct rows v = head_rows(&a, a.qkv, 3, 2), y = head_rows(&a, a.y, 1, 0);
    const int first = (blocks_x() - 1 - block_x()) * MMA_ROWS, lane = thread_id() % WARP_LANES;
    const int row = first + thread_id() / WARP_LANES * 16 + lane / 4; /* and row + 8 */
    const float scale = score_scale(&a);
    uint16_t *keys = (uint16_t *)block_memory(), *values = keys + MMA_TILE;
    float sums[MMA_COLUMNS][4] = {{0}}, most[2] = {-3e38f, -3e38f}, total[2] = {0, 0};
    uint32_t left[MMA_STEPS][4], weights[4];

    load_rows(&q, first, keys, 0);
    block_sync();
    take_left(keys, left);
    for (int key = 0; key <= first; key += MMA_ROWS) {
        float scores[MMA_ROWS / 8][4] = {{0}}, highest[2] = {most[0], most[1]};
        block_sync();
        load_rows(&k, key, keys, 0);
        load_rows(&v, key, 0, values);
        block_sync();
        UNROLL for (int n = 0; n < MMA_ROWS / 8; n++) {
            UNROLL for (int s = 0; s < MMA_STEPS; s++)
                multiply(scores[n], left[s], keys, n, s);
            UNROLL for (int i = 0; i < 4; i++) {
                if (key + n * 8 + lane % 4 * 2 + i % 2 > row + i / 2 * 8)
                    scores[n][i] = -3e38f;
                highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
            }
        }
        UNROLL for (int r = 0; r < 2; r++) {
            highest[r] = quad_max(highest[r]);
            const float shrink = exp2f(scale * (most[r] - highest[r]));
            most[r] = highest[r];
            total[r] *= shrink;
            UNROLL for (int n = 0; n < MMA_COLUMNS; n++) {
                sums[n][2 * r] *= shrink;
                sums[n][2 * r + 1] *= shrink;
            }
        }
        UNROLL for (int n = 0; n < MMA_ROWS / 8; n++)
            UNROLL for (int i = 0; i < 4; i++) {
                scores[n][i] = exp2f(scale * (scores[n][i] - most[i / 2]));
                total[i / 2] += scores[n][i];
            }
        UNROLL for (int s = 0; s < MMA_ROWS / 16; s++) {
            pack_left(&scores[2 * s], weights);
            UNROLL for (int n = 0; n < MMA_COLUMNS; n++)
                multiply(sums[n], weights, values, n, s);
        }
    }
    UNROLL for (int r = 0; r < 2; r++) {
        total[r] = quad_sum(total[r]);
        if (lane % 4 == 0 && row + 8 * r < a.context)
            a.lse[head_of_lse(&a) + (size_t)(row + 8 * r)] =
                0.6931471805599453f * (scale * most[r] + log2f(total[r]));
        total[r] = 1 / total[r];
    }
    store_rows(&y, first, sums, total);
}

/* The gradient of a score, and its probability: P and dP are of a row and a column that see each other. */
DEVICE float score_gradient(float score, float gradient, float scale, float lse, float delta,
                            float *probability)
{
    *probability = exp2f(scale * score - 1.4426950408889634f * lse);
    return *probability * (gradient - delta);
}

/* A block has queries; it goes over the keys that these see. */
KERNEL(attention_dq_mma, attention_args)
{
    const struct rows q = head_rows(&a, a.qkv, 3, 0), k = head_rows(&a, a.qkv, 3, 1);
    const struct rows v = head_rows(&a, a.qkv, 3, 2), dy = head_rows(&a, a.dy, 1, 0);
    const struct rows dq = head_rows(&a, a.dqkv, 3, 0);
    const int first = (blocks_x() - 1 - block_x()) * MMA_ROWS, lane = thread_id() % WARP_LANES;
    const int row = first + thread_id() / WARP_LANES * 16 + lane / 4;
    const float scale = score_scale(&a), root = 1 / sqrtf((float)q.depth), roots[2] = {root, root};
    uint16_t *keys = (uint16_t *)block_memory(), *turned = keys + MMA_TILE;
    uint16_t *values = turned + MMA_TILE;
    float sums[MMA_COLUMNS][4] = {{0}}, lse[2], delta[2], probability;
    uint32_t queries[MMA_STEPS][4], gradients[MMA_STEPS][4], left[4];

    load_rows(&q, first, keys, 0);
    load_rows(&dy, first, values, 0);
    block_sync();
    take_left(keys, queries);
    take_left(values, gradients);
    UNROLL for (int r = 0; r < 2; r++) {
        const bool is_row = row + 8 * r < a.context;
        const size_t at = head_of_lse(&a) + (size_t)(is_row ? row + 8 * r : 0);
        lse[r] = is_row ? a.lse[at] : 3e38f;
        delta[r] = is_row ? a.delta[at] : 0;
    }
    for (int key = 0; key <= first; key += MMA_ROWS) {
        block_sync();
        load_rows(&k, key, keys, turned);
        load_rows(&v, key, values, 0);
        block_sync();
        UNROLL for (int s = 0; s < MMA_ROWS / 16; s++) {
            float ds[2][4];
            UNROLL for (int n = 0; n < 2; n++) {
                float scores[4] = {0}, dp[4] = {0};
                UNROLL for (int d = 0; d < MMA_STEPS; d++) {
                    multiply(scores, queries[d], keys, 2 * s + n, d);
                    multiply(dp, gradients[d], values, 2 * s + n, d);
                }
                UNROLL for (int i = 0; i < 4; i++) {
                    const float d = score_gradient(scores[i], dp[i], scale, lse[i / 2],
                                                   delta[i / 2], &probability);
                    const int column = key + s * 16 + n * 8 + lane % 4 * 2 + i % 2;
                    ds[n][i] = column <= row + i / 2 * 8 ? d : 0;
                }
            }
            pack_left(ds, left);
            UNROLL for (int n = 0; n < MMA_COLUMNS; n++)
                multiply(sums[n], left, turned, n, s);
        }
    }
    store_rows(&dq, first, sums, roots);
}

/* A block has keys; it goes over the queries that see them. */
KERNEL(attention_dkv_mma, attention_args)
{
    const struct rows q = head_rows(&a, a.qkv, 3, 0), k = head_rows(&a, a.qkv, 3, 1);
    const struct rows v = head_rows(&a, a.qkv, 3, 2), dy = head_rows(&a, a.dy, 1, 0);
    const struct rows dk = head_rows(&a, a.dqkv, 3, 1), dv = head_rows(&a, a.dqkv, 3, 2);
    const int first = block_x() * MMA_ROWS, lane = thread_id() % WARP_LANES;
    const int row = first + thread_id() / WARP_LANES * 16 + lane / 4;
    const float scale = score_scale(&a), root = 1 / sqrtf((float)q.depth);
    const float roots[2] = {root, root}, ones[2] = {1, 1};
    uint16_t *queries = (uint16_t *)block_memory(), *queries_turned = queries + MMA_TILE;
    uint16_t *gradients = queries_turned + MMA_TILE, *gradients_turned = gradients + MMA_TILE;
    float *lse = (float *)(gradients_turned + MMA_TILE), *delta = lse + MMA_ROWS;
    float dk_sums[MMA_COLUMNS][4] = {{0}}, dv_sums[MMA_COLUMNS][4] = {{0}};
    uint32_t keys[MMA_STEPS][4], values[MMA_STEPS][4], left[4];

    load_rows(&k, first, queries, 0);
    load_rows(&v, first, gradients, 0);
    block_sync();
    take_left(queries, keys);
    take_left(gradients, values);
    for (int query = first; query < a.context; query += MMA_ROWS) {
        block_sync();
        load_rows(&q, query, queries, queries_turned);
        load_rows(&dy, query, gradients, gradients_turned);
        if (thread_id() < MMA_ROWS) {
            const bool is_row = query + thread_id() < a.context;
            const size_t at = head_of_lse(&a) + (size_t)(is_row ? query + thread_id() : 0);
            lse[thread_id()] = is_row ? a.lse[at] : 3e38f;
            delta[thread_id()] = is_row ? a.delta[at] : 0;
        }
        block_sync();
        UNROLL for (int s = 0; s < MMA_ROWS / 16; s++) {
            float p[2][4], ds[2][4];
            UNROLL for (int n = 0; n < 2; n++) {
                float scores[4] = {0}, dp[4] = {0};
                UNROLL for (int d = 0; d < MMA_STEPS; d++) {
                    multiply(scores, keys[d], queries, 2 * s + n, d);
                    multiply(dp, values[d], gradients, 2 * s + n, d);
                }
                UNROLL for (int i = 0; i < 4; i++) {
                    const int column = s * 16 + n * 8 + lane % 4 * 2 + i % 2;
                    ds[n][i] = score_gradient(scores[i], dp[i], scale, lse[column], delta[column],
                                              &p[n][i]);
                    if (query + column < row + i / 2 * 8)
                        p[n][i] = ds[n][i] = 0;
                }
            }
            pack_left(p, left);
            UNROLL for (int n = 0; n < MMA_COLUMNS; n++)
                multiply(dv_sums[n], left, gradients_turned, n, s);
            pack_left(ds, left);
            UNROLL for (int n = 0; n < MMA_COLUMNS; n++)
                multiply(dk_sums[n], left, queries_turned, n, s);
        }
    }
    store_rows(&dk, first, dk_sums, roots);
    store_rows(&dv, first, dv_sums, ones);
}
