/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_measure.h - how long each layer of the model takes on this machine: the embedding, the blocks,
 * the head with its loss.
 */
#ifndef DP_TRAIN_PLAN_MEASURE_H
#define DP_TRAIN_PLAN_MEASURE_H

#include "train/params.h"

struct layer_times {
    double f_ns, i_ns, w_ns;   /* of one micro-batch */
    double norm_ns, update_ns; /* of a step: its gradients' squares; AdamW, which leaves them zero */
};

/* times[config->layers + 2], each the median of a few runs over all layers in turn, which are in memory
 * together. 0, DP_ENOMEM or the callbacks' errors. */
int plan_measure(const struct gpt_config *config, struct layer_times *times);

#endif
