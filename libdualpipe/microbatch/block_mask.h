/* SPDX-License-Identifier: Apache-2.0
 *
 * block_mask.h - attention masks by blocks as leaves of an argument tree.
 */
#ifndef DP_MICROBATCH_BLOCK_MASK_H
#define DP_MICROBATCH_BLOCK_MASK_H

#include "microbatch/arena.h"

#include <dualpipe/microbatch.h>

/* What is wrong with the mask, or NULL. */
const char *dp_block_mask_fault(const struct dp_block_mask *mask);

/* Samples that it is of; 1: it may be of any number, which share it. */
int64_t dp_block_mask_samples(const struct dp_block_mask *mask);

/* Whether a copy of a window of it (pack) would have to read memory that the CPU does not reach. */
bool dp_block_mask_is_out_of_reach(const struct dp_block_mask *mask);

/* Samples begin .. begin + size - 1 of a mask without fault: views, or compact copies where `pack`
 * is set and a view would not be compact. NULL: no memory. */
const struct dp_block_mask *dp_block_mask_window(struct dp_arena *arena,
                                                 const struct dp_block_mask *mask, int64_t begin,
                                                 int64_t size, bool pack);

#endif
