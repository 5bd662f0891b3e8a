/* SPDX-License-Identifier: Apache-2.0
 *
 * microbatch.h - cut a step's arguments into micro-batches, and put results together again.
 *
 * Threads: nothing here is shared; different threads may work on different objects at once.
 */
#ifndef DUALPIPE_MICROBATCH_H
#define DUALPIPE_MICROBATCH_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sizes --------------------------------------------------------------------------------- */

/* How `extent` rows are cut into `count` pieces by the tensor_split rule: the first extent % count
 * pieces have one row more than the rest, so 8 into 3 is 3, 3, 2, and 2 into 3 is 1, 1, 0.
 * sizes[count] is written. DP_EINVAL for extent < 0 or count < 1. */
DP_PUBLIC int dp_split_sizes(int64_t extent, int32_t count, int64_t *sizes);

/* Piece `piece` alone by the same rule: where it begins and how many rows it has. */
DP_PUBLIC int dp_split_window(int64_t extent, int32_t count, int32_t piece, int64_t *begin,
                              int64_t *size);

/* The same by the chunk rule: every piece but the last has ceil(extent / count) rows, so that
 * fewer pieces than asked for may come out: 5 into 4 is 2, 2, 1. Nothing into k is k times nothing.
 * sizes needs room for count; *made says how many were written. DP_EINVAL as above. */
DP_PUBLIC int dp_chunk_sizes(int64_t extent, int32_t count, int64_t *sizes, int32_t *made);

#ifdef __cplusplus
}
#endif
#endif
