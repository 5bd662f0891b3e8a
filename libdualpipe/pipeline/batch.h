/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h - the micro-batches that a caller hands to a step, checked and listed: inputs, labels, or
 * the outputs to be written. The leaves of a tree from left to right, the tensors and the absent
 * ones, are the tensors of the border; opaque leaves stay in the tree.
 *
 *      border 0: 2 tensors        args[mb] = (ids, {mask: -, config: opaque})
 *                                             |          |
 *                                             tensor 0   tensor 1, data NULL
 */
#ifndef DP_PIPELINE_BATCH_H
#define DP_PIPELINE_BATCH_H

#include <dualpipe/device.h>
#include <dualpipe/microbatch.h>
#include <dualpipe/stage.h>

/* Zeroed memory is a valid empty one. */
struct dp_batch {
    DLTensor *tensors;     /* [count * per_mb] */
    const struct dp_tree **args, **kwargs; /* [count] as they were given, NULL: none */
    bool *loaded;                          /* [count] by a loader, and not released yet */
    int32_t count, per_mb; /* micro-batches; tensors of each */
    bool given;            /* in this step */
    const struct dp_border *border; /* as it was given to dp_batch_init, which must stay */
};

/* Room for `count` micro-batches of that border. DP_ENOMEM. */
int dp_batch_init(struct dp_batch *batch, int32_t count, const struct dp_border *border);
void dp_batch_fini(struct dp_batch *batch);

/* What the border of a micro-batch looks like in the step at hand. */
typedef const struct dp_border *dp_border_fn(void *user, int32_t mb);

/* Take a step's micro-batches over. DP_EINVAL: another number of them or of their tensors, a tensor
 * elsewhere or without data; DP_EMISMATCH: another dtype or shape. `what` names them. */
int dp_batch_take(struct dp_batch *batch, const struct dp_microbatches *mbs, int32_t count,
                  dp_border_fn *border, void *user, const struct dp_device *device,
                  const char *what);

/* One of them, whose border is that. */
int dp_batch_take_one(struct dp_batch *batch, int32_t mb, const struct dp_tree *args,
                      const struct dp_tree *kwargs, const struct dp_border *border,
                      const struct dp_device *device, const char *what);

static inline DLTensor *dp_batch_at(const struct dp_batch *batch, uint32_t mb)
{
    return batch->tensors + (size_t)mb * (size_t)batch->per_mb;
}

/* Copy between tensors of one shape and dtype, with any strides, in the stream's order. */
int dp_batch_copy(struct dp_device_stream *stream, const DLTensor *to, const DLTensor *from);

#endif
