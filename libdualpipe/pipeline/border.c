/* SPDX-License-Identifier: Apache-2.0
 *
 * border.c - what crosses the borders of stages: how the tensors of one lie in a message, extents that
 * differ from one micro-batch to the next, and the caller's micro-batches at the ends of the model.
 */
#include "pipeline/border.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "microbatch/tree.h"
#include "pipeline/offsets.h"

#include <stdio.h>
#include <stdlib.h>

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

/* ---- extents --------------------------------------------------------------------------------- */

/* The extent that a dimension follows, or -1. */
static int followed(const struct dp_tensor_spec *spec, int dim)
{
    return (int)spec->extent[dim] - 1;
}

void dp_extents_apply(const struct dp_border *declared, const int64_t *max, const int64_t *now,
                      struct dp_border *out)
{
    for (int k = 0; k < declared->count; k++)
        for (int i = 0; i < declared->tensors[k].ndim; i++) {
            int e = followed(&declared->tensors[k], i);
            int64_t most = declared->tensors[k].shape[i];
            out->tensors[k].shape[i] = e < 0 ? most : most / max[e] * now[e];
        }
}

int dp_extents_check(const struct dp_border *declared, const int64_t *max, const int64_t *now,
                     int32_t mb_global)
{
    for (int k = 0; k < declared->count; k++)
        for (int i = 0; i < declared->tensors[k].ndim; i++) {
            int e = followed(&declared->tensors[k], i);
            if (e >= 0 && (now[e] < 0 || now[e] > max[e]))
                return dp_fail(DP_EINVAL,
                               "extents of micro-batch %d: extent %d is %lld, expected 0 "
                               "to the declared %lld",
                               mb_global, e + 1, (long long)now[e], (long long)max[e]);
        }
    return 0;
}

int dp_extents_check_spec(const struct dp_tensor_spec *spec, const int64_t *max, const char *what)
{
    for (int i = 0; i < spec->ndim; i++) {
        int e = followed(spec, i);
        if (e >= DP_MAX_EXTENTS || (e >= 0 && (max[e] < 1 || spec->shape[i] % max[e])))
            return dp_fail(DP_EINVAL,
                           "%s: dimension %d of %lld follows extent %d, expected 1 to %d "
                           "with a max_extents that divides it",
                           what, i, (long long)spec->shape[i], e + 1, DP_MAX_EXTENTS);
    }
    return 0;
}

/* ---- the caller's micro-batches -------------------------------------------------------------- */

int dp_batch_init(struct dp_batch *batch, int32_t count, const struct dp_border *border)
{
    size_t n = (size_t)count * (size_t)border->count;

    *batch = (struct dp_batch){.count = count, .per_mb = border->count, .border = border};
    batch->tensors = calloc(n + 1, sizeof(*batch->tensors));
    batch->args = calloc((size_t)count + 1, sizeof(*batch->args));
    batch->kwargs = calloc((size_t)count + 1, sizeof(*batch->kwargs));
    batch->loaded = calloc((size_t)count + 1, sizeof(*batch->loaded));
    return batch->tensors && batch->args && batch->kwargs && batch->loaded
               ? 0
               : dp_fail(DP_ENOMEM, "no memory for %zu tensors", n);
}

void dp_batch_fini(struct dp_batch *batch)
{
    free(batch->tensors);
    free(batch->args);
    free(batch->kwargs);
    free(batch->loaded);
    *batch = (struct dp_batch){0};
}

/* ---- checks --------------------------------------------------------------------------------- */

static int check_shape(const DLTensor *t, const struct dp_tensor_spec *spec, const char *what)
{
    char has[128], wants[128];
    bool equal = t->ndim == spec->ndim;

    for (int i = 0; i < spec->ndim && equal; i++)
        equal = t->shape[i] == spec->shape[i];
    if (equal)
        return 0;
    dp_shape_text(t->shape, t->ndim, has, sizeof(has));
    dp_shape_text(spec->shape, spec->ndim, wants, sizeof(wants));
    return dp_fail(DP_EMISMATCH, "%s: shape %s, expected %s", what, has, wants);
}

static int check_dtype(const DLTensor *t, const struct dp_tensor_spec *spec, const char *what)
{
    char has[32], wants[32];

    if (dp_dtype_equal(t->dtype, spec->dtype))
        return 0;
    dp_dtype_name(t->dtype, has, sizeof(has));
    dp_dtype_name(spec->dtype, wants, sizeof(wants));
    return dp_fail(DP_EMISMATCH, "%s: dtype %s, expected %s", what, has, wants);
}

static bool is_as_declared(const DLTensor *t, const struct dp_tensor_spec *spec, DLDevice here)
{
    bool equal = dp_dtype_equal(t->dtype, spec->dtype) && t->ndim == spec->ndim &&
                 t->device.device_type == here.device_type &&
                 t->device.device_id == here.device_id;

    for (int i = 0; i < spec->ndim && equal; i++)
        equal = t->shape[i] == spec->shape[i];
    return equal && t->data;
}

/* Say what is wrong with a tensor that is not as declared; 0 if it only lacks data it does not need. */
static int fail_given(const DLTensor *t, const struct dp_tensor_spec *spec, DLDevice here,
                       const char *what)
{
    int err = check_dtype(t, spec, what);

    if (!err)
        err = check_shape(t, spec, what);
    if (err)
        return err;
    if (t->device.device_type != here.device_type || t->device.device_id != here.device_id)
        return dp_fail(DP_EINVAL, "%s: on device %d:%d, expected the pipeline's, %d:%d", what,
                       (int)t->device.device_type, t->device.device_id, (int)here.device_type,
                       here.device_id);
    if (!t->data && dp_spec_bytes(spec))
        return dp_fail(DP_EINVAL, "%s: no data", what);
    return 0;
}

/* ---- leaves --------------------------------------------------------------------------------- */

/* The tensors of one micro-batch, one after the other. */
struct taking {
    const struct dp_border *border, *declared;
    DLDevice device;
    const char *what;
    int32_t mb, count;
    DLTensor *to;
};

static int take_tensor(struct taking *t, const struct dp_tree *leaf)
{
    char what[80];
    int32_t k = t->count++;

    if (k >= t->border->count)
        return 0; /* counted, and refused */
    const struct dp_tensor_spec *spec = &t->border->tensors[k];
    if (leaf->kind == DP_TREE_ABSENT) {
        t->to[k] = (DLTensor){.device = t->device,
                              .ndim = spec->ndim,
                              .dtype = spec->dtype,
                              .shape = (int64_t *)t->declared->tensors[k].shape};
        return 0;
    }
    t->to[k] = *leaf->tensor;
    t->to[k].data = dp_tensor_address(leaf->tensor);
    t->to[k].byte_offset = 0;
    if (dp_tensor_compact(leaf->tensor))
        t->to[k].strides = NULL;
    if (is_as_declared(leaf->tensor, spec, t->device))
        return 0;
    snprintf(what, sizeof(what), "%s %d of micro-batch %d", t->what, k, t->mb);
    return fail_given(leaf->tensor, spec, t->device, what);
}

static int take_leaves(struct taking *t, const struct dp_tree *tree, int depth)
{
    int err = 0;

    switch (tree->kind) {
    case DP_TREE_TENSOR:
    case DP_TREE_ABSENT:
        return take_tensor(t, tree);
    case DP_TREE_OPAQUE:
    case DP_TREE_BLOCK_MASK:
        return 0;
    case DP_TREE_TUPLE:
    case DP_TREE_LIST:
    case DP_TREE_DICT:
        if (depth == DP_TREE_MAX_DEPTH)
            return dp_fail(DP_EINVAL, "%ss: more than %d levels of containers", t->what, depth);
        for (int32_t i = 0; i < tree->count && !err; i++)
            err = take_leaves(t, &tree->items[i], depth + 1);
        return err;
    default:
        return dp_fail(DP_EINVAL, "%ss: a leaf of a spec, expected values", t->what);
    }
}

int dp_batch_take_one(struct dp_batch *batch, int32_t mb, const struct dp_tree *args,
                      const struct dp_tree *kwargs, const struct dp_border *border,
                      const struct dp_device *device, const char *what)
{
    struct taking t = {.border = border,
                       .declared = batch->border,
                       .device = dp_device_dl(device),
                       .what = what,
                       .mb = mb,
                       .to = dp_batch_at(batch, (uint32_t)mb)};
    int err = args ? take_leaves(&t, args, 0) : 0;

    if (!err && kwargs)
        err = take_leaves(&t, kwargs, 0);
    if (!err && t.count != border->count)
        err = dp_fail(DP_EINVAL, "%ss: micro-batch %d has %d tensors, expected %d", what, mb,
                      t.count, border->count);
    batch->args[mb] = args;
    batch->kwargs[mb] = kwargs;
    return err;
}

int dp_batch_take(struct dp_batch *batch, const struct dp_microbatches *mbs, int32_t count,
                  dp_border_fn *border, void *user, const struct dp_device *device,
                  const char *what)
{
    int err = 0;

    if (mbs->count != count)
        return dp_fail(DP_EINVAL, "%ss: %d micro-batches, expected the stream's %d", what,
                       mbs->count, count);
    for (int32_t mb = 0; mb < count && !err; mb++)
        err = dp_batch_take_one(batch, mb, mbs->args ? &mbs->args[mb] : NULL,
                                mbs->kwargs ? &mbs->kwargs[mb] : NULL, border(user, mb), device,
                                what);
    batch->given = !err;
    return err;
}

/* ---- copies --------------------------------------------------------------------------------- */

static int copy_row(struct dp_device_stream *stream, const struct dp_walk *w, char *to, char *from)
{
    int64_t bytes = (int64_t)w->bytes;
    int err = 0;

    if (w->a_column == bytes && w->b_column == bytes)
        return dp_device_copy(stream, to, from, w->bytes * (size_t)w->columns);
    for (int64_t c = 0; c < w->columns && !err; c++)
        err = dp_device_copy(stream, to + c * w->a_column, from + c * w->b_column, w->bytes);
    return err;
}

int dp_batch_copy(struct dp_device_stream *stream, const DLTensor *to, const DLTensor *from)
{
    struct dp_walk w;
    int err = 0;

    for (bool more = dp_walk_begin(&w, to, from); more && !err; more = dp_walk_next(&w))
        for (int64_t r = 0; r < w.rows && !err; r++)
            err = copy_row(stream, &w, w.a + r * w.a_row, w.b + r * w.b_row);
    return err;
}
