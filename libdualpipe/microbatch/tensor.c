/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch/tensor.h"

#include "base/fail.h"

#include <string.h>

/* Whether data is an address; elsewhere it is a handle that only byte_offset moves. */
static bool has_addresses(const DLTensor *t)
{
    int type = (int)t->device.device_type;
    return dp_tensor_on_host(t) || type == kDLCUDA || type == kDLROCM;
}

void dp_tensor_view(const DLTensor *t, int dim, int64_t begin, int64_t size, int64_t *dims,
                    DLTensor *out)
{
    DLTensor view = *t;

    view.shape = dims;
    view.strides = dims + t->ndim;
    memcpy(view.shape, t->shape, (size_t)t->ndim * sizeof(*dims));
    dp_tensor_strides(t, view.strides);
    view.shape[dim] = size;

    /* As unsigned, since strides may be negative. */
    uint64_t offset = (uint64_t)begin * (uint64_t)view.strides[dim] * dp_tensor_element_bytes(t);
    if (has_addresses(t) && t->data)
        view.data = (void *)((uintptr_t)t->data + (uintptr_t)offset);
    else if (t->data)
        view.byte_offset += offset;
    if (dp_tensor_compact(&view))
        view.strides = NULL;
    *out = view;
}

int dp_tensor_window(const DLTensor *t, int dim, int64_t begin, int64_t size, int64_t *dims,
                     DLTensor *out)
{
    const char *fault = t ? dp_tensor_fault(t) : "is NULL";

    if (fault)
        return dp_fail(DP_EINVAL, "the tensor %s", fault);
    if (dim < -t->ndim || dim >= t->ndim)
        return dp_fail(DP_EINVAL, "dim: %d, of a tensor with %d dimensions", dim, t->ndim);
    dim += dim < 0 ? t->ndim : 0;
    if (begin < 0 || size < 0 || begin > t->shape[dim] || size > t->shape[dim] - begin)
        return dp_fail(DP_EINVAL, "window: %lld rows from %lld on, of a tensor with %lld",
                       (long long)size, (long long)begin, (long long)t->shape[dim]);
    if (!dp_tensor_element_bytes(t))
        return dp_fail(DP_EUNSUPPORTED, "elements of %d bits, expected whole bytes",
                       t->dtype.bits * t->dtype.lanes);
    dp_tensor_view(t, dim, begin, size, dims, out);
    return 0;
}

DLTensor *dp_tensor_new(struct dp_arena *arena, DLDataType dtype, int ndim, const int64_t *shape)
{
    DLTensor *t = dp_arena_array(arena, 1, sizeof(*t));
    int64_t *dims = dp_arena_array(arena, (size_t)ndim, sizeof(*dims));
    if (!t || !dims)
        return NULL;

    *t = (DLTensor){.device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = dims};
    if (ndim)
        memcpy(dims, shape, (size_t)ndim * sizeof(*dims));
    t->data = dp_arena_data(arena, (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
    return t->data ? t : NULL;
}
