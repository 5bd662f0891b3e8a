/* SPDX-License-Identifier: Apache-2.0 */
#include "train/bfloat16.h"

#include <string.h>

/* The upper half of a float; a NaN stays one. */
static uint16_t store(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float load(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

void bfloat16_load(size_t count, const uint16_t *from, real *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (real)load(from[i]);
}

void bfloat16_add(size_t count, const real *x, uint16_t *sum)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = store(load(sum[i]) + (float)x[i]);
}
