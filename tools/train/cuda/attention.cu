/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.cu - fused causal attention: scores never leave the block. Of a row the forward keeps the
 * log of the sum of exp(score) alone, from which the backward has the probabilities again.
 *
 * A block has ATTENTION_ROWS rows of one head, and goes over the other side in tiles of as many. Eight
 * threads share two rows, the second PAIRS behind the first: of a tile's scores each thread has every
 * eighth, of the rows' sums every eighth four columns. What it reads of the block's memory it uses for
 * both rows, four floats at a time.
 *
 * Source: Dao et al., "FlashAttention", 2022; Milakov and Gimelshein, "Online normalizer calculation for
 * softmax", 2018.
 */

#ifndef DP_TRAIN_ATTENTION_SHAPE
#define DP_TRAIN_ATTENTION_SHAPE
enum {
    ROWS = ATTENTION_ROWS,
    PAIRS = ROWS / 2,
    SHARERS = BLOCK_THREADS / PAIRS,
    OWN = ROWS / SHARERS,                   /* scores of a thread, of each of its rows */
    FOURS = ATTENTION_DEPTH / (4 * SHARERS) /* most columns of a thread, by fours */
};

DEVICE void load_four(const float *x, float out[4])
{
    const struct chunk c = chunk_load(x);

    UNROLL for (int i = 0; i < 4; i++)
        out[i] = float_of_bits(c.pairs[i]);
}

/* out[h][p] = x[h PAIRS] y[p SHARERS], of rows of tiles. */
DEVICE void dot_rows(int depth, const float *x, const float *y, float out[2][OWN])
{
    const int stride = ATTENTION_STRIDE(depth);

    UNROLL for (int p = 0; p < OWN; p++)
        out[0][p] = out[1][p] = 0;
    for (int d = 0; d < depth; d += 4) {
        float row[2][4], other[4];
        load_four(x + d, row[0]);
        load_four(x + PAIRS * stride + d, row[1]);
        UNROLL for (int p = 0; p < OWN; p++) {
            load_four(y + p * SHARERS * stride + d, other);
            UNROLL for (int h = 0; h < 2; h++)
                UNROLL for (int i = 0; i < 4; i++)
                    out[h][p] += row[h][i] * other[i];
        }
    }
}

/* sums[h] += sum over the tile's rows i of weights[h PAIRS][i] tile[i], the columns of this sharer. */
DEVICE void add_rows(int depth, const float *weights, const float *tile, int sharer,
                     float sums[2][FOURS][4])
{
    const int stride = ATTENTION_STRIDE(depth);

    UNROLL for (int g = 0; g < FOURS; g++) {
        const int column = 4 * (sharer + g * SHARERS);
        for (int i = 0; i < ROWS && column < depth; i += 4) {
            float w[2][4], row[4];
            load_four(weights + i, w[0]);
            load_four(weights + PAIRS * ATTENTION_SCORES + i, w[1]);
            UNROLL for (int k = 0; k < 4; k++) {
                load_four(tile + (i + k) * stride + column, row);
                UNROLL for (int h = 0; h < 2; h++)
                    UNROLL for (int c = 0; c < 4; c++)
                        sums[h][g][c] += w[h][k] * row[c];
            }
        }
    }
}

/* The largest of a tile's scores in a row and of `most`, or their sum and `most`. */
DEVICE float fold_row(const float *scores, float most, bool adds)
{
    for (int i = 0; i < ROWS; i += 4) {
        float of[4];
        load_four(scores + i, of);
        UNROLL for (int k = 0; k < 4; k++)
            most = adds ? most + of[k] : fmaxf(most, of[k]);
    }
    return most;
}

/* A thread's scores of a tile into those of the block; `scores` is where its first row begins. */
DEVICE void store_scores(float own[2][OWN], int sharer, float *scores)
{
    UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int p = 0; p < OWN; p++)
            scores[h * PAIRS * ATTENTION_SCORES + sharer + p * SHARERS] = own[h][p];
}
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

/* ROWS rows from `row` on into a tile, two by each group of sharers; what is behind the end or the depth
 * is zero. */
DEVICE void NAME(load_tile)(const struct attention_args *a, const void *x, size_t at, size_t stride,
                            int row, float *tile)
{
    const int depth = a->width / a->heads, to = ATTENTION_STRIDE(depth);

    for (int r = thread_id() / SHARERS; r < ROWS; r += PAIRS)
        for (int d = thread_id() % SHARERS; d < to; d += SHARERS)
            tile[r * to + d] = row + r < a->context && d < depth
                                   ? LOAD(x, at + (size_t)(row + r) * stride + (size_t)d)
                                   : 0.0f;
}

DEVICE void NAME(store_row)(int depth, float sums[FOURS][4], float scale, int sharer, void *to,
                            size_t at)
{
    UNROLL for (int g = 0; g < FOURS; g++)
        UNROLL for (int c = 0; c < 4; c++) {
            const int column = 4 * (sharer + g * SHARERS) + c;
            if (column < depth)
                STORE(to, at + (size_t)column, sums[g][c] * scale);
        }
}

KERNEL(NAME(attention_forward), attention_args)
{
    const int depth = a.width / a.heads, first = block_x() * ROWS;
    const int r = thread_id() / SHARERS, sharer = thread_id() % SHARERS, row = first + r;
    const size_t tile = (size_t)(ROWS * ATTENTION_STRIDE(depth)), stride = 3 * (size_t)a.width;
    const size_t at = NAME(head_qkv)(&a);
    const float scale = 1 / sqrtf((float)depth), least = -3.402823466e38f;
    float *q = block_memory(), *k = q + tile, *v = k + tile, *scores = v + tile + r * ATTENTION_SCORES;
    float sums[2][FOURS][4] = {{{0}}}, most[2] = {least, least}, total[2] = {0, 0};

    NAME(load_tile)(&a, a.qkv, at, stride, first, q);
    for (int key = 0; key <= first; key += ROWS) {
        float own[2][OWN];
        NAME(load_tile)(&a, a.qkv, at + (size_t)a.width, stride, key, k);
        NAME(load_tile)(&a, a.qkv, at + 2 * (size_t)a.width, stride, key, v);
        block_sync();
        dot_rows(depth, q + r * ATTENTION_STRIDE(depth), k + sharer * ATTENTION_STRIDE(depth), own);
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int p = 0; p < OWN; p++)
                own[h][p] = key + sharer + p * SHARERS <= row + h * PAIRS ? scale * own[h][p] : least;
        store_scores(own, sharer, scores);
        block_sync();
        UNROLL for (int h = 0; h < 2; h++) {
            const float highest = fold_row(scores + h * PAIRS * ATTENTION_SCORES, most[h], false);
            const float shrink = expf(most[h] - highest);
            most[h] = highest;
            total[h] *= shrink;
            UNROLL for (int g = 0; g < FOURS; g++)
                UNROLL for (int c = 0; c < 4; c++)
                    sums[h][g][c] *= shrink;
            UNROLL for (int p = 0; p < OWN; p++)
                own[h][p] = key + sharer + p * SHARERS <= row + h * PAIRS ? expf(own[h][p] - highest)
                                                                        : 0.0f;
        }
        block_sync();
        store_scores(own, sharer, scores);
        block_sync();
        UNROLL for (int h = 0; h < 2; h++)
            total[h] = fold_row(scores + h * PAIRS * ATTENTION_SCORES, total[h], true);
        add_rows(depth, scores, v, sharer, sums);
        block_sync();
    }
    UNROLL for (int h = 0; h < 2; h++) {
        const size_t to = (size_t)(row + h * PAIRS);
        if (row + h * PAIRS >= a.context)
            continue;
        NAME(store_row)(depth, sums[h], 1 / total[h], sharer, a.y,
                        NAME(head_y)(&a) + to * (size_t)a.width);
        if (sharer == 0)
            a.lse[NAME(head_lse)(&a) + to] = most[h] + logf(total[h]);
    }
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
    const int depth = a.width / a.heads, first = block_x() * ROWS, line = ATTENTION_STRIDE(depth);
    const int r = thread_id() / SHARERS, sharer = thread_id() % SHARERS, row = first + r;
    const size_t tile = (size_t)(ROWS * line), stride = 3 * (size_t)a.width;
    const size_t at = NAME(head_qkv)(&a), of = NAME(head_lse)(&a);
    const float scale = 1 / sqrtf((float)depth);
    float *q = block_memory(), *dy = q + tile, *k = dy + tile, *v = k + tile;
    float *ds = v + tile + r * ATTENTION_SCORES, sums[2][FOURS][4] = {{{0}}}, lse[2], delta[2];

    UNROLL for (int h = 0; h < 2; h++) {
        const bool is_there = row + h * PAIRS < a.context;
        lse[h] = is_there ? a.lse[of + (size_t)(row + h * PAIRS)] : 0.0f;
        delta[h] = is_there ? a.delta[of + (size_t)(row + h * PAIRS)] : 0.0f;
    }
    NAME(load_tile)(&a, a.qkv, at, stride, first, q);
    NAME(load_tile)(&a, a.dy, NAME(head_y)(&a), (size_t)a.width, first, dy);
    for (int key = 0; key <= first; key += ROWS) {
        float s[2][OWN], dp[2][OWN];
        NAME(load_tile)(&a, a.qkv, at + (size_t)a.width, stride, key, k);
        NAME(load_tile)(&a, a.qkv, at + 2 * (size_t)a.width, stride, key, v);
        block_sync();
        dot_rows(depth, q + r * line, k + sharer * line, s);
        dot_rows(depth, dy + r * line, v + sharer * line, dp);
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int p = 0; p < OWN; p++)
                s[h][p] = key + sharer + p * SHARERS <= row + h * PAIRS
                              ? expf(scale * s[h][p] - lse[h]) * (dp[h][p] - delta[h])
                              : 0.0f;
        store_scores(s, sharer, ds);
        block_sync();
        add_rows(depth, ds, k, sharer, sums);
        block_sync();
    }
    UNROLL for (int h = 0; h < 2; h++)
        if (row + h * PAIRS < a.context)
            NAME(store_row)(depth, sums[h], scale, sharer, a.dqkv,
                            at + (size_t)(row + h * PAIRS) * stride);
}

/* A block has keys; it goes over the queries that see them. */
KERNEL(NAME(attention_dkv), attention_args)
{
    const int depth = a.width / a.heads, first = block_x() * ROWS, line = ATTENTION_STRIDE(depth);
    const int r = thread_id() / SHARERS, sharer = thread_id() % SHARERS, row = first + r;
    const size_t tile = (size_t)(ROWS * line), stride = 3 * (size_t)a.width;
    const size_t at = NAME(head_qkv)(&a), of = NAME(head_lse)(&a);
    const float scale = 1 / sqrtf((float)depth);
    float *k = block_memory(), *v = k + tile, *q = v + tile, *dy = q + tile;
    float *p = dy + tile + r * ATTENTION_SCORES, *ds = p + ROWS * ATTENTION_SCORES;
    float dk[2][FOURS][4] = {{{0}}}, dv[2][FOURS][4] = {{{0}}};

    NAME(load_tile)(&a, a.qkv, at + (size_t)a.width, stride, first, k);
    NAME(load_tile)(&a, a.qkv, at + 2 * (size_t)a.width, stride, first, v);
    for (int query = first; query < a.context; query += ROWS) {
        float own[2][OWN], other[2][OWN];
        NAME(load_tile)(&a, a.qkv, at, stride, query, q);
        NAME(load_tile)(&a, a.dy, NAME(head_y)(&a), (size_t)a.width, query, dy);
        block_sync();
        dot_rows(depth, k + r * line, q + sharer * line, own);
        dot_rows(depth, v + r * line, dy + sharer * line, other);
        UNROLL for (int j = 0; j < OWN; j++) {
            const int i = query + sharer + j * SHARERS;
            const size_t from = of + (size_t)(i < a.context ? i : 0);
            UNROLL for (int h = 0; h < 2; h++) {
                const bool seen = i >= row + h * PAIRS && i < a.context;
                own[h][j] = seen ? expf(scale * own[h][j] - a.lse[from]) : 0.0f;
                other[h][j] = own[h][j] * (other[h][j] - a.delta[from]);
            }
        }
        store_scores(own, sharer, p);
        store_scores(other, sharer, ds);
        block_sync();
        add_rows(depth, p, dy, sharer, dv);
        add_rows(depth, ds, q, sharer, dk);
        block_sync();
    }
    UNROLL for (int h = 0; h < 2; h++) {
        const size_t to = at + (size_t)(row + h * PAIRS) * stride;
        if (row + h * PAIRS >= a.context)
            continue;
        NAME(store_row)(depth, dk[h], scale, sharer, a.dqkv, to + (size_t)a.width);
        NAME(store_row)(depth, dv[h], 1, sharer, a.dqkv, to + 2 * (size_t)a.width);
    }
}
