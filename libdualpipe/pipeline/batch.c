/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/batch.h"

#include "base/fail.h"
#include "pipeline/border.h"

bool dp_tensor_is_contiguous(const DLTensor *tensor)
{
    int64_t stride = 1;

    for (int i = tensor->ndim - 1; i >= 0 && tensor->strides; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != stride)
            return false;
        stride *= tensor->shape[i];
    }
    return true;
}

/* ---- checks --------------------------------------------------------------------------------- */

static int check_shape(const struct dp_batch_cut *cut, const DLTensor *tensor, const char *what)
{
    int64_t expected[DP_MAX_DIMS];
    char has[128], wants[128];
    bool equal = tensor->ndim == cut->spec->ndim;

    for (int i = 0; i < cut->spec->ndim; i++) {
        expected[i] = cut->spec->shape[i] * (i == cut->dim ? cut->count : 1);
        equal = equal && tensor->shape[i] == expected[i];
    }
    if (equal)
        return 0;
    dp_shape_text(tensor->shape, tensor->ndim, has, sizeof(has));
    if (tensor->ndim == cut->spec->ndim && tensor->shape[cut->dim] % cut->count)
        return dp_fail(DP_EINVAL,
                       "%s: extent %lld of dimension %d in %s, expected a multiple of the %d "
                       "micro-batches",
                       what, (long long)tensor->shape[cut->dim], cut->dim, has, cut->count);
    dp_shape_text(expected, cut->spec->ndim, wants, sizeof(wants));
    return dp_fail(DP_EMISMATCH, "%s: shape %s, expected %s for %d micro-batches", what, has, wants,
                   cut->count);
}

static int check_dtype(const struct dp_batch_cut *cut, const DLTensor *tensor, const char *what)
{
    char has[32], wants[32];

    if (dp_dtype_equal(tensor->dtype, cut->spec->dtype))
        return 0;
    dp_dtype_name(tensor->dtype, has, sizeof(has));
    dp_dtype_name(cut->spec->dtype, wants, sizeof(wants));
    return dp_fail(DP_EMISMATCH, "%s: dtype %s, expected %s", what, has, wants);
}

int dp_batch_check(const struct dp_batch_cut *cut, const DLTensor *tensor,
                   const struct dp_device *device, const char *what)
{
    if (!tensor)
        return dp_fail(DP_EINVAL, "%s: NULL, expected a tensor", what);
    int err = check_dtype(cut, tensor, what);
    if (!err)
        err = check_shape(cut, tensor, what);
    if (err)
        return err;
    if (tensor->device.device_type != device->dl.device_type ||
        tensor->device.device_id != device->dl.device_id)
        return dp_fail(DP_EINVAL, "%s: on device %d:%d, expected the pipeline's, %d:%d", what,
                       tensor->device.device_type, tensor->device.device_id,
                       device->dl.device_type, device->dl.device_id);
    if (!dp_tensor_is_contiguous(tensor))
        return dp_fail(DP_EINVAL, "%s: strided, expected a contiguous tensor", what);
    if (!tensor->data && dp_spec_bytes(cut->spec))
        return dp_fail(DP_EINVAL, "%s: no data", what);
    return 0;
}

/* ---- ways in and out ------------------------------------------------------------------------- */

static char *data_of(const DLTensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* One micro-batch is `rows` runs of row_bytes, `pitch` apart. */
struct rows {
    char *at;
    size_t count, row_bytes, pitch;
};

static struct rows rows_of(const struct dp_batch_cut *cut, const DLTensor *tensor, int mb)
{
    struct rows rows = {.count = 1, .row_bytes = dp_spec_bytes(cut->spec)};

    for (int i = 0; i < cut->dim; i++)
        rows.count *= (size_t)cut->spec->shape[i];
    if (rows.count)
        rows.row_bytes /= rows.count;
    rows.pitch = rows.row_bytes * (size_t)cut->count;
    rows.at = data_of(tensor) + rows.row_bytes * (size_t)mb;
    return rows;
}

char *dp_batch_view(const struct dp_batch_cut *cut, const DLTensor *tensor, int mb)
{
    return data_of(tensor) + dp_spec_bytes(cut->spec) * (size_t)mb;
}

int dp_batch_read(const struct dp_batch_cut *cut, const DLTensor *tensor, int mb, void *dst,
                  const struct dp_device_ops *ops, struct dp_device_stream *stream)
{
    struct rows rows = rows_of(cut, tensor, mb);
    int err = 0;

    for (size_t i = 0; i < rows.count && !err; i++)
        err = ops->copy(stream, (char *)dst + i * rows.row_bytes, rows.at + i * rows.pitch,
                        rows.row_bytes);
    return err;
}

int dp_batch_write(const struct dp_batch_cut *cut, const DLTensor *tensor, int mb, const void *src,
                   const struct dp_device_ops *ops, struct dp_device_stream *stream)
{
    struct rows rows = rows_of(cut, tensor, mb);
    int err = 0;

    for (size_t i = 0; i < rows.count && !err; i++)
        err = ops->copy(stream, rows.at + i * rows.pitch, (const char *)src + i * rows.row_bytes,
                        rows.row_bytes);
    return err;
}
