/* SPDX-License-Identifier: Apache-2.0
 *
 * halves.h - fixed order: the second set of gradients of slots that see both halves of a batch.
 *
 *      gradient = (mb 0 + ... + mb M/2-1)  +  (mb M/2 + ... + mb M-1)
 *                  the stage's own buffers      these
 */
#ifndef DP_PIPELINE_HALVES_H
#define DP_PIPELINE_HALVES_H

#include <dualpipe/device.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

/* Zeroed memory is a valid empty one. */
struct dp_halves {
    DLTensor **grads[DP_MAX_SLOTS]; /* by slot: [grad_count], or NULL */
    DLTensor **list;
    DLTensor *tensors;
    char *memory;
    size_t bytes;
};

/* For the slots with needed[slot]. */
int dp_halves_init(struct dp_halves *halves, struct dp_device *device, const struct dp_stage *stages,
                   const bool *needed, int slots);
void dp_halves_fini(struct dp_halves *halves, struct dp_device *device);

#endif
