/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.h - a tensor of a trainer's state in a checkpoint, which has it whole or in pieces, possibly
 * others than are wanted: a shard of another number of ranks.
 */
#ifndef DP_TRAINER_PIECES_H
#define DP_TRAINER_PIECES_H

#include <dualpipe/checkpoint.h>

/* Into memory of the tensor's. Errors of dp_checkpoint_read. */
int pieces_read(const struct dp_checkpoint *c, const struct dp_named_tensor *wanted);

#endif
