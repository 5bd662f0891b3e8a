/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/combine.h"

#include "base/fp16.h"

#include <stdint.h>

/* At -O2 gcc leaves loops of unknown length as they are; clang does not. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

enum { BLOCK = 512 };

/* A piece of at most BLOCK elements, as doubles or floats: 64-bit types need the former only. */
static void load(DLDataType type, size_t count, const void *from, size_t at, float *out)
{
    if (type.bits == 32) {
        memcpy(out, (const float *)from + at, count * sizeof(*out));
        return;
    }
    const uint16_t *h = (const uint16_t *)from + at;
    for (size_t i = 0; i < count; i++)
        out[i] = type.code == kDLBfloat ? dp_bfloat16_load(h[i]) : dp_float16_load(h[i]);
}

static void store(DLDataType type, size_t count, void *to, size_t at, const float *x)
{
    if (type.bits == 32) {
        memcpy((float *)to + at, x, count * sizeof(*x));
        return;
    }
    uint16_t *h = (uint16_t *)to + at;
    for (size_t i = 0; i < count; i++)
        h[i] = type.code == kDLBfloat ? dp_bfloat16_store(x[i]) : dp_float16_store(x[i]);
}

static void combine_doubles(size_t elements, double *out, const void *const *in,
                            const double *weights, int count)
{
    double sum[BLOCK];

    for (size_t at = 0; at < elements; at += BLOCK) {
        size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        for (int k = 0; k < count; k++) {
            const double *x = (const double *)in[k] + at;
            for (size_t i = 0; i < n; i++)
                sum[i] = k ? sum[i] + weights[k] * x[i] : weights[k] * x[i];
        }
        memcpy(out + at, sum, n * sizeof(*sum));
    }
}

void dp_combine(DLDataType type, size_t elements, void *out, const void *const *in,
                const double *weights, int count)
{
    float sum[BLOCK], x[BLOCK];

    if (type.bits == 64) {
        combine_doubles(elements, out, in, weights, count);
        return;
    }
    for (size_t at = 0; at < elements; at += BLOCK) {
        size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        for (int k = 0; k < count; k++) {
            const float weight = (float)weights[k];
            load(type, n, in[k], at, x);
            for (size_t i = 0; i < n; i++)
                sum[i] = k ? sum[i] + weight * x[i] : weight * x[i];
        }
        store(type, n, out, at, sum);
    }
}

static void add_difference_of_doubles(size_t elements, double *out, double weight, const double *a,
                                      const double *b)
{
    for (size_t i = 0; i < elements; i++)
        out[i] += weight * (a[i] - b[i]);
}

void dp_add_difference(DLDataType type, size_t elements, void *out, double weight, const void *a,
                       const void *b)
{
    float x[BLOCK], y[BLOCK], sum[BLOCK];
    const float w = (float)weight;

    if (type.bits == 64) {
        add_difference_of_doubles(elements, out, weight, a, b);
        return;
    }
    for (size_t at = 0; at < elements; at += BLOCK) {
        size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        load(type, n, a, at, x);
        load(type, n, b, at, y);
        load(type, n, out, at, sum);
        for (size_t i = 0; i < n; i++)
            sum[i] += w * (x[i] - y[i]);
        store(type, n, out, at, sum);
    }
}

void dp_scale_block(DLDataType type, size_t elements, void *x, double factor)
{
    const void *in[] = {x};

    dp_combine(type, elements, x, in, &factor, 1);
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
        size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        load(type, n, a, at, x);
        load(type, n, b, at, y);
        for (size_t i = 0; i < n; i++)
            sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    }
    return sum;
}
