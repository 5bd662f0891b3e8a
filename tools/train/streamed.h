/* SPDX-License-Identifier: Apache-2.0
 *
 * streamed.h - the parameters of a pipeline's rank live on the host, and pass over the device group by
 * group (params.h) while its stages compute.
 *
 *      device   [values a | values b] [gradients a | gradients b]    each as large as any group
 *
 * The values of the next group are on their way while one computes: of that which came next the last
 * time. A group's gradients come up before they are added to and go down after, so that they are added
 * in the same order as on the device; the next ones come while the last ones go. When a stage's call
 * returns, its gradients are on the host.
 */
#ifndef DP_TRAIN_STREAMED_H
#define DP_TRAIN_STREAMED_H

#include "train/gpt.h"

#include <dualpipe/device.h>

struct streamed;

/* The last groups of a stage may stay on the device, with gradients and AdamW's state: as many as a
 * share of the stage's parameters goes, as with --schedule none.
 *
 *      device   [state | values | gradients] of these
 */
struct streamed_kept {
    int first_group;        /* the first one that stays; the stage's end_group: none does */
    size_t tensors, reals;  /* so many at the end of the stage */
    size_t state_bytes, bytes; /* of the state; of all, a multiple of 256 */
};
/* Of a bare stage, too. */
struct streamed_kept param_stream_keep(const struct gpt_stage *stage, double share);
/* The state of AdamW for the tensors from `first` on: two arrays a tensor, as struct dp_optimizer_config
 * lays them out. */
size_t streamed_state_bytes(const struct gpt_stage *stage, size_t first);

/* What it takes on the device, for any number of stages of this model, without what stays. */
size_t param_stream_bytes(const struct gpt_config *config);

/* For stages of a rank, one step after the other in one thread. DP_ENOMEM. */
int param_stream_new(struct dp_device *dev, const struct gpt_config *config, struct streamed **out);
/* stage is that of a slot: has weights and grads on the host, and gets a stream. It must stay. What is
 * kept moves to `memory`, on the device, and its places in weights and grads are not used any more. */
void param_stream_add(struct streamed *st, int slot, struct gpt_stage *stage,
                  const struct streamed_kept *kept, void *memory);
/* Before a step: the values on the host may be others than in the last one. */
void param_stream_begin(struct streamed *st, bool training);
void param_stream_free(struct streamed *st);

/* How long copies were at work since it was made, and the thread that computes waited for them. */
struct param_stream_times {
    int64_t down_ns, up_ns, wait_ns;
};
void param_stream_times(const struct streamed *st, struct param_stream_times *out);

#endif
