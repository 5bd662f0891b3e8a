/* SPDX-License-Identifier: Apache-2.0
 *
 * microbatches.h - the object that dp_split and dp_split_given hand out.
 */
#ifndef DP_MICROBATCH_MICROBATCHES_H
#define DP_MICROBATCH_MICROBATCHES_H

#include "microbatch/arena.h"

#include <dualpipe/microbatch.h>

/* An empty one and the arena for all it owns; dp_microbatches_free frees both. NULL: no memory. */
struct dp_microbatches *dp_microbatches_new(struct dp_arena **arena);

#endif
