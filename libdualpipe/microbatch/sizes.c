/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include <dualpipe/microbatch.h>

static int check(int64_t extent, int32_t count)
{
    if (extent < 0)
        return dp_fail(DP_EINVAL, "extent: %lld, expected 0 or more", (long long)extent);
    if (count < 1)
        return dp_fail(DP_EINVAL, "number of pieces: %d, expected at least 1", count);
    return 0;
}

int dp_split_window(int64_t extent, int32_t count, int32_t piece, int64_t *begin, int64_t *size)
{
    int err = check(extent, count);
    if (err)
        return err;
    if (piece < 0 || piece >= count)
        return dp_fail(DP_EINVAL, "piece: %d, expected 0 to %d", piece, count - 1);

    int64_t each = extent / count, longer = extent % count;
    *begin = each * piece + (piece < longer ? piece : longer);
    *size = each + (piece < longer);
    return 0;
}

int dp_cut_window(enum dp_cut_rule rule, int64_t extent, int32_t count, int32_t piece,
                  int64_t *begin, int64_t *size)
{
    int64_t whole;
    int err = dp_split_window(extent, count, piece, begin, size);

    if (err || rule == DP_CUT_TENSOR_SPLIT)
        return err;
    const int64_t each = extent / count + (extent % count != 0);
    whole = each ? extent / each : count;
    *begin = piece <= whole ? each * piece : extent;
    *size = extent - *begin < each ? extent - *begin : each;
    return 0;
}

int dp_split_sizes(int64_t extent, int32_t count, int64_t *sizes)
{
    int err = check(extent, count);
    if (err)
        return err;

    for (int32_t i = 0; i < count; i++)
        sizes[i] = extent / count + (i < extent % count);
    return 0;
}

int dp_chunk_sizes(int64_t extent, int32_t count, int64_t *sizes, int32_t *made)
{
    int err = check(extent, count);
    if (err)
        return err;

    int64_t each = extent / count + (extent % count != 0);
    int32_t n = each ? (int32_t)((extent - 1) / each + 1) : count;
    for (int32_t i = 0; i < n; i++)
        sizes[i] = i < n - 1 ? each : extent - each * (n - 1);
    *made = n;
    return 0;
}
