/* SPDX-License-Identifier: Apache-2.0
 *
 * border.c - the tensors between layers: how they lie in one piece of memory.
 */
#include "offload/layout.h"

#include "base/fail.h"
#include "base/tensor.h"

static size_t align(size_t n)
{
    return (n + 255) / 256 * 256;
}

static size_t row_bytes(const struct dp_tensor_spec *spec)
{
    size_t bytes = (size_t)(spec->dtype.bits * spec->dtype.lanes + 7) / 8;

    for (int32_t d = 1; d < spec->ndim; d++)
        bytes *= (size_t)spec->shape[d];
    return bytes;
}

int dpo_border_check(const struct dp_border *spec, int64_t rows, const char *what, int32_t index)
{
    if (!spec || spec->count < 1 || spec->count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "offload: %s %d: expected 1 to %d tensors", what, index,
                       DP_MAX_TENSORS);
    for (int32_t k = 0; k < spec->count; k++) {
        const struct dp_tensor_spec *t = &spec->tensors[k];
        if (t->ndim < 1 || t->ndim > DP_MAX_DIMS || t->shape[0] != rows || rows < 1)
            return dp_fail(DP_EINVAL,
                           "offload: %s %d: tensor %d has %lld rows in dimension 0, expected the "
                           "batch's %lld",
                           what, index, k, t->ndim > 0 ? (long long)t->shape[0] : 0LL,
                           (long long)rows);
        for (int32_t d = 1; d < t->ndim; d++)
            if (t->shape[d] < 0)
                return dp_fail(DP_EINVAL, "offload: %s %d: tensor %d has a negative extent", what,
                               index, k);
    }
    return 0;
}

size_t dpo_border_init(struct dpo_border *border, const struct dp_border *spec, int64_t rows)
{
    border->spec = spec;
    border->bytes = 0;
    for (int32_t k = 0; k < spec->count; k++) {
        border->row_bytes[k] = row_bytes(&spec->tensors[k]);
        border->offset[k] = border->bytes;
        border->bytes += align(border->row_bytes[k] * (size_t)rows);
    }
    return border->bytes;
}

void dpo_border_tensors(DLDevice device, const struct dpo_border *border, char *base, int64_t first,
                        int64_t rows, struct dpo_tensors *out)
{
    for (int32_t k = 0; k < border->spec->count; k++) {
        const struct dp_tensor_spec *spec = &border->spec->tensors[k];
        for (int32_t d = 0; d < spec->ndim; d++)
            out->shape[k][d] = d ? spec->shape[d] : rows;
        out->t[k] = (DLTensor){
            .device = device, .ndim = spec->ndim, .dtype = spec->dtype, .shape = out->shape[k]};
        if (base)
            out->t[k].data = base + border->offset[k] + (size_t)first * border->row_bytes[k];
    }
}
