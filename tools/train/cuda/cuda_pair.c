/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_pair.c - an overlapped pair: the forward of one micro-batch in the pipeline's stream, the
 * backward of another in a second one, so that the GPU fills what one leaves idle with the other's
 * kernels.
 *
 *      compute   ...  fork | forward, loss              | join  ...
 *      second              | loss's gradient, backward  |
 *
 * The two are of different stages, which have scratch memory of their own; products have workspace for
 * each stream.
 */
#include "train/cuda/cuda_graphs.h"

static int follow(struct dp_device_event *event, struct dp_device_stream *first,
                  struct dp_device_stream *then)
{
    int err = dp_device_event_record(event, first);

    return err ? err : dp_device_stream_wait(then, event);
}

static int run_forward(const struct dp_pair *pair)
{
    int err = cuda_forward(pair->forward.user, pair->forward.call, pair->forward.in,
                                    pair->forward.out);

    return err ? err : dp_pair_take_loss(pair);
}

static int run_backward(const struct dp_pair *pair, void *stream)
{
    struct dp_stage_call call = *pair->backward.call;
    struct dp_pair there = *pair;

    call.stream = stream;
    there.backward.call = &call;
    int err = dp_pair_start_from_loss(&there);
    return err ? err
               : cuda_backward(pair->backward.user, &call, pair->backward.gout,
                                        pair->backward.gin, DP_BACKWARD_FULL);
}

/* The backward is first: its gradients are what another rank waits for. */
static int fwd_bwd(const struct dp_pair *pair)
{
    const struct gpt_stage *stage = pair->forward.user;
    struct cuda_rank *r = stage->shape.compute.device;
    int err = follow(r->forked, r->stream, r->second);

    if (!err)
        err = run_backward(pair, dp_device_stream_native(r->second));
    if (!err)
        err = run_forward(pair);
    int joined = follow(r->joined, r->second, r->stream);
    return err ? err : joined;
}

const struct dp_stage_ops cuda_stage_ops = {
    .forward = cuda_forward, .backward = cuda_backward, .weight = cuda_weight, .fwd_bwd = fwd_bwd};
