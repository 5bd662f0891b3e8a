/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline_fit.h - what the ranks of a pipeline have on the device, and which of their activations go
 * to the host or are computed again so that it fits.
 */
#ifndef DP_TRAIN_PIPELINE_FIT_H
#define DP_TRAIN_PIPELINE_FIT_H

#include "train/gpt.h"

#include <dualpipe/offload.h>

struct pipeline_fit {
    const struct gpt_config *model;
    struct dp_schedule *training;  /* gets the ops */
    const struct dp_schedule *forward;
    size_t device_bytes;           /* of each rank */
    bool activations;              /* may be elsewhere than on the device, */
    bool optimizer;                /* so does the optimizer's state, */
    bool params;                   /* so do parameters and gradients: streamed.h, */
    double device_share;           /* but for this share of each stage's */
    int order_blocks;              /* of the pipeline; 0: any order */
};

/* Of what a rank has on the device: the optimizer's state, which is counted, but allocated elsewhere. */
size_t pipeline_fit_state(const struct pipeline_fit *fit, int rank);

/* DP_ENOMEM names the rank for which no choice is small enough, and what would do. Every rank makes the
 * same one. */
int pipeline_fit_choose(const struct pipeline_fit *fit, struct dp_offload_choice *out);

#endif
