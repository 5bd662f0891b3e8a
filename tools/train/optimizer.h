/* SPDX-License-Identifier: Apache-2.0
 *
 * optimizer.h - from gradients to better weights: clipping, AdamW, the learning rate.
 *
 * Source: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
 */
#ifndef DP_TRAIN_OPTIMIZER_H
#define DP_TRAIN_OPTIMIZER_H

#include "train/gpt.h"

/* AdamW's state for one stage. */
struct optimizer {
    struct gpt_stage *stage;
    real *mean, *square; /* [params.count] moving averages of gradients and of their squares */
};

/* 0 or DP_ENOMEM. */
int optimizer_init(struct optimizer *o, struct gpt_stage *stage);
void optimizer_fini(struct optimizer *o);

/* One update with gradients times `scale`; step counts from 0. Weight decay is for matrices only.
 * Leaves the gradients zero. */
void optimizer_step(struct optimizer *o, uint64_t step, double rate, double decay, double scale);

/* Leave the weights as they are, the gradients zero. */
void optimizer_skip(struct optimizer *o);

/* Add the sum of squared gradients of each group to squares[layers + 2]. By group, so that the
 * global norm is added up in the same order however the model is cut. */
void optimizer_squares(const struct gpt_stage *stage, double *squares);

/* Learning rate: up to `peak` over the first `warmup` steps, then along half a cosine down to a
 * tenth of it at the last. */
double optimizer_rate(uint64_t step, uint64_t steps, uint64_t warmup, double peak);

/* What to multiply gradients of this norm with, so that it becomes `clip` at most; clip 0: 1. */
double optimizer_clip(double norm, double clip);

#endif
