/* SPDX-License-Identifier: Apache-2.0
 *
 * loss.c - the losses that many models have. Sums are taken in float64.
 */
#include "base/fail.h"
#include "base/tensor.h"

#include <dualpipe/model.h>

#include <math.h>

static double real_at(const DLTensor *t, int64_t i)
{
    return t->dtype.bits == 64 ? ((const double *)(void *)dp_tensor_address(t))[i]
                               : (double)((const float *)(void *)dp_tensor_address(t))[i];
}

static void set_real(DLTensor *t, int64_t i, double x)
{
    if (t->dtype.bits == 64)
        ((double *)(void *)dp_tensor_address(t))[i] = x;
    else
        ((float *)(void *)dp_tensor_address(t))[i] = (float)x;
}

static int64_t rows_of(const DLTensor *t)
{
    return t->ndim ? t->shape[0] : 1;
}

static bool is_real(const DLTensor *t)
{
    return t->dtype.code == kDLFloat && (t->dtype.bits == 32 || t->dtype.bits == 64);
}

static int mismatch(const char *what, const DLTensor *out, const DLTensor *labels)
{
    char a[DP_TENSOR_TEXT], b[DP_TENSOR_TEXT];

    return dp_callback_error(DP_EMISMATCH, "%s of %s and labels %s", what, dp_tensor_text(out, a),
                             labels ? dp_tensor_text(labels, b) : "that are not there");
}

static int on_device(const char *what)
{
    return dp_callback_error(
        DP_EUNSUPPORTED, "%s of a device's memory: expected a loss with kernels of its own", what);
}

/* ---- squares --------------------------------------------------------------------------------- */

static int check_squares(const DLTensor *out, const DLTensor *labels)
{
    if (!dp_tensor_on_host(out))
        return on_device("squares");
    if (!labels || !is_real(out) || !is_real(labels) || !dp_tensor_same_shape(out, labels) ||
        !dp_tensor_compact(labels))
        return mismatch("squares", out, labels);
    return 0;
}

static int squares(void *user, const struct dp_stage_call *call, const DLTensor *out,
                   const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    const int err = check_squares(out, labels);
    double sum = 0;

    (void)user, (void)call, (void)max;
    if (err)
        return err;
    for (int64_t i = 0, n = dp_tensor_numel(out); i < n; i++) {
        const double miss = real_at(out, i) - real_at(labels, i);
        sum += 0.5 * miss * miss;
    }
    values[0] = sum / (double)rows_of(out);
    *count = 1;
    return 0;
}

static int squares_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                            const DLTensor *labels, double scale, DLTensor *gout)
{
    const int err = check_squares(out, labels);
    const double each = scale / (double)rows_of(out);

    (void)user, (void)call;
    for (int64_t i = 0, n = err ? 0 : dp_tensor_numel(out); i < n; i++)
        set_real(gout, i, each * (real_at(out, i) - real_at(labels, i)));
    return err;
}

const struct dp_loss_ops *dp_loss_squares(void)
{
    static const struct dp_loss_ops ops = {squares, squares_backward};

    return &ops;
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

static int64_t label_at(const DLTensor *labels, int64_t i)
{
    const void *at = dp_tensor_address(labels);

    return labels->dtype.bits == 8    ? ((const uint8_t *)at)[i]
           : labels->dtype.bits == 32 ? ((const int32_t *)at)[i]
                                      : ((const int64_t *)at)[i];
}

static bool is_label(const DLTensor *t)
{
    return t->dtype.lanes == 1 &&
           ((t->dtype.code == kDLUInt && t->dtype.bits == 8) ||
            (t->dtype.code == kDLInt && (t->dtype.bits == 32 || t->dtype.bits == 64)));
}

/* *classes of each of the labels, which are those of the other dimensions. */
static int check_entropy(const DLTensor *out, const DLTensor *labels, int64_t *classes)
{
    if (!dp_tensor_on_host(out))
        return on_device("cross-entropy");
    if (!labels || !is_real(out) || out->ndim < 1 || !is_label(labels) ||
        !dp_tensor_compact(labels) ||
        dp_tensor_numel(labels) * out->shape[out->ndim - 1] != dp_tensor_numel(out))
        return mismatch("cross-entropy", out, labels);
    *classes = out->shape[out->ndim - 1];
    for (int64_t i = 0, n = dp_tensor_numel(labels); i < n; i++)
        if (label_at(labels, i) < 0 || label_at(labels, i) >= *classes)
            return dp_callback_error(DP_EINVAL, "label %lld is %lld, expected 0 to %lld",
                                     (long long)i, (long long)label_at(labels, i),
                                     (long long)*classes - 1);
    return 0;
}

/* The largest of a row's logits, and the logarithm of the sum of their exponentials beyond it. */
static double log_sum(const DLTensor *out, int64_t first, int64_t classes, double *most)
{
    double sum = 0;

    *most = real_at(out, first);
    for (int64_t c = 1; c < classes; c++)
        *most = fmax(*most, real_at(out, first + c));
    for (int64_t c = 0; c < classes; c++)
        sum += exp(real_at(out, first + c) - *most);
    return log(sum);
}

static int entropy(void *user, const struct dp_stage_call *call, const DLTensor *out,
                   const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    int64_t classes = 0;
    const int err = check_entropy(out, labels, &classes);
    const int64_t n = err ? 0 : dp_tensor_numel(labels);
    double sum = 0, most;

    (void)user, (void)call, (void)max;
    for (int64_t i = 0; i < n; i++) {
        const double log_of_sum = log_sum(out, i * classes, classes, &most);
        sum += log_of_sum + most - real_at(out, i * classes + label_at(labels, i));
    }
    values[0] = n ? sum / (double)n : 0;
    *count = 1;
    return err;
}

static int entropy_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                            const DLTensor *labels, double scale, DLTensor *gout)
{
    int64_t classes = 0;
    const int err = check_entropy(out, labels, &classes);
    const int64_t n = err ? 0 : dp_tensor_numel(labels);
    double most;

    (void)user, (void)call;
    for (int64_t i = 0; i < n; i++) {
        const int64_t first = i * classes;
        const double log_of_sum = log_sum(out, first, classes, &most);
        for (int64_t c = 0; c < classes; c++) {
            const double p = exp(real_at(out, first + c) - most - log_of_sum);
            set_real(gout, first + c, scale / (double)n * (p - (c == label_at(labels, i))));
        }
    }
    return err;
}

const struct dp_loss_ops *dp_loss_cross_entropy(void)
{
    static const struct dp_loss_ops ops = {entropy, entropy_backward};

    return &ops;
}
