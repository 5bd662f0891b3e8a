/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_CHECKPOINT_INTERNAL_H
#define DP_CHECKPOINT_INTERNAL_H

#include <dualpipe/checkpoint.h>

/* Whether dp_checkpoint_read_pieces would read it, by name, type and shape: how many elements are not
 * there; -1: it is there, but of another type or shape. */
int64_t dp_checkpoint_missing(const struct dp_checkpoint *checkpoint,
                              const struct dp_named_tensor *wanted);

#endif
