/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch/tensor.h"

#include "base/fail.h"

#include <stdio.h>
#include <string.h>

const char *dp_tensor_fault(const DLTensor *t)
{
    if (t->ndim < 0 || t->ndim > DP_TREE_MAX_NDIM)
        return "has a number of dimensions outside 0 to 64";
    if (t->ndim && !t->shape)
        return "has no shape";
    if (!t->dtype.bits || !t->dtype.lanes)
        return "has a dtype of 0 bits or lanes";

    /* Neither the bytes of all elements nor the way to the last one may overflow. */
    int64_t bits = (int64_t)t->dtype.bits * t->dtype.lanes, total = bits, reach = 0;
    bool empty = false, overflow = false;
    for (int i = 0; i < t->ndim; i++) {
        int64_t n = t->shape[i], step;
        if (n < 0)
            return "has a negative extent";
        empty |= n == 0;
        overflow |= __builtin_mul_overflow(total, n ? n : 1, &total);
        if (!t->strides || n < 2)
            continue;
        overflow |= t->strides[i] == INT64_MIN ||
                    __builtin_mul_overflow(t->strides[i] < 0 ? -t->strides[i] : t->strides[i],
                                           n - 1, &step) ||
                    __builtin_mul_overflow(step, bits, &step) ||
                    __builtin_add_overflow(reach, step, &reach);
    }
    if (overflow)
        return "has extents or strides beyond what memory can hold";
    if (!t->data && !empty)
        return "has elements but no data";
    return NULL;
}

size_t dp_tensor_element_bytes(const DLTensor *t)
{
    size_t bits = (size_t)t->dtype.bits * t->dtype.lanes;
    return bits % 8 ? 0 : bits / 8;
}

int64_t dp_tensor_numel(const DLTensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

char *dp_tensor_address(const DLTensor *t)
{
    return (char *)((uintptr_t)t->data + (uintptr_t)t->byte_offset);
}

void dp_tensor_strides(const DLTensor *t, int64_t *strides)
{
    int64_t compact = 1;

    for (int i = t->ndim - 1; i >= 0; i--) {
        strides[i] = t->strides ? t->strides[i] : compact;
        compact *= t->shape[i] ? t->shape[i] : 1;
    }
}

bool dp_tensor_compact(const DLTensor *t)
{
    int64_t compact = 1;

    if (!t->strides || !dp_tensor_numel(t))
        return true;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] > 1 && t->strides[i] != compact)
            return false;
        compact *= t->shape[i];
    }
    return true;
}

bool dp_tensor_on_host(const DLTensor *t)
{
    switch ((int)t->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
    case kDLCUDAManaged:
        return true;
    default:
        return false;
    }
}

/* Whether data is an address; elsewhere it is a handle that only byte_offset moves. */
static bool has_addresses(const DLTensor *t)
{
    int type = (int)t->device.device_type;
    return dp_tensor_on_host(t) || type == kDLCUDA || type == kDLROCM;
}

bool dp_tensor_same_dtype(const DLTensor *a, const DLTensor *b)
{
    return a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits &&
           a->dtype.lanes == b->dtype.lanes;
}

bool dp_tensor_same_shape(const DLTensor *a, const DLTensor *b)
{
    return a->ndim == b->ndim &&
           (!a->ndim || !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)));
}

const char *dp_tensor_text(const DLTensor *t, char *text)
{
    static const char *const codes[] = {"int", "uint", "float", "opaque", "bfloat", "complex",
                                        "bool"};
    const size_t room = DP_TENSOR_TEXT;
    size_t n;

    if (t->dtype.code < sizeof(codes) / sizeof(codes[0]))
        n = (size_t)snprintf(text, room, "%s%d", codes[t->dtype.code], t->dtype.bits);
    else
        n = (size_t)snprintf(text, room, "type%d-%d", t->dtype.code, t->dtype.bits);
    if (t->dtype.lanes != 1)
        n += (size_t)snprintf(text + n, room - n, "x%d", t->dtype.lanes);
    n += (size_t)snprintf(text + n, room - n, "[");
    for (int i = 0; i < t->ndim && n < room - 1; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (n < room - 1)
        snprintf(text + n, room - n, "]");
    return text;
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

DLTensor *dp_tensor_new(struct dp_region *region, DLDataType dtype, int ndim, const int64_t *shape)
{
    DLTensor *t = dp_region_array(region, 1, sizeof(*t));
    int64_t *dims = dp_region_array(region, (size_t)ndim, sizeof(*dims));
    if (!t || !dims)
        return NULL;

    *t = (DLTensor){.device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = dims};
    if (ndim)
        memcpy(dims, shape, (size_t)ndim * sizeof(*dims));
    t->data = dp_region_data(region, (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
    return t->data ? t : NULL;
}
