/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/extents.h"

#include "base/fail.h"

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
