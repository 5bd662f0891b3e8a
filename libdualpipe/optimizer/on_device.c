/* SPDX-License-Identifier: Apache-2.0
 *
 * on_device.c - updates and squares in the memory of a device, in the order of a stream, by the
 * kernels of device/cuda_update.c.
 */
#include "optimizer/internal.h"
#include "optimizer/update.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "device/device_ops.h"

#include <stdio.h>

/* Threads of a sum: parts of a gradient at most, then those that add these up. */
enum { THREADS = 256, MOST_BLOCKS = 256, EACH = 4, ROOM = THREADS * MOST_BLOCKS };

/* What the kernels take. */
struct update_args {
    uint64_t x, g, a, b, count, zero, nesterov;
    double scale, decay, keep, rate, beta1, beta2, bias1, bias2, epsilon;
};
struct sum_args {
    uint64_t from, to, count;
};

static int launch(struct dp_device_stream *stream, void *kernel, uint64_t blocks, unsigned threads,
                  const void *args, size_t bytes)
{
    return dp_device_launch(stream->dev,
                            &(struct dp_device_launch){.kernel = kernel,
                                                       .stream = dp_device_stream_native(stream),
                                                       .blocks = {(unsigned)blocks, 1, 1},
                                                       .threads = threads,
                                                       .args = args,
                                                       .args_bytes = bytes});
}

static uint64_t blocks_of(uint64_t count, uint64_t each, uint64_t most)
{
    const uint64_t blocks = (count + each - 1) / each;

    return blocks < 1 ? 1 : blocks < most ? blocks : most;
}

int dp_update_find(struct dp_device_stream *stream, const struct dp_optimizer_config *config,
                   DLDataType type, void **kernel)
{
    char name[32];

    if (config->kind > DP_OPTIMIZER_ADAMW || type.code != kDLFloat || type.bits < 32)
        return dp_fail(
            DP_EUNSUPPORTED,
            "%s of %d bits on a device: expected sgd, adam or adamw, of float32 or float64",
            dp_optimizer_kind_name(config->kind), type.bits);
    snprintf(name, sizeof(name), "dp_%s_f%d",
             config->kind != DP_OPTIMIZER_SGD ? "adam"
             : config->momentum > 0           ? "momentum"
                                              : "sgd",
             type.bits);
    return dp_device_own_kernel(stream->dev, name, kernel);
}

int dp_update_queue(struct dp_device_stream *stream, void *kernel,
                    const struct dp_optimizer_config *config, const struct dp_numbers *n,
                    const struct dp_optimizer_step *step, const struct dp_update_range *r)
{
    const struct update_args args = {.x = (uintptr_t)r->value,
                                     .g = (uintptr_t)r->grad,
                                     .a = (uintptr_t)r->state[0],
                                     .b = (uintptr_t)r->state[1],
                                     .count = r->count,
                                     .zero = step->zero_grads,
                                     .nesterov = n->nesterov,
                                     .scale = n->scale,
                                     .decay = n->decay,
                                     .keep = n->keep,
                                     .rate = n->rate,
                                     .beta1 =
                                         config->kind == DP_OPTIMIZER_SGD ? n->momentum : n->beta1,
                                     .beta2 = n->beta2,
                                     .bias1 = n->bias1,
                                     .bias2 = n->bias2,
                                     .epsilon = n->epsilon};

    if (!step->skip)
        return launch(stream, kernel, blocks_of(r->count, THREADS, UINT16_MAX), THREADS, &args,
                      sizeof(args));
    return step->zero_grads
               ? dp_device_zero(stream, r->grad, r->count * dp_real_bytes(r->grad_type))
               : 0;
}

/* ---- squares --------------------------------------------------------------------------------- */

size_t dp_gradient_squares_room(int32_t count)
{
    return (ROOM + (size_t)count * THREADS) * sizeof(double);
}

int dp_gradient_squares_queue(struct dp_device_stream *stream,
                              const struct dp_parameter *parameters, int32_t count, void *room,
                              double *squares)
{
    double *const parts = room, *const rows = parts + ROOM;
    void *kernels[2], *sums;
    int err = dp_device_own_kernel(stream->dev, "dp_squares_f32", &kernels[0]);

    if (!err)
        err = dp_device_own_kernel(stream->dev, "dp_squares_f64", &kernels[1]);
    if (!err)
        err = dp_device_own_kernel(stream->dev, "dp_sum_rows", &sums);
    for (int32_t i = 0; i < count && !err; i++) {
        const DLTensor *g = parameters[i].flags & DP_PARAMETER_FROZEN ? NULL : parameters[i].grad;
        struct sum_args args = {g ? (uintptr_t)dp_tensor_address(g) : 0, (uintptr_t)parts,
                                g ? (uint64_t)dp_tensor_numel(g) : 0};
        const uint64_t blocks = blocks_of(args.count, EACH * (uint64_t)THREADS, MOST_BLOCKS);
        err =
            launch(stream, kernels[g && g->dtype.bits == 64], blocks, THREADS, &args, sizeof(args));
        args = (struct sum_args){(uintptr_t)parts, (uintptr_t)(rows + (size_t)i * THREADS),
                                 blocks * THREADS};
        if (!err)
            err = launch(stream, sums, 1, THREADS, &args, sizeof(args));
    }
    const struct sum_args all = {(uintptr_t)rows, (uintptr_t)squares, THREADS};
    return err || !count ? err : launch(stream, sums, (uint64_t)count, 1, &all, sizeof(all));
}
