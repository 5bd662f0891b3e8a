/* SPDX-License-Identifier: Apache-2.0 */
#include "train/bfloat16.h"

#include <string.h>

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
