/* SPDX-License-Identifier: Apache-2.0
 *
 * late.h - updates that are one step late: the gradients of a step are used in the next one, and what
 * that does is seen by the step after it.
 *
 *      step        k              k + 1          k + 2
 *      weights     w              w              w'
 *      gradients   g of step k -> update -> w'
 *
 * An engine that streams the model carries the update out beside the next step, and keeps the gradients
 * until then (dp_offload_config.delay). For the others it is done when the next step's gradients are
 * there; the numbers are the same.
 */
#ifndef DP_TRAIN_LATE_H
#define DP_TRAIN_LATE_H

#include "train/trainer.h"

#include <dualpipe/checkpoint.h>

/* Where t->config.late; otherwise nothing is done. update: of one slot, by the gradients of its stage,
 * which are zero after it. DP_ENOMEM. */
int late_init(struct trainer *t, int (*update)(struct trainer *t, int slot,
                                               const struct dp_mixer_update *how));
void late_fini(struct trainer *t);

/* All gradients of a step are there, and this is how they are to be used; carry out what was due. */
int late_update(struct trainer *t, const struct dp_mixer_update *how);
/* The update that is due, with the gradients of the stages. */
int late_carry_out(void *trainer);
/* The training is over. */
int late_catch_up(struct trainer *t);

/* For checkpoints: the gradient of a tensor that is due, and how it will be used. What was read of the
 * latter is made known by late_restore; found: it was there. */
const DLTensor *late_gradient(const struct trainer *t, int slot, size_t tensor);
const DLTensor *late_update_state(struct trainer *t);
extern const char late_update_name[]; /* of late_update_state; has a checkpoint that, or a gradient? */
bool late_update_is_in(const struct dp_checkpoint *c);
void late_restore(struct trainer *t, bool found);

#endif
