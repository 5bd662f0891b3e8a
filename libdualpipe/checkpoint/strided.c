/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/state.h"

#include <string.h>

/* Dimensions that lie row by row in memory become one, so that runs are as long as they can be. */
struct dp_stream dp_stream_of(const DLTensor *t)
{
    struct dp_stream s = {.element_bytes = dp_tensor_element_bytes(t), .base = dp_tensor_address(t)};
    int64_t strides[DP_TENSOR_MAX_NDIM];

    dp_tensor_strides(t, strides);
    for (int i = 0; i < t->ndim; i++) {
        int last = s.ndim - 1;
        if (t->shape[i] == 1)
            continue;
        if (last >= 0 && s.strides[last] == strides[i] * t->shape[i]) {
            s.shape[last] *= t->shape[i];
            s.strides[last] = strides[i];
            continue;
        }
        s.shape[s.ndim] = t->shape[i];
        s.strides[s.ndim++] = strides[i];
    }
    if (!s.ndim) {
        s.shape[0] = 1;
        s.strides[0] = 1;
        s.ndim = 1;
    }
    return s;
}

size_t dp_stream_run(const struct dp_stream *s, char **at)
{
    const int last = s->ndim - 1;
    int64_t offset = 0;

    for (int i = 0; i < s->ndim; i++)
        offset += s->index[i] * s->strides[i];
    *at = s->base + offset * (int64_t)s->element_bytes;
    if (s->strides[last] != 1)
        return s->index[last] < s->shape[last];
    return (size_t)(s->shape[last] - s->index[last]);
}

void dp_stream_advance(struct dp_stream *s, size_t count)
{
    int i = s->ndim - 1;

    s->index[i] += (int64_t)count;
    for (; i > 0 && s->index[i] == s->shape[i]; i--) {
        s->index[i] = 0;
        s->index[i - 1]++;
    }
}

/* Copy the next `count` elements to packed, or from there. */
static void copy(struct dp_stream *s, size_t count, char *packed, bool from_packed)
{
    while (count) {
        char *at;
        size_t run = dp_stream_run(s, &at);
        size_t n = run < count ? run : count;
        memcpy(from_packed ? at : packed, from_packed ? packed : at, n * s->element_bytes);
        dp_stream_advance(s, n);
        packed += n * s->element_bytes;
        count -= n;
    }
}

void dp_stream_gather(struct dp_stream *s, size_t count, char *packed)
{
    copy(s, count, packed, false);
}

void dp_stream_scatter(struct dp_stream *s, size_t count, const char *packed)
{
    copy(s, count, (char *)packed, true);
}
