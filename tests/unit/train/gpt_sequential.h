/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt_sequential.h - the model in a plain loop, one micro-batch after the other: what every pipelined run
 * must be equal to.
 */
#ifndef GPT_SEQUENTIAL_H
#define GPT_SEQUENTIAL_H

#include "train/data.h"
#include "train/gpt_layers.h"

struct sequential {
    struct gpt_config config;
    struct gpt_layers *gpt;
    struct dp_layers *layers;
    struct dp_stage model; /* all of it */
    int microbatches, block_count; /* blocks of fixed order, in which gradients are added up */
    uint64_t step;
    real *save, *logits, *d_logits;
    struct block_grads *blocks; /* [block_count] where each block of micro-batches is summed */
};

/* 0 or DP_ENOMEM. */
int sequential_new(const struct gpt_config *config, int microbatches, int order_blocks,
                   struct sequential **out);
void sequential_free(struct sequential *s);

/* Parameters or gradients of all tensors, one after the other; returns how many. */
size_t sequential_read(const struct dp_stage *model, bool gradients, real *out);

/* Forward and backward: gradients of the mean loss are added to those of the model, which must be zero.
 * losses[microbatches]. 0 or the callbacks' errors. */
int sequential_train(struct sequential *s, const struct batch *batch, double *losses);
/* The same without backward and dropout. */
int sequential_evaluate(struct sequential *s, const struct batch *batch, double *losses);

#endif
