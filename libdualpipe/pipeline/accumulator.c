/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/accumulator.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "pipeline/offsets.h"

#include <stdlib.h>

bool dp_gradient_is_narrow(const DLTensor *grad)
{
    return grad->dtype.bits == 16;
}

/* What a set's copy of a gradient looks like. */
static DLTensor wide_tensor(const DLTensor *grad, char *memory)
{
    DLTensor t = *grad;

    t.data = memory;
    t.byte_offset = 0;
    if (dp_gradient_is_narrow(grad))
        t.dtype = (DLDataType){kDLFloat, 32, 1};
    return t;
}

static size_t wide_bytes(const DLTensor *grad)
{
    DLTensor t = wide_tensor(grad, NULL);
    return dp_offset_align((size_t)dp_tensor_numel(&t) * dp_tensor_element_bytes(&t));
}

static bool is_callers(const DLTensor *grad, int set)
{
    return !set && !dp_gradient_is_narrow(grad);
}

/* Count tensors and bytes; once there is memory, fill it in too. */
static size_t lay_out(struct dp_accumulator *a, const struct dp_stage *stages, const uint8_t *sets,
                      int slots)
{
    size_t count = 0, offset = 0;

    for (int slot = 0; slot < slots; slot++) {
        const struct dp_stage *stage = &stages[slot];
        a->parameters[slot] = stage->parameter_count;
        if (a->list)
            a->grads[slot] = a->list + count;
        for (int set = 0; set < sets[slot]; set++)
            for (int32_t k = 0; k < stage->parameter_count; k++, count++) {
                const DLTensor *grad = stage->parameters[k].grad;
                bool callers = grad && is_callers(grad, set);
                if (a->list && grad) {
                    a->tensors[count] = callers ? *grad : wide_tensor(grad, a->memory + offset);
                    a->list[count] = &a->tensors[count];
                }
                offset += grad && !callers ? wide_bytes(grad) : 0;
            }
    }
    a->bytes = offset;
    return count;
}

size_t dp_accumulator_bytes(const struct dp_stage *stages, const uint8_t *sets, int slots)
{
    struct dp_accumulator a = {0};

    lay_out(&a, stages, sets, slots);
    return a.bytes;
}

int dp_accumulator_init(struct dp_accumulator *accumulator, struct dp_device *device,
                        const struct dp_stage *stages, const uint8_t *sets, int slots)
{
    size_t count = lay_out(accumulator, stages, sets, slots);
    void *memory = NULL;

    if (!count)
        return 0;
    if (accumulator->bytes) {
        int err = dp_device_alloc(device, accumulator->kind, accumulator->bytes, &memory);
        if (err)
            return err;
    }
    accumulator->memory = memory;
    accumulator->tensors = calloc(count, sizeof(*accumulator->tensors));
    accumulator->list = calloc(count, sizeof(*accumulator->list));
    if (!accumulator->list || !accumulator->tensors)
        return dp_fail(DP_ENOMEM, "no memory for %zu gradients", count);
    lay_out(accumulator, stages, sets, slots);
    return 0;
}

void dp_accumulator_bind(struct dp_accumulator *accumulator, int slot, const struct dp_stage *stage)
{
    for (int32_t k = 0; k < stage->parameter_count && accumulator->grads[slot]; k++) {
        const DLTensor *grad = stage->parameters[k].grad;
        if (grad && is_callers(grad, 0))
            *accumulator->grads[slot][k] = *grad;
    }
}

void dp_accumulator_fini(struct dp_accumulator *accumulator, struct dp_device *device)
{
    dp_device_free(device, accumulator->kind, accumulator->memory);
    free(accumulator->tensors);
    free(accumulator->list);
    *accumulator = (struct dp_accumulator){0};
}
