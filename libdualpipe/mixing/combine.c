/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/combine.h"

#include "base/fp16.h"

#include <stdint.h>

/* At -O2 gcc leaves loops of unknown length as they are; clang does not. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

enum { BLOCK = 512 };

/* A piece of at most BLOCK elements as floats, where it lies or in `room`; not of 64-bit types. */
static const float *load(DLDataType type, size_t count, const void *from, size_t at, float *room)
{
    if (type.bits == 32)
        return (const float *)from + at;
    const uint16_t *h = (const uint16_t *)from + at;
    for (size_t i = 0; i < count; i++)
        room[i] = type.code == kDLBfloat ? dp_bfloat16_load(h[i]) : dp_float16_load(h[i]);
    return room;
}

static void store(DLDataType type, size_t count, uint16_t *to, const float *x)
{
    for (size_t i = 0; i < count; i++)
        to[i] = type.code == kDLBfloat ? dp_bfloat16_store(x[i]) : dp_float16_store(x[i]);
}

/* out may be a or b. */
#define KERNELS(reals, real)                                                                       \
    static void combine_##reals(size_t count, real *out, const real *a, real u, const real *b,     \
                                real v)                                                            \
    {                                                                                              \
        if (!b)                                                                                    \
            for (size_t i = 0; i < count; i++)                                                     \
                out[i] = u * a[i];                                                                 \
        else                                                                                       \
            for (size_t i = 0; i < count; i++)                                                     \
                out[i] = u * a[i] + v * b[i];                                                      \
    }                                                                                              \
    static void add_difference_of_##reals(size_t elements, real *out, real weight, const real *a,  \
                                          const real *b)                                           \
    {                                                                                              \
        for (size_t i = 0; i < elements; i++)                                                      \
            out[i] += weight * (a[i] - b[i]);                                                      \
    }
KERNELS(floats, float)
KERNELS(doubles, double)

void dp_combine(DLDataType type, size_t elements, void *out, const void *a, double u, const void *b,
                double v)
{
    float x[BLOCK], y[BLOCK];

    if (type.bits == 64)
        combine_doubles(elements, out, a, u, b, v);
    else if (type.bits == 32)
        combine_floats(elements, out, a, (float)u, b, (float)v);
    for (size_t at = 0; type.bits == 16 && at < elements; at += BLOCK) {
        const size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        const float *second = b ? load(type, n, b, at, y) : NULL;
        combine_floats(n, x, load(type, n, a, at, x), (float)u, second, (float)v);
        store(type, n, (uint16_t *)out + at, x);
    }
}

void dp_add_difference(DLDataType type, size_t elements, void *out, double weight, const void *a,
                       const void *b)
{
    float x[BLOCK], y[BLOCK], sum[BLOCK];

    if (type.bits == 64)
        add_difference_of_doubles(elements, out, weight, a, b);
    else if (type.bits == 32)
        add_difference_of_floats(elements, out, (float)weight, a, b);
    for (size_t at = 0; type.bits == 16 && at < elements; at += BLOCK) {
        const size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        load(type, n, out, at, sum);
        add_difference_of_floats(n, sum, (float)weight, load(type, n, a, at, x),
                                 load(type, n, b, at, y));
        store(type, n, (uint16_t *)out + at, sum);
    }
}

static double squared_distance_of_doubles(size_t elements, const double *a, const double *b)
{
    double sum = 0;

    for (size_t i = 0; i < elements; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

double dp_squared_distance(DLDataType type, size_t elements, const void *a, const void *b)
{
    float x[BLOCK], y[BLOCK];
    double sum = 0;

    if (type.bits == 64)
        return squared_distance_of_doubles(elements, a, b);
    for (size_t at = 0; at < elements; at += BLOCK) {
        const size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        const float *p = load(type, n, a, at, x), *q = load(type, n, b, at, y);
        for (size_t i = 0; i < n; i++)
            sum += ((double)p[i] - (double)q[i]) * ((double)p[i] - (double)q[i]);
    }
    return sum;
}
