/* SPDX-License-Identifier: Apache-2.0
 *
 * in_place.h - a large all-reduce between ranks that have each other's memory mapped: each sums one
 * block of all buffers and stores it in all of them, so that no value is sent.
 *
 *      rank 0's buffer   | sum: rank 0 | sum: rank 1 |
 *      rank 1's buffer   | sum: rank 0 | sum: rank 1 |
 *
 * A rank whose buffer is plain memory, or that keeps its input, lends two chunks of shared memory
 * instead: it copies the blocks of the others into one and out of it, while the other is summed.
 * Whether all memory is in reach is found out first, in two small rounds; otherwise it goes on with a
 * ring.
 */
#ifndef DP_COMM_IN_PLACE_H
#define DP_COMM_IN_PLACE_H

#include "comm/engine.h"

/* Whether the ranks should ask each other: the same on all of them. */
bool dp_in_place_is_worth(const struct dp_collective_args *args);
extern const struct dp_algorithm dp_in_place_allreduce;

#endif
