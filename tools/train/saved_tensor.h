/* SPDX-License-Identifier: Apache-2.0
 *
 * saved_tensor.h - a tensor of a training job's state in a checkpoint, which has it whole or in pieces
 * (saved_tensor.c), possibly others than are wanted. What reads it and what only looks for it are
 * one.
 */
#ifndef DP_TRAIN_SAVED_TENSOR_H
#define DP_TRAIN_SAVED_TENSOR_H

#include <dualpipe/checkpoint.h>

/* Of how gradients that are due are used; and are there any, or is this there? */
extern const char saved_late_name[];
bool saved_has_late(const struct dp_checkpoint *c);

/* Into memory of the tensor's. Errors of dp_checkpoint_read. */
int saved_tensor_read(const struct dp_checkpoint *c, const struct dp_named_tensor *wanted);
/* Would it be read? Elements that are not there; -1: it is there, of another type or shape. */
int64_t saved_tensor_missing(const struct dp_checkpoint *c, const struct dp_named_tensor *wanted);

#endif
