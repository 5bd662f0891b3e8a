/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_cost.h - what blocks and copies take on this machine, for --buffers auto.
 */
#ifndef DP_TRAIN_OFFLOAD_COST_H
#define DP_TRAIN_OFFLOAD_COST_H

#include "train/params.h"

#include <dualpipe/offload.h>

/* Of a step of so many micro-batches: the first block with the embedding, the last one with head and
 * loss. Copies are measured over the device's link. 0, DP_ENOMEM, or errors of plan_measure and of the
 * device. Freed with offload_cost_free, also after an error. */
struct offload_cost {
    int64_t *ns; /* [2 layers] */
    struct dp_offload_cost cost;
};
int offload_cost_measure(const struct gpt_config *config, int microbatches, struct dp_device *dev,
                         struct offload_cost *out);
void offload_cost_free(struct offload_cost *cost);

#endif
