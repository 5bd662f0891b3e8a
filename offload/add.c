/* SPDX-License-Identifier: Apache-2.0
 *
 * add.c - sums of gradients. Those of 16 bits are added in float32 and rounded to the nearest.
 */
#include "offload/layout.h"

#include "optimizer/update.h"

static void add_f32(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void add_f64(double *to, const double *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static size_t block_of(size_t left)
{
    return left < DP_UPDATE_BLOCK ? left : DP_UPDATE_BLOCK;
}

static void add_16(DLDataType type, size_t count, char *to, const char *from)
{
    float a[DP_UPDATE_BLOCK], b[DP_UPDATE_BLOCK];

    for (size_t at = 0, n; at < count; at += n) {
        n = block_of(count - at);
        dp_real_load(type, n, to + 2 * at, a, false);
        dp_real_load(type, n, from + 2 * at, b, false);
        add_f32(a, b, n);
        dp_real_store(type, n, to + 2 * at, a, false);
    }
}

void dpo_add(DLDataType type, size_t count, void *to, const void *from)
{
    if (type.bits == 64)
        add_f64(to, from, count);
    else if (type.bits == 32)
        add_f32(to, from, count);
    else
        add_16(type, count, to, from);
}

void dpo_add_widened(DLDataType type, size_t count, float *to, const void *from)
{
    float x[DP_UPDATE_BLOCK];

    for (size_t at = 0, n; at < count; at += n) {
        n = block_of(count - at);
        dp_real_load(type, n, (const char *)from + at * dp_real_bytes(type), x, false);
        add_f32(to + at, x, n);
    }
}
