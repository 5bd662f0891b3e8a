/* SPDX-License-Identifier: Apache-2.0
 *
 * fp16.h - float16 and bfloat16 to float and back, rounded to the nearest, ties to even.
 */
#ifndef DP_BASE_FP16_H
#define DP_BASE_FP16_H

#include <stdint.h>
#include <string.h>

static inline float dp_float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t dp_bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static inline float dp_bfloat16_load(uint16_t b)
{
    return dp_float_of_bits((uint32_t)b << 16);
}

static inline uint16_t dp_bfloat16_store(float f)
{
    uint32_t bits = dp_bits_of_float(f);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* a quiet NaN, which rounding could make infinite */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* 1 sign, 5 exponent (bias 15), 10 mantissa bits. */
static inline float dp_float16_load(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;

    if (exponent == 31)
        return dp_float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return dp_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float small = (float)mantissa * 0x1p-24f;
    return sign ? -small : small;
}

static inline uint16_t dp_float16_store(float f)
{
    uint32_t bits = dp_bits_of_float(f), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;

    if (size > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (size >= 0x477ff000) /* 65520, which already rounds up to what is too large */
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) {
        /* Below the smallest normal number: let the float unit round at the last place. */
        float magic = dp_float_of_bits(size) + 0.5f;
        return (uint16_t)(sign | (dp_bits_of_float(magic) - 0x3f000000));
    }
    return (uint16_t)(sign | (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13);
}

#endif
