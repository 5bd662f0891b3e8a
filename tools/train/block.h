/* SPDX-License-Identifier: Apache-2.0
 *
 * block.h - one transformer block, pre-norm: attention, then an MLP, each added to what it read; and
 * the two ends of the model.
 *
 *      x ---+--> norm 1 -> qkv -> attention -> proj -> dropout --+--> x
 *      x ---+--> norm 2 -> up  -> gelu      -> down -> dropout --+--> x
 *
 * Forward and backward work in place on the residual stream. What the two of them leave in the save
 * area is all that block_weight needs, so that it may come much later.
 */
#ifndef DP_TRAIN_BLOCK_H
#define DP_TRAIN_BLOCK_H

#include "train/compute.h"

/* The tensors of a block's parameters, in the order in which they lie in memory. */
enum block_tensor {
    NORM1_GAIN, NORM1_BIAS, QKV, QKV_BIAS, PROJ, PROJ_BIAS,
    NORM2_GAIN, NORM2_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS,
    BLOCK_TENSORS
};

/* The tensors of the ends, and the most of a group. */
enum { GPT_BYTES = 256 };
enum embedding_tensor { TABLE, POSITIONS, EMBEDDING_TENSORS };
enum head_tensor { FINAL_GAIN, FINAL_BIAS, HEAD, HEAD_BIAS, HEAD_TENSORS };
enum { MAX_TENSORS = BLOCK_TENSORS };

enum { MLP_FACTOR = 4 }; /* inner width of the MLP over the model's */

/* What one micro-batch leaves behind in one block: activations, the norms' rstd, and p, which is what
 * attention keeps. */
struct block_save {
    /* Forward: slope is gelu'. */
    real *norm1, *xhat1, *rstd1, *qkv, *p, *mixed;
    real *norm2, *xhat2, *rstd2, *slope, *active;
    /* Backward: gradients with respect to the outputs of norm 1, qkv, ... */
    real *d_norm1, *d_qkv, *d_proj;
    real *d_norm2, *d_up, *d_down;
};

/* What is the same for all blocks and micro-batches, and scratch memory. */
struct block_shape {
    struct attention attention;
    int n;              /* tokens: sequences * context */
    float dropout_rate;
    void *branch;       /* scratch [n][width] */
    void *scores;       /* scratch of attention */
    struct compute compute;
};

/* Where in `base` the scratch memory of a call is; returns its bytes. base may be NULL, to learn
 * those. */
size_t block_scratch_init(struct block_shape *shape, void *base);

/* Lay the save area out from base on; returns its bytes. base may be NULL, to learn those only. */
size_t block_save_init(struct block_save *save, const struct block_shape *shape, void *base);

/* w[BLOCK_TENSORS]: the parameters; dw: where to add their gradients. keys: of the two dropouts. */
void block_forward(const struct block_shape *shape, real *const w[], const struct block_save *save,
                   const struct dp_random_key keys[2], void *x);
void block_backward(const struct block_shape *shape, real *const w[], const struct block_save *save,
                    const struct dp_random_key keys[2], void *dx);
void block_weight(const struct block_shape *shape, const struct block_save *save, real *const dw[]);

/* What is before and behind the blocks: the embedding of bytes and positions, and the head, a norm and
 * the logits. */

void embedding_forward(const struct block_shape *shape, real *const w[], struct dp_random_key key,
                       const uint8_t *tokens, void *x);
/* dx becomes what embedding_weight takes. */
void embedding_backward(const struct block_shape *shape, struct dp_random_key key, void *dx);
void embedding_weight(const struct block_shape *shape, const uint8_t *tokens, const void *dx,
                      real *const dw[]);

/* What one micro-batch leaves behind in the head. */
struct head_save {
    real *norm, *xhat, *rstd, *d_norm, *d_logits;
};

/* As block_save_init. */
size_t head_save_init(struct head_save *save, const struct block_shape *shape, void *base);

/* tied: w[HEAD] is the embedding's table. */
void head_forward(const struct block_shape *shape, bool tied, real *const w[],
                  const struct head_save *save, const void *x, void *logits);
void head_backward(const struct block_shape *shape, bool tied, real *const w[],
                   const struct head_save *save, const void *d_logits, void *dx);
void head_weight(const struct block_shape *shape, bool tied, const struct head_save *save,
                 real *const dw[]);

#endif
