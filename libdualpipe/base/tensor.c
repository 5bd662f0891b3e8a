/* SPDX-License-Identifier: Apache-2.0 */
#include "base/tensor.h"

#include <stdio.h>
#include <string.h>

const char *dp_tensor_fault(const DLTensor *t)
{
    if (t->ndim < 0 || t->ndim > DP_TENSOR_MAX_NDIM)
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

size_t dp_tensor_bytes(const DLTensor *t)
{
    return (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t);
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

bool dp_tensor_dense(const DLTensor *t)
{
    int64_t expected = 1, numel = dp_tensor_numel(t);
    bool found = true;

    if (!t->strides)
        return true;
    while (found && expected < numel) {
        found = false;
        for (int i = 0; i < t->ndim && !found; i++)
            if (t->shape[i] > 1 && t->strides[i] == expected) {
                expected *= t->shape[i];
                found = true;
            }
    }
    return found;
}

bool dp_tensor_same_layout(const DLTensor *a, const DLTensor *b)
{
    int64_t a_strides[DP_TENSOR_MAX_NDIM], b_strides[DP_TENSOR_MAX_NDIM];
    bool same = dp_tensor_same_shape(a, b);

    if (!same)
        return false;
    dp_tensor_strides(a, a_strides);
    dp_tensor_strides(b, b_strides);
    for (int i = 0; i < a->ndim; i++)
        same &= a->shape[i] < 2 || a_strides[i] == b_strides[i];
    return same;
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

bool dp_tensor_is_real(const DLTensor *t)
{
    int bits = t->dtype.bits;

    if (t->dtype.lanes != 1)
        return false;
    if (t->dtype.code == kDLBfloat)
        return bits == 16;
    return t->dtype.code == kDLFloat && (bits == 16 || bits == 32 || bits == 64);
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
