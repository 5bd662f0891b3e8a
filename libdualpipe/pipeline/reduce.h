/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.h - the sums with mirrors that are under way in a step.
 */
#ifndef DP_PIPELINE_REDUCE_H
#define DP_PIPELINE_REDUCE_H

#include <dlpack/dlpack.h>
#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

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

/* ---- sets of gradients --------------------------------------------------------------------------
 * Where a slot's weight gradients are added up: one set of tensors for each block
 * of micro-batches that the slot sees.
 *
 *      set 0    the parameters' own gradients; float32 memory of the pipeline for a bfloat16 or
 *               float16 gradient, which is rounded once at the end
 *      set 1..  fixed order: memory of the pipeline, added to set 0 pairwise at the end
 *
 *      gradient = (block 0 + block 1) + (block 2 + block 3) */

/* Zeroed memory is a valid empty one. */
struct dp_accumulator {
    DLTensor **grads[DP_MAX_SLOTS]; /* [sets * parameters]; NULL for a frozen parameter */
    int32_t parameters[DP_MAX_SLOTS];
    DLTensor **list;
    DLTensor *tensors;
    enum dp_memory kind;
    char *memory; /* of all sets that are not the caller's, zero when a step begins */
    size_t bytes;
};

/* Bytes of all sets that are not the caller's. */
size_t dp_accumulator_bytes(const struct dp_stage *stages, const uint8_t *sets, int slots);

/* In memory of the kind that is set. sets[slot]: at least 1. */
int dp_accumulator_init(struct dp_accumulator *accumulator, struct dp_device *device,
                        const struct dp_stage *stages, const uint8_t *sets, int slots);
void dp_accumulator_fini(struct dp_accumulator *accumulator, struct dp_device *device);

/* The parameters of a slot have other gradient memory now. */
void dp_accumulator_bind(struct dp_accumulator *accumulator, int slot,
                         const struct dp_stage *stage);

/* A gradient of two bytes, which is summed in float32. */
bool dp_gradient_is_narrow(const DLTensor *grad);

static inline DLTensor **dp_accumulator_set(const struct dp_accumulator *accumulator, int slot,
                                            int set)
{
    DLTensor **grads = accumulator->grads[slot];
    return grads ? grads + (size_t)set * (size_t)accumulator->parameters[slot] : NULL;
}

#endif
