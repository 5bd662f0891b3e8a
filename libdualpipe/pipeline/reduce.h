/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.h - the sums with mirrors that are under way in a step.
 */
#ifndef DP_PIPELINE_REDUCE_H
#define DP_PIPELINE_REDUCE_H

#include <dualpipe/comm.h>
#include <dualpipe/schedule.h>
#include <dlpack/dlpack.h>

enum { DP_REDUCE_WINDOW = 4 };

/* One piece of a slot's gradients. */
struct dp_reduce_piece {
    const DLTensor *grad;
    size_t offset, len; /* bytes, in the tensor */
    uint32_t number;    /* of the piece, over all tensors */
    struct dp_request send, recv;
    bool sent, received;
    char *own, *arrival; /* what a stream adds: own += arrival */
};

/* Walks the pieces of a list of tensors, in order. */
struct dp_reduce_walk {
    DLTensor *const *grads;
    int32_t count, tensor;
    size_t offset;
    uint32_t number;
};

/* The sum of one slot. */
struct dp_mirror_sum {
    int slot;
    struct dp_reduce_walk walk;
    uint32_t started, finished; /* pieces */
    uint32_t first;             /* of those in pieces[] */
};

/* Zeroed memory is a valid empty one. */
struct dp_mirror_sums {
    struct dp_mirror_sum queue[DP_MAX_SLOTS]; /* queue[first] .. queue[count - 1] are not done */
    int first, count;
    /* Of the first, piece k at [k % DP_REDUCE_WINDOW]. Ordered: of all sums of a step, one after
     * the other, since streams still work on those of a sum that has left the queue. */
    struct dp_reduce_piece *pieces;
    uint32_t used;
};

static inline bool dp_reduce_is_open(const struct dp_mirror_sums *all)
{
    return all->first < all->count;
}

#endif
