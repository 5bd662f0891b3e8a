/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of one rank added up: those of one set to another's, and float32 sums to gradients of
 * two bytes. A device whose memory the CPU does not reach adds them itself, or, if it cannot, they pass
 * through pinned memory, piece by piece.
 */
#include "pipeline/steps.h"

#include "base/fp16.h"
#include "base/tensor.h"
#include "device/device_ops.h"

enum { PIECE_ELEMENTS = 32 << 10 };

/* ---- arithmetic ----------------------------------------------------------------------------- */

/* In blocks of a length that compilers turn into vector instructions by themselves. */
enum { BLOCK = 16 };

static void add_floats(float *restrict to, const float *restrict from, size_t n)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK)
        for (int k = 0; k < BLOCK; k++)
            to[i + (size_t)k] += from[i + (size_t)k];
    for (; i < n; i++)
        to[i] += from[i];
}

static void add_doubles(double *restrict to, const double *restrict from, size_t n)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK)
        for (int k = 0; k < BLOCK; k++)
            to[i + (size_t)k] += from[i + (size_t)k];
    for (; i < n; i++)
        to[i] += from[i];
}

void dp_sum_add(int bits, void *to, const void *from, size_t n)
{
    if (bits == 32)
        add_floats(to, from, n);
    else
        add_doubles(to, from, n);
}

static void add_to_bfloat16(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = dp_bfloat16_store(dp_bfloat16_load(to[i]) + from[i]);
}

static void add_to_float16(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = dp_float16_store(dp_float16_load(to[i]) + from[i]);
}

static void add(const DLTensor *to, void *sum, const void *from, size_t n)
{
    if (!dp_gradient_is_narrow(to))
        dp_sum_add(to->dtype.bits, sum, from, n);
    else if (to->dtype.code == kDLBfloat)
        add_to_bfloat16(sum, from, n);
    else
        add_to_float16(sum, from, n);
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* Elements first .. first + n - 1, through the host. */
static int add_piece_on_host(struct dp_pipeline *pipe, const DLTensor *to, const DLTensor *from,
                             size_t first, size_t n)
{
    size_t to_bytes = dp_tensor_element_bytes(to), from_bytes = dp_tensor_element_bytes(from);
    char *sum = pipe->reduce_memory, *other = sum + PIECE_ELEMENTS * sizeof(double);
    char *there = dp_tensor_address(to) + first * to_bytes;

    int err = dp_compute_copy(pipe, sum, there, n * to_bytes);
    if (!err)
        err = dp_compute_copy(pipe, other, dp_tensor_address(from) + first * from_bytes,
                              n * from_bytes);
    if (err)
        return err;
    add(to, sum, other, n);
    return dp_compute_copy(pipe, there, sum, n * to_bytes);
}

size_t dp_sum_memory_bytes(const struct dp_pipeline *pipe)
{
    return pipe->out_of_reach ? 2 * PIECE_ELEMENTS * sizeof(double) : 0;
}

static int add_tensor(struct dp_pipeline *pipe, const DLTensor *to, const DLTensor *from)
{
    size_t count = (size_t)dp_tensor_numel(to);
    int err = 0;

    if (!pipe->out_of_reach) {
        add(to, dp_tensor_address(to), dp_tensor_address(from), count);
        return 0;
    }
    if (pipe->native_stream) {
        err = dp_device_add(pipe->compute, to->dtype, dp_tensor_address(to), from->dtype,
                            dp_tensor_address(from), count);
        if (err != DP_EUNSUPPORTED)
            return err;
        err = 0;
    }
    for (size_t first = 0; first < count && !err; first += PIECE_ELEMENTS) {
        size_t left = count - first;
        err =
            add_piece_on_host(pipe, to, from, first, left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS);
    }
    return err;
}

static int clear(struct dp_pipeline *pipe, const DLTensor *t)
{
    return dp_device_zero(pipe->compute, dp_tensor_address(t),
                                   (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
}

static const DLTensor *target(const struct dp_pipeline *pipe, const struct dp_plan_op *op,
                              int32_t k)
{
    const DLTensor *grad = pipe->stages[op->slot].parameters[k].grad;

    if (op->kind == DP_PLAN_ROUND)
        return grad && dp_gradient_is_narrow(grad) ? grad : NULL;
    return dp_accumulator_set(&pipe->accumulator, op->slot, op->set)[k];
}

int dp_sum_run(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    DLTensor **from = dp_accumulator_set(&pipe->accumulator, op->slot, op->from);
    int err = 0;

    for (int32_t k = 0; k < pipe->stages[op->slot].parameter_count && !err; k++) {
        const DLTensor *to = target(pipe, op, k);
        if (!to)
            continue;
        err = add_tensor(pipe, to, from[k]);
        if (!err && op->kind == DP_PLAN_ADD)
            err = clear(pipe, from[k]);
    }
    return err ? err : dp_compute_sync(pipe);
}
