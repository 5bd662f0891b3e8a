/* SPDX-License-Identifier: Apache-2.0
 *
 * border.h - the bytes of what crosses from one stage to the next: every tensor of a border one
 * after the other, each aligned, so that a border's activations are one message, and its gradients
 * another.
 */
#ifndef DP_PIPELINE_BORDER_H
#define DP_PIPELINE_BORDER_H

#include <dualpipe/device.h>
#include <dualpipe/microbatch.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/stage.h>

#define DP_NOWHERE SIZE_MAX /* the offset of what has no memory */

/* Where the tensors of one micro-batch lie in a buffer. */
struct dp_layout {
    size_t offset[DP_MAX_TENSORS]; /* DP_NOWHERE: not in the buffer */
    size_t bytes;                  /* of the whole buffer, which is the message too */
};

struct dp_border_layout {
    struct dp_layout activation; /* all tensors */
    struct dp_layout gradient;   /* those that carry gradients */
};

size_t dp_spec_bytes(const struct dp_tensor_spec *spec);

/* DP_EINVAL, naming `what` and the member that is wrong. */
int dp_spec_check(const struct dp_tensor_spec *spec, const char *what);

/* DP_ESTATE if the border declares no tensor, DP_EINVAL for a bad one. */
int dp_border_check(const struct dp_border *border, int index);

void dp_border_lay_out(const struct dp_border *border, struct dp_border_layout *out);

/* "float32", "int64", "bfloat16": writes into text[len]. */
void dp_dtype_name(DLDataType dtype, char *text, size_t len);
/* "[2, 16, 64]". */
void dp_shape_text(const int64_t *shape, int ndim, char *text, size_t len);

static inline bool dp_dtype_equal(DLDataType a, DLDataType b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/* ---- extents ------------------------------------------------------------------------------------
 * Borders whose tensors are smaller in some micro-batches than declared: uneven
 * micro-batches, shorter sequences.
 *
 *      declared    max_extents {4, 512}     tensor [4, 512, 64], extent {1, 2, 0}
 *      in a step   extents {3, 384}         tensor [3, 384, 64] */

/* The border as it is with these extents: a dimension that follows one is scaled by it. */
void dp_extents_apply(const struct dp_border *declared, const int64_t *max, const int64_t *now,
                      struct dp_border *out);

/* DP_EINVAL: more than declared, or one that a dimension cannot be scaled by exactly. */
int dp_extents_check(const struct dp_border *declared, const int64_t *max, const int64_t *now,
                     int32_t mb_global);

/* Known extents of a spec, and a maximum for each. DP_EINVAL. */
int dp_extents_check_spec(const struct dp_tensor_spec *spec, const int64_t *max, const char *what);

/* ---- the caller's micro-batches -----------------------------------------------------------------
 * The micro-batches that a caller hands to a step, checked and listed: inputs, labels, or
 * the outputs to be written. The leaves of a tree from left to right, the tensors and the absent
 * ones, are the tensors of the border; opaque leaves stay in the tree.
 *
 *      border 0: 2 tensors        args[mb] = (ids, {mask: -, config: opaque})
 *                                             |          |
 *                                             tensor 0   tensor 1, data NULL */

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
