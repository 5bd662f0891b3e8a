/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/optimizer.h>

#include "base/fail.h"
#include "base/tensor.h"
#include "optimizer/update.h"

#include <string.h>

/* Call visit with every block of a gradient as reals, float64 if it is and float32 otherwise. */
struct visitor {
    void (*visit)(const struct visitor *v, size_t count, void *reals, const struct dp_kernels *k);
    double *sums, factor;
    bool writes;
};

static void visit_grad(const DLTensor *grad, const struct visitor *v)
{
    const bool as_double = grad->dtype.bits == 64;
    const struct dp_kernel_set *set = dp_kernel_set_best();
    const size_t count = (size_t)dp_tensor_numel(grad), bytes = dp_real_bytes(grad->dtype);
    char *from = dp_tensor_address(grad);
    float room[DP_UPDATE_BLOCK];

    for (size_t at = 0; at < count; at += DP_UPDATE_BLOCK, from += DP_UPDATE_BLOCK * bytes) {
        size_t n = count - at < DP_UPDATE_BLOCK ? count - at : DP_UPDATE_BLOCK;
        void *reals = from;
        if (bytes == 2) {
            dp_real_load(grad->dtype, n, from, room, false);
            reals = room;
        }
        v->visit(v, n, reals, as_double ? set->float64 : set->float32);
        if (bytes == 2 && v->writes)
            dp_real_store(grad->dtype, n, from, room, false);
    }
}

static int check_on_host(const struct dp_parameter *parameters, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (!(parameters[i].flags & DP_PARAMETER_FROZEN) && !dp_tensor_on_host(parameters[i].grad))
            return dp_fail(DP_EUNSUPPORTED, "parameter '%s': its gradient lies on device %d:%d, "
                           "expected host memory", parameters[i].name,
                           (int)parameters[i].grad->device.device_type,
                           parameters[i].grad->device.device_id);
    return 0;
}

/* ---- squares --------------------------------------------------------------------------------- */

static void add_squares(const struct visitor *v, size_t count, void *reals,
                        const struct dp_kernels *k)
{
    k->squares(count, reals, v->sums);
}

static double squares_of(const DLTensor *grad)
{
    double sums[DP_LANES] = {0};

    visit_grad(grad, &(struct visitor){.visit = add_squares, .sums = sums});
    for (int half = DP_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    return sums[0];
}

int dp_gradient_squares(const struct dp_parameter *parameters, int32_t count, double *squares)
{
    int err = check_on_host(parameters, count);

    for (int32_t i = 0; i < count && !err; i++)
        squares[i] = parameters[i].flags & DP_PARAMETER_FROZEN ? 0 : squares_of(parameters[i].grad);
    return err;
}

static bool tied_before(const struct dp_parameter *parameters, int32_t index)
{
    const char *tied = parameters[index].tied;

    for (int32_t i = 0; tied && i < index; i++)
        if (parameters[i].tied && !strcmp(parameters[i].tied, tied))
            return true;
    return false;
}

double dp_gradient_sum(const struct dp_parameter *parameters, int32_t count, const bool *counted,
                       const double *squares)
{
    double sum = 0;

    for (int32_t i = 0; i < count; i++)
        if ((!counted || counted[i]) && !tied_before(parameters, i))
            sum += squares[i];
    return sum;
}

/* ---- changing gradients ---------------------------------------------------------------------- */

static void multiply(const struct visitor *v, size_t count, void *reals, const struct dp_kernels *k)
{
    k->scale(count, reals, reals, v->factor);
}

int dp_gradients_scale(const struct dp_parameter *parameters, int32_t count, double factor)
{
    const struct visitor v = {.visit = multiply, .factor = factor, .writes = true};
    int err = check_on_host(parameters, count);

    for (int32_t i = 0; i < count && !err; i++)
        if (!(parameters[i].flags & DP_PARAMETER_FROZEN))
            visit_grad(parameters[i].grad, &v);
    return err;
}

int dp_gradients_zero(const struct dp_parameter *parameters, int32_t count)
{
    int err = check_on_host(parameters, count);

    for (int32_t i = 0; i < count && !err; i++) {
        const DLTensor *grad = parameters[i].grad;
        if (!(parameters[i].flags & DP_PARAMETER_FROZEN))
            memset(dp_tensor_address(grad), 0,
                   (size_t)dp_tensor_numel(grad) * dp_real_bytes(grad->dtype));
    }
    return err;
}

