/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h - the arguments of the kernels, one struct each, for the kernels (nvcc, or a C compiler
 * in the tests) and for compute_cuda.c, which launches them. Activations are void: float or, in a kernel
 * whose name ends in _bf16, bfloat16. All else is float.
 */
#ifndef DP_TRAIN_CUDA_KERNELS_H
#define DP_TRAIN_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Threads of a block, unless a kernel says otherwise; a row of a matrix has a warp. */
enum { BLOCK_THREADS = 128, WARP_LANES = 32, BLOCK_ROWS = BLOCK_THREADS / WARP_LANES };

/* Rows: norm_forward, norm_backward. */
struct norm_args {
    int n, width;
    const float *gain, *bias;
    const void *x; /* backward: dy */
    void *y;       /* backward: dx */
    void *xhat;
    float *rstd;
};

/* Sums over rows, added to sums[width]; with xhat sum over dy xhat to dgain as well. columns: block
 * (x, y) has COLUMNS columns and `rows` rows, whose sums it writes to parts [2][blocks of y][width];
 * columns_sum: a thread a column adds those up. */
enum { COLUMNS = 8 * WARP_LANES, COLUMN_PARTS = 64, COLUMN_BYTES = 16 * BLOCK_THREADS * 4 };
struct columns_args {
    int n, width, rows, part_count; /* part_count: blocks of y, COLUMN_PARTS at most */
    const void *dy, *xhat; /* xhat: NULL or */
    float *parts, *sums, *dgain; /* dgain with it */
};

/* Elements: copy, zero, add (x += y), gelu_forward (x becomes the slope), gelu_backward (y *= x),
 * dropout. */
struct elements_args {
    uint64_t count;
    void *x, *y;
};

struct dropout_args {
    uint64_t count, key, stream;
    float rate, scale;
    void *x;
};

/* embed_forward: elements. embed_table, embed_positions: a thread an element of the gradient. */
struct embed_args {
    int n, context, width;
    const uint8_t *tokens;
    const float *table, *positions;
    void *y; /* forward */
    const void *dy;
    float *dtable, *dpositions;
};

/* entropy_forward: losses[n] of the rows; entropy_backward: dlogits. */
struct entropy_args {
    int n, classes;
    float each; /* backward: scale / n */
    const void *logits;
    const uint8_t *labels;
    float *losses;
    void *dlogits;
};

/* One block: *sum = scale * (x[0] + ... ), in double. */
struct sum_args {
    int count;
    double scale;
    const float *x;
    double *sum;
};

/* attention_forward, attention_delta, attention_dq, attention_dkv: a block has ATTENTION_ROWS
 * queries (dkv: keys) of one head of one sequence. depth <= ATTENTION_DEPTH is the head's width. */
enum { ATTENTION_ROWS = 32, ATTENTION_DEPTH = 128 };
/* Floats from row to row: of a tile, whose rows are padded to fours and begin four banks apart where
 * depth is a multiple of 32; and of a tile's scores. */
#define ATTENTION_STRIDE(depth) (((depth) + 3) / 4 * 4 + 4)
enum { ATTENTION_SCORES = ATTENTION_ROWS + 4 };
/* attention_forward_mma, attention_dq_mma, attention_dkv_mma: bfloat16 and depth <= MMA_DEPTH; blocks
 * of MMA_ROWS. They take the block's memory for this many tiles, and dkv for two floats of each row,
 * too. */
enum { MMA_ROWS = 64, MMA_DEPTH = 64, MMA_TILE_BYTES = 2 * MMA_ROWS * (MMA_ROWS + 8) };
enum { MMA_FORWARD_TILES = 2, MMA_DQ_TILES = 3, MMA_DKV_TILES = 4 };
struct attention_args {
    int context, heads, width;
    const void *qkv;
    void *y, *dqkv;
    const void *dy;
    float *lse;   /* [sequences][heads][context]: log of the sum of exp(score) */
    float *delta; /* the same shape: sum of dy y of a row */
};

/* c[m][n] = a[m][k] b[k][n] + bias, or added to c: for machines without cuBLASLt. A block has
 * PRODUCT_TILE x PRODUCT_TILE of c. Element (i, j) of a is a[i a_row + j a_column], so also of a
 * transpose. */
enum { PRODUCT_TILE = 16 };
struct product_args {
    int m, n, k;
    int a_row, a_column, b_row, b_column;
    int accumulate; /* add to c */
    int wide;       /* c is float whatever the activations are */
    const void *a, *b;
    const void *bias; /* as b is; NULL: none */
    void *c;
};

#endif
