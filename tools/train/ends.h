/* SPDX-License-Identifier: Apache-2.0
 *
 * ends.h - what is before and behind the blocks (block.h): the embedding of bytes and positions, and
 * the head, a norm and the logits. w and dw are the tensors of their groups (params.h).
 */
#ifndef DP_TRAIN_ENDS_H
#define DP_TRAIN_ENDS_H

#include "train/params.h"

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
