/* SPDX-License-Identifier: Apache-2.0
 *
 * accumulator.h - where a slot's weight gradients are added up: one set of tensors for each block
 * of micro-batches that the slot sees.
 *
 *      set 0    the parameters' own gradients; float32 memory of the pipeline for a bfloat16 or
 *               float16 gradient, which is rounded once at the end
 *      set 1..  fixed order: memory of the pipeline, added to set 0 pairwise at the end
 *
 *      gradient = (block 0 + block 1) + (block 2 + block 3)
 */
#ifndef DP_PIPELINE_ACCUMULATOR_H
#define DP_PIPELINE_ACCUMULATOR_H

#include <dualpipe/device.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

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
