/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/border.h"

#include "base/fail.h"
#include "pipeline/offsets.h"

#include <stdio.h>

static const char *code_name(uint8_t code)
{
    switch (code) {
    case kDLInt:
        return "int";
    case kDLUInt:
        return "uint";
    case kDLFloat:
        return "float";
    case kDLBfloat:
        return "bfloat";
    case kDLComplex:
        return "complex";
    case kDLOpaqueHandle:
        return "handle";
    case 6: /* kDLBool of later DLPack */
        return "bool";
    default:
        return "type";
    }
}

void dp_dtype_name(DLDataType dtype, char *text, size_t len)
{
    if (dtype.lanes == 1)
        snprintf(text, len, "%s%u", code_name(dtype.code), dtype.bits);
    else
        snprintf(text, len, "%s%ux%u", code_name(dtype.code), dtype.bits, dtype.lanes);
}

void dp_shape_text(const int64_t *shape, int ndim, char *text, size_t len)
{
    size_t at = (size_t)snprintf(text, len, "[");
    for (int i = 0; i < ndim && at < len; i++)
        at += (size_t)snprintf(text + at, len - at, i ? ", %lld" : "%lld", (long long)shape[i]);
    if (at < len)
        snprintf(text + at, len - at, "]");
}

size_t dp_spec_bytes(const struct dp_tensor_spec *spec)
{
    size_t bytes = (size_t)spec->dtype.bits * spec->dtype.lanes / 8;
    for (int i = 0; i < spec->ndim; i++)
        bytes *= (size_t)spec->shape[i];
    return bytes;
}

size_t dp_tensor_bytes(const DLTensor *tensor)
{
    size_t bytes = (size_t)tensor->dtype.bits * tensor->dtype.lanes / 8;
    for (int i = 0; i < tensor->ndim; i++)
        bytes *= (size_t)tensor->shape[i];
    return bytes;
}

int dp_spec_check(const struct dp_tensor_spec *spec, const char *what)
{
    size_t bytes = (size_t)spec->dtype.bits * spec->dtype.lanes / 8;

    if (spec->dtype.code == kDLOpaqueHandle)
        return dp_fail(DP_EINVAL, "%s: dtype of handles, expected one whose bytes mean the same on "
                                  "every rank",
                       what);
    if (!bytes || spec->dtype.bits * spec->dtype.lanes % 8)
        return dp_fail(DP_EINVAL, "%s: dtype of %u bits and %u lanes, expected whole bytes", what,
                       spec->dtype.bits, spec->dtype.lanes);
    if (spec->ndim < 0 || spec->ndim > DP_MAX_DIMS)
        return dp_fail(DP_EINVAL, "%s: %d dimensions, expected 0 to %d", what, spec->ndim,
                       DP_MAX_DIMS);
    for (int i = 0; i < spec->ndim; i++) {
        if (spec->shape[i] < 0)
            return dp_fail(DP_EINVAL, "%s: extent %lld of dimension %d, expected at least 0", what,
                           (long long)spec->shape[i], i);
        if (__builtin_mul_overflow(bytes, (size_t)spec->shape[i], &bytes) ||
            bytes > SIZE_MAX / (2 * DP_MAX_TENSORS))
            return dp_fail(DP_EINVAL, "%s: more bytes than there can be", what);
    }
    return 0;
}

int dp_border_check(const struct dp_border *border, int index)
{
    char what[64];

    if (border->count == 0)
        return dp_fail(DP_ESTATE, "border %d: no tensor declared, expected 1 to %d", index,
                       DP_MAX_TENSORS);
    if (border->count < 0 || border->count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "border %d: %d tensors, expected 1 to %d", index, border->count,
                       DP_MAX_TENSORS);
    for (int k = 0; k < border->count; k++) {
        snprintf(what, sizeof(what), "border %d, tensor %d", index, k);
        int err = dp_spec_check(&border->tensors[k], what);
        if (err)
            return err;
    }
    return 0;
}

static void lay_out(struct dp_layout *layout, int k, size_t bytes)
{
    layout->offset[k] = dp_offset_align(layout->bytes);
    layout->bytes = layout->offset[k] + bytes;
}

void dp_border_lay_out(const struct dp_border *border, struct dp_border_layout *out)
{
    *out = (struct dp_border_layout){0};
    for (int k = 0; k < DP_MAX_TENSORS; k++)
        out->activation.offset[k] = out->gradient.offset[k] = DP_NOWHERE;
    for (int k = 0; k < border->count; k++) {
        size_t bytes = dp_spec_bytes(&border->tensors[k]);
        lay_out(&out->activation, k, bytes);
        if (!border->tensors[k].no_grad)
            lay_out(&out->gradient, k, bytes);
    }
}
