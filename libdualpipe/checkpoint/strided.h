/* SPDX-License-Identifier: Apache-2.0
 *
 * strided.h - a tensor of any strides as a stream of its elements, row by row.
 */
#ifndef DP_CHECKPOINT_STRIDED_H
#define DP_CHECKPOINT_STRIDED_H

#include "base/tensor.h"

struct dp_stream {
    int ndim;
    size_t element_bytes;
    int64_t shape[DP_TENSOR_MAX_NDIM], strides[DP_TENSOR_MAX_NDIM], index[DP_TENSOR_MAX_NDIM];
    char *base;
};

/* At the first element of a sound tensor in host memory. */
struct dp_stream dp_stream_of(const DLTensor *tensor);

/* Elements that lie one behind another from here on (at least 1, unless it is at the end), and where. */
size_t dp_stream_run(const struct dp_stream *stream, char **at);
/* Go on by `count` elements of that run. */
void dp_stream_advance(struct dp_stream *stream, size_t count);

/* Copy the next `count` elements to `packed`, or from it. */
void dp_stream_gather(struct dp_stream *stream, size_t count, char *packed);
void dp_stream_scatter(struct dp_stream *stream, size_t count, const char *packed);

#endif
