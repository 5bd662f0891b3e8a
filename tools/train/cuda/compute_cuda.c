/* SPDX-License-Identifier: Apache-2.0
 *
 * compute_cuda.c - the table of compute.h on CUDA: each operation is one or two kernels in the
 * callback's stream.
 */
#include "train/cuda/cuda_rank.h"

#include <math.h>

enum { MOST_BLOCKS = 4096 };

#define C const struct compute *c

static struct cuda_rank *rank_of(C)
{
    return c->device;
}

#define LAUNCH(kernel, grid, args)                                                                 \
    cuda_rank_launch(rank_of(c), c->stream, KERNEL_##kernel, grid, &(args), sizeof(args))

/* A grid for that many elements. */
static struct cuda_grid grid_of(uint64_t count)
{
    const uint64_t blocks = (count + BLOCK_THREADS - 1) / BLOCK_THREADS;

    return (struct cuda_grid){(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), 1, 1,
                              BLOCK_THREADS, 0};
}

static struct cuda_grid grid_of_rows(int n)
{
    return (struct cuda_grid){((unsigned)n + BLOCK_ROWS - 1) / BLOCK_ROWS, 1, 1, BLOCK_THREADS, 0};
}

static struct cuda_grid grid_across(int width, int y)
{
    return (struct cuda_grid){((unsigned)width + BLOCK_THREADS - 1) / BLOCK_THREADS, (unsigned)y, 1,
                              BLOCK_THREADS, 0};
}

/* ---- products ------------------------------------------------------------------------------ */

/* What a product reads of a parameter: its bfloat16 copy, or itself. */
static const void *low(C, const float *w)
{
    for (int i = 0; i < c->tensors; i++)
        if (w == c->values[i].data)
            return c->rounded[i].data;
    return w;
}

/* By cuBLASLt where it is there and has an algorithm, and by our own kernel otherwise. */
static void product(C, const struct product_args *p)
{
    struct cuda_rank *r = rank_of(c);
    const unsigned tile = PRODUCT_TILE;
    int err = r->blas && !r->err ? blas_product(r->blas, p, c->stream) : DP_EUNSUPPORTED;

    if (err == DP_EUNSUPPORTED)
        LAUNCH(product,
               ((struct cuda_grid){((unsigned)p->n + tile - 1) / tile,
                                   ((unsigned)p->m + tile - 1) / tile, 1, tile * tile,
                                   2 * tile * (tile + 1) * sizeof(float)}),
               *p);
    else if (err && !r->err)
        r->err = err;
}

static void linear_forward(C, int n, int in, int out, bool table, const void *x, const real *w,
                           const real *b, void *y)
{
    product(c, &(struct product_args){.m = n, .n = out, .k = in, .a_row = in, .a_column = 1,
                                      .b_row = table ? 1 : out, .b_column = table ? in : 1,
                                      .a = x, .b = low(c, w), .bias = low(c, b), .c = y});
}

static void linear_backward(C, int n, int in, int out, bool table, const void *dy, const real *w,
                            void *dx)
{
    product(c, &(struct product_args){.m = n, .n = in, .k = out, .a_row = out, .a_column = 1,
                                      .b_row = table ? in : 1, .b_column = table ? 1 : out,
                                      .a = dy, .b = low(c, w), .c = dx});
}

static void columns(C, int n, int width, const void *dy, const void *xhat, float *sums, float *dgain)
{
    struct cuda_rank *r = rank_of(c);
    const bool is_second = c->stream != dp_device_stream_native(r->stream);
    const int most = COLUMN_PARTS, rows = n > most * BLOCK_ROWS ? (n + most - 1) / most : BLOCK_ROWS;
    const struct columns_args args = {.n = n, .width = width, .rows = rows,
                                      .part_count = (n + rows - 1) / rows, .dy = dy, .xhat = xhat,
                                      .parts = r->column_parts[is_second], .sums = sums,
                                      .dgain = dgain};

    LAUNCH(columns,
           ((struct cuda_grid){((unsigned)width + COLUMNS - 1) / COLUMNS, (unsigned)args.part_count,
                               1, BLOCK_THREADS, COLUMN_BYTES}),
           args);
    LAUNCH(columns_sum, grid_across(width, 1), args);
}

static void linear_weight(C, int n, int in, int out, bool table, const void *x, const void *dy,
                          real *dw, real *db)
{
    const int rows = table ? out : in, across = table ? in : out;

    product(c, &(struct product_args){.m = rows, .n = across, .k = n, .a_row = 1, .a_column = rows,
                                      .b_row = across, .b_column = 1, .accumulate = 1, .wide = 1,
                                      .a = table ? dy : x, .b = table ? x : dy, .c = dw});
    columns(c, n, out, dy, NULL, db, NULL);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static void norm_forward(C, int n, int width, const void *x, const real *gain,
                         const real *bias, void *y, void *xhat, real *rstd)
{
    LAUNCH(norm_forward, grid_of_rows(n),
           ((const struct norm_args){n, width, gain, bias, x, y, xhat, rstd}));
}

static void norm_backward(C, int n, int width, const void *dy, const real *gain,
                          const void *xhat, const real *rstd, void *dx)
{
    const struct norm_args args = {.n = n, .width = width, .gain = gain, .x = dy, .y = dx,
                                   .xhat = (void *)(uintptr_t)xhat,
                                   .rstd = (float *)(uintptr_t)rstd};

    LAUNCH(norm_backward, grid_of_rows(n), args);
}

static void norm_weight(C, int n, int width, const void *dy, const void *xhat, real *dgain,
                        real *dbias)
{
    columns(c, n, width, dy, xhat, dbias, dgain);
}

static void entropy_forward(C, int n, int classes, const void *logits, const uint8_t *labels,
                            double *value)
{
    struct cuda_rank *r = rank_of(c);
    const struct entropy_args args = {.n = n, .classes = classes, .logits = logits,
                                      .labels = labels, .losses = r->row_losses};
    const struct sum_args sum = {n, 1.0 / n, r->row_losses, value};

    LAUNCH(entropy_forward, grid_of_rows(n), args);
    LAUNCH(sum, ((struct cuda_grid){1, 1, 1, 256, 256 * sizeof(double)}), sum);
}

static void entropy_backward(C, int n, int classes, const void *logits, const uint8_t *labels,
                             double scale, void *dlogits)
{
    const struct entropy_args args = {.n = n, .classes = classes, .each = (float)(scale / n),
                                      .logits = logits, .labels = labels, .dlogits = dlogits};

    LAUNCH(entropy_backward, grid_of_rows(n), args);
}

/* ---- attention ----------------------------------------------------------------------------- */

static size_t attention_kept(const struct attention *a)
{
    return (size_t)a->sequences * (size_t)a->heads * (size_t)a->context * sizeof(float);
}

static size_t attention_scratch(const struct attention *a)
{
    return attention_kept(a);
}

static struct cuda_grid attention_grid(const struct attention *a, unsigned rows, size_t tiles,
                                       size_t scores)
{
    const size_t depth = (size_t)a->width / (size_t)a->heads;

    return (struct cuda_grid){
        ((unsigned)a->context + rows - 1) / rows, (unsigned)a->heads, (unsigned)a->sequences,
        BLOCK_THREADS,
        (tiles * ATTENTION_STRIDE(depth) + scores * ATTENTION_SCORES) * ATTENTION_ROWS *
            sizeof(float)};
}

/* On tensor cores, or not. */
static bool has_mma(C, const struct attention *a)
{
    return c->size == 2 && a->width / a->heads <= MMA_DEPTH;
}

static struct cuda_grid mma_grid(const struct attention *a, size_t tiles, size_t floats)
{
    return (struct cuda_grid){((unsigned)a->context + MMA_ROWS - 1) / MMA_ROWS, (unsigned)a->heads,
                              (unsigned)a->sequences, BLOCK_THREADS,
                              tiles * MMA_TILE_BYTES + floats * MMA_ROWS * sizeof(float)};
}

static void attention_forward(C, const struct attention *a, const void *qkv, void *kept,
                              void *y)
{
    const struct attention_args args = {.context = a->context, .heads = a->heads,
                                        .width = a->width, .qkv = qkv, .y = y, .lse = kept};

    if (has_mma(c, a))
        LAUNCH(attention_forward_mma, mma_grid(a, MMA_FORWARD_TILES, 0), args);
    else
        LAUNCH(attention_forward, attention_grid(a, ATTENTION_ROWS, 3, 1), args);
}

static void attention_backward(C, const struct attention *a, const void *qkv, const void *kept,
                               const void *y, const void *dy, void *dqkv, void *scratch)
{
    const struct attention_args args = {
        .context = a->context, .heads = a->heads, .width = a->width, .qkv = qkv,
        .y = (void *)(uintptr_t)y, .dy = dy, .dqkv = dqkv, .lse = (float *)(uintptr_t)kept,
        .delta = scratch};

    LAUNCH(attention_delta, attention_grid(a, BLOCK_ROWS, 0, 0), args);
    if (has_mma(c, a)) {
        LAUNCH(attention_dq_mma, mma_grid(a, MMA_DQ_TILES, 0), args);
        LAUNCH(attention_dkv_mma, mma_grid(a, MMA_DKV_TILES, 2), args);
        return;
    }
    LAUNCH(attention_dq, attention_grid(a, ATTENTION_ROWS, 4, 1), args);
    LAUNCH(attention_dkv, attention_grid(a, ATTENTION_ROWS, 4, 2), args);
}

/* ---- elements ------------------------------------------------------------------------------ */

#define ELEMENTS(kernel, count, x, y)                                                              \
    LAUNCH(kernel, grid_of(count),                                                            \
           ((const struct elements_args){count, (void *)(uintptr_t)(x), (void *)(uintptr_t)(y)}))

static void gelu_forward(C, size_t count, void *x, void *y)
{
    ELEMENTS(gelu_forward, count, x, y);
}

static void gelu_backward(C, size_t count, const void *slope, void *d)
{
    ELEMENTS(gelu_backward, count, slope, d);
}

static void add(C, size_t count, const void *y, void *x)
{
    ELEMENTS(add, count, x, y);
}

static void copy(C, size_t count, const void *from, void *to)
{
    ELEMENTS(copy, count, from, to);
}

static void zero(C, size_t count, void *x)
{
    ELEMENTS(zero, count, x, NULL);
}

static void dropout(C, struct dp_random_key key, float rate, size_t count, void *x)
{
    const struct dropout_args args = {count, key.key, key.stream, rate, 1 / (1 - rate), x};

    if (rate > 0)
        LAUNCH(dropout, grid_of((count + 3) / 4), args);
}

static void embed_forward(C, int n, int context, int width, const uint8_t *tokens,
                          const real *table, const real *positions, void *y)
{
    const struct embed_args args = {.n = n, .context = context, .width = width, .tokens = tokens,
                                    .table = table, .positions = positions, .y = y};

    LAUNCH(embed_forward, grid_of((uint64_t)n * (uint64_t)width), args);
}

static void embed_weight(C, int n, int context, int width, const uint8_t *tokens,
                         const void *dy, real *dtable, real *dpositions)
{
    const struct embed_args args = {.n = n, .context = context, .width = width, .tokens = tokens,
                                    .dy = dy, .dtable = dtable, .dpositions = dpositions};

    LAUNCH(embed_table, grid_across(width, GPT_BYTES), args);
    LAUNCH(embed_positions, grid_across(width, context), args);
}

static int error(C)
{
    struct cuda_rank *r = rank_of(c);
    const int err = r->err;

    r->err = 0;
    return err;
}

static int carry_out(C, const struct compute_key *key, bool is_static,
                     int (*queue)(void *arg), void *arg)
{
    return cuda_graphs_carry_out(rank_of(c), c->stream, key, is_static, queue, arg);
}

const struct compute_ops cuda_compute_ops = COMPUTE_OPS;
