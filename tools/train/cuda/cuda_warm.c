/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_warm.c - every stage computes once, on zeros, before a step does. The first launch of a kernel
 * may load it, and loading may wait until the device is idle; a kernel of NCCL's that waits for a
 * message keeps the device busy until another rank, which may be loading just as this one, has sent it.
 *
 * Source: CUDA C++ Programming Guide, "Lazy Loading", issues with concurrent execution.
 */
#include "train/cuda/cuda_rank.h"

#include <string.h>

enum { SAVE, IN, OUT, GOUT, GIN, LABELS, BUFFERS };

struct warm {
    struct cuda_rank *r;
    void *memory[BUFFERS];
};

/* One micro-batch of a border, zeroed. */
static int take(struct warm *w, int which, const struct dp_border *border, int64_t shape[3],
                DLTensor *out)
{
    const struct dp_tensor_spec *spec = &border->tensors[0];
    size_t bytes = (size_t)spec->dtype.bits / 8;

    memcpy(shape, spec->shape, 3 * sizeof(*shape));
    for (int i = 0; i < spec->ndim; i++)
        bytes *= (size_t)shape[i];
    int err = dp_device_alloc(w->r->dev, DP_MEMORY_DEVICE, bytes, &w->memory[which]);
    *out = (DLTensor){w->memory[which], w->r->compute.dl, spec->ndim, spec->dtype, shape, NULL, 0};
    return err ? err : dp_device_zero(w->r->stream, out->data, bytes);
}

static int compute(struct warm *w, struct gpt_stage *g, const struct dp_border *in_border,
                   const struct dp_border *out_border, const struct dp_border *labels_border)
{
    struct cuda_rank *r = w->r;
    const struct dp_stage_ops *ops = &gpt_stage_ops;
    const struct dp_loss_ops *loss = &gpt_loss_ops;
    DLTensor in, out, gout, gin, labels;
    int64_t shapes[2][3];
    int32_t count;

    int err = take(w, IN, in_border, shapes[0], &in);
    struct dp_stage_call call = {.training = true, .in = &in, .grads = g->grads_list,
                                 .save = w->memory[SAVE],
                                 .stream = dp_device_stream_native(r->stream)};
    if (!err)
        err = take(w, GIN, in_border, shapes[0], &gin);
    if (!err)
        err = take(w, OUT, out_border, shapes[1], &out);
    if (!err)
        err = take(w, GOUT, out_border, shapes[1], &gout);
    if (!err)
        err = ops->forward(g, &call, &in, &out);
    if (!err && g->has_head) {
        int64_t shape[3];
        err = take(w, LABELS, labels_border, shape, &labels);
        if (!err)
            err = loss->loss(&r->compute, &call, &out, &labels, r->numbers, 1, &count);
        if (!err)
            err = loss->loss_backward(&r->compute, &call, &out, &labels, 1, &gout);
    }
    if (!err)
        err = ops->backward(g, &call, &gout, g->has_embedding ? NULL : &gin, DP_BACKWARD_INPUT);
    call.gout = &gout;
    if (!err)
        err = ops->weight(g, &call);
    return err ? err : dp_device_zero(r->stream, g->grads, g->params.count * sizeof(float));
}

int cuda_rank_warm(struct cuda_rank *r, const struct dp_border *borders,
                   const struct dp_border *labels)
{
    int err = 0;

    for (int i = 0; i < r->slot_count && !err; i++) {
        struct gpt_stage *g = r->slots[i].stage;
        const struct dp_border *in = &borders[r->slots[i].index];
        struct warm w = {.r = r};
        err = dp_device_alloc(r->dev, DP_MEMORY_DEVICE, g->save_bytes, &w.memory[SAVE]);
        if (!err)
            err = compute(&w, g, in, in + 1, labels);
        const int waited = cuda_rank_wait(r);
        err = err ? err : waited;
        for (int k = 0; k < BUFFERS; k++)
            dp_device_free(r->dev, DP_MEMORY_DEVICE, w.memory[k]);
    }
    return err;
}
