/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - element-wise sum, minimum and maximum. 16-bit values are widened to float32, reduced
 * as such and rounded once, at the end; the others are reduced as they are.
 */
#include "comm/engine.h"

#include "base/fp16.h"

/* At -O2 gcc leaves loops of unknown length as they are; clang does not. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define SUM(a, b) ((a) + (b))
/* A NaN wins. */
#define MIN(a, b) ((b) < (a) || (b) != (b) ? (b) : (a))
#define MAX(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* Sums of int64 wrap around, as unsigned ones do. */
#define SUM_INT(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))

#define PLAIN_COPY(NAME, TYPE)                                                                     \
    static void copy_##NAME(void *out, const void *from, size_t count)                             \
    {                                                                                              \
        memcpy(out, from, count * sizeof(TYPE));                                                   \
    }

#define PLAIN_OP(NAME, TYPE, OP, CALC)                                                             \
    static void combine_##NAME##_##OP(void *out, const void *a, const void *b, size_t count)       \
    {                                                                                              \
        TYPE *o = out;                                                                             \
        const TYPE *x = a, *y = b;                                                                 \
        for (size_t i = 0; i < count; i++)                                                         \
            o[i] = CALC(x[i], y[i]);                                                               \
    }                                                                                              \
    static void add_##NAME##_##OP(void *wide, const void *from, size_t count)                      \
    {                                                                                              \
        combine_##NAME##_##OP(wide, wide, from, count);                                            \
    }

#define NARROW_COPY(NAME, LOAD, STORE)                                                             \
    static void widen_##NAME(void *wide, const void *from, size_t count)                           \
    {                                                                                              \
        float *w = wide;                                                                           \
        const uint16_t *x = from;                                                                  \
        for (size_t i = 0; i < count; i++)                                                         \
            w[i] = LOAD(x[i]);                                                                     \
    }                                                                                              \
    static void round_##NAME(void *out, const void *wide, size_t count)                            \
    {                                                                                              \
        uint16_t *o = out;                                                                         \
        const float *w = wide;                                                                     \
        for (size_t i = 0; i < count; i++)                                                         \
            o[i] = STORE(w[i]);                                                                    \
    }

#define NARROW_OP(NAME, LOAD, OP, CALC)                                                            \
    static void add_##NAME##_##OP(void *wide, const void *from, size_t count)                      \
    {                                                                                              \
        float *w = wide;                                                                           \
        const uint16_t *x = from;                                                                  \
        for (size_t i = 0; i < count; i++)                                                         \
            w[i] = CALC(w[i], LOAD(x[i]));                                                         \
    }

PLAIN_COPY(f32, float)
PLAIN_OP(f32, float, sum, SUM)
PLAIN_OP(f32, float, min, MIN)
PLAIN_OP(f32, float, max, MAX)
PLAIN_COPY(f64, double)
PLAIN_OP(f64, double, sum, SUM)
PLAIN_OP(f64, double, min, MIN)
PLAIN_OP(f64, double, max, MAX)
PLAIN_COPY(i64, int64_t)
PLAIN_OP(i64, int64_t, sum, SUM_INT)
PLAIN_OP(i64, int64_t, min, MIN)
PLAIN_OP(i64, int64_t, max, MAX)
NARROW_COPY(bf16, dp_bfloat16_load, dp_bfloat16_store)
NARROW_OP(bf16, dp_bfloat16_load, sum, SUM)
NARROW_OP(bf16, dp_bfloat16_load, min, MIN)
NARROW_OP(bf16, dp_bfloat16_load, max, MAX)
NARROW_COPY(f16, dp_float16_load, dp_float16_store)
NARROW_OP(f16, dp_float16_load, sum, SUM)
NARROW_OP(f16, dp_float16_load, min, MIN)
NARROW_OP(f16, dp_float16_load, max, MAX)

#define PLAIN(NAME, TYPE, OP)                                                                      \
    {                                                                                              \
        sizeof(TYPE), sizeof(TYPE), copy_##NAME, add_##NAME##_##OP, combine_##NAME##_##OP,         \
            copy_##NAME                                                                            \
    }
#define NARROW(NAME, OP)                                                                           \
    {                                                                                              \
        sizeof(uint16_t), sizeof(float), widen_##NAME, add_##NAME##_##OP, combine_f32_##OP,        \
            round_##NAME                                                                           \
    }
#define PLAIN_ROW(NAME, TYPE)                                                                      \
    {                                                                                              \
        PLAIN(NAME, TYPE, sum), PLAIN(NAME, TYPE, min), PLAIN(NAME, TYPE, max)                     \
    }
#define NARROW_ROW(NAME)                                                                           \
    {                                                                                              \
        NARROW(NAME, sum), NARROW(NAME, min), NARROW(NAME, max)                                    \
    }

/* By DP_REDUCE_*. */
static const struct {
    uint8_t code, bits;
    struct dp_reducer by_op[3];
} rows[] = {
    {kDLFloat, 32, PLAIN_ROW(f32, float)}, {kDLFloat, 64, PLAIN_ROW(f64, double)},
    {kDLInt, 64, PLAIN_ROW(i64, int64_t)}, {kDLBfloat, 16, NARROW_ROW(bf16)},
    {kDLFloat, 16, NARROW_ROW(f16)},
};

const struct dp_reducer *dp_reducer_find(DLDataType type, enum dp_reduction op)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].code == type.code && rows[i].bits == type.bits && type.lanes == 1 &&
            op >= DP_REDUCE_SUM && op <= DP_REDUCE_MAX)
            return &rows[i].by_op[op];
    return NULL;
}
