/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/halves.h"

#include "base/fail.h"
#include "pipeline/arena.h"
#include "pipeline/border.h"

#include <stdlib.h>

static size_t count_grads(struct dp_halves *halves, const struct dp_stage *stages,
                          const bool *needed, int slots)
{
    size_t count = 0;

    for (int slot = 0; slot < slots; slot++)
        for (int k = 0; needed[slot] && k < stages[slot].grad_count; k++, count++)
            halves->bytes += dp_arena_align(dp_tensor_bytes(stages[slot].grads[k]));
    return count;
}

static void lay_out(struct dp_halves *halves, const struct dp_stage *stages, const bool *needed,
                    int slots)
{
    size_t i = 0, offset = 0;

    for (int slot = 0; slot < slots; slot++) {
        if (!needed[slot])
            continue;
        halves->grads[slot] = halves->list + i;
        for (int k = 0; k < stages[slot].grad_count; k++, i++) {
            halves->tensors[i] = *stages[slot].grads[k];
            halves->tensors[i].data = halves->memory + offset;
            halves->tensors[i].byte_offset = 0;
            halves->list[i] = &halves->tensors[i];
            offset += dp_arena_align(dp_tensor_bytes(stages[slot].grads[k]));
        }
    }
}

int dp_halves_init(struct dp_halves *halves, struct dp_device *device,
                   const struct dp_stage *stages, const bool *needed, int slots)
{
    size_t count = count_grads(halves, stages, needed, slots);
    void *memory;

    if (!count)
        return 0;
    halves->list = calloc(count, sizeof(*halves->list));
    halves->tensors = calloc(count, sizeof(*halves->tensors));
    if (!halves->list || !halves->tensors)
        return dp_fail(DP_ENOMEM, "no memory for %zu more gradients", count);
    int err = device->ops->alloc(device, DP_MEMORY_DEVICE, halves->bytes, &memory);
    if (err)
        return err;
    halves->memory = memory;
    lay_out(halves, stages, needed, slots);
    return 0;
}

void dp_halves_fini(struct dp_halves *halves, struct dp_device *device)
{
    device->ops->free(device, DP_MEMORY_DEVICE, halves->memory);
    free(halves->tensors);
    free(halves->list);
    *halves = (struct dp_halves){0};
}
