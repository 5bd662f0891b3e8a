/* SPDX-License-Identifier: Apache-2.0
 *
 * border.h - the bytes of what crosses from one stage to the next: every tensor of a border one
 * after the other, each aligned, so that a border's activations are one message, and its gradients
 * another.
 */
#ifndef DP_PIPELINE_BORDER_H
#define DP_PIPELINE_BORDER_H

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
size_t dp_tensor_bytes(const DLTensor *tensor); /* of one that is contiguous */

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

#endif
