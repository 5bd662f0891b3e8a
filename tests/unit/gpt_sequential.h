/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt_sequential.h - an engine that takes one micro-batch after the other through the whole model: what
 * every pipelined run must be equal to.
 */
#ifndef GPT_SEQUENTIAL_H
#define GPT_SEQUENTIAL_H

#include "train/engine.h"

/* The whole model on this rank. 0 or DP_ENOMEM. */
struct sequential_config {
    struct gpt_config model;
    int microbatches; /* M of a step, of all replicas */
    int order_blocks; /* of fixed order, in which gradients are added up; of this replica */
    struct replica replica;
    bool bf16; /* of weights and gradients, as bfloat16.h says */
};
int sequential_new(const struct sequential_config *config, struct engine **out);

#endif
