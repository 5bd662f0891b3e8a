/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_math.c - reductions. Half precision is computed in float and rounded after every
 * operation.
 */
#include "simcuda/kernel.h"

#include "base/fp16.h"

#include <string.h>

/* ncclDataType_t */
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 };
static const size_t sizes[NCCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

struct kernel_math kernel_math_of(enum nccl_device_op op, int type, uint64_t arg)
{
    if (type < 0 || type >= NCCL_TYPES || !sizes[type])
        sim_die("data of type %d is not simulated", type);
    return (struct kernel_math){op, type, sizes[type], arg};
}

/* The minimum and the maximum are one operation: of integers, flipped by the argument so that the
 * smaller wins; of floats, the last bit says which. Sums and products of integers wrap around. */
#define INTEGER(name, type, utype)                                                                 \
    static type one_##name(const struct kernel_math *math, type a, type b)                         \
    {                                                                                              \
        utype mask = (utype)math->arg;                                                             \
        switch (math->op) {                                                                        \
        case NCCL_PROD:                                                                            \
            return (type)((uint64_t)a * (uint64_t)b);                                              \
        case NCCL_MIN_MAX:                                                                         \
            return (utype)((utype)a ^ mask) < (utype)((utype)b ^ mask) ? a : b;                    \
        default:                                                                                   \
            return (type)((uint64_t)a + (uint64_t)b);                                              \
        }                                                                                          \
    }                                                                                              \
    static type before_##name(const struct kernel_math *math, type a)                              \
    {                                                                                              \
        type factor;                                                                               \
        memcpy(&factor, &math->arg, sizeof(factor));                                               \
        return (type)((uint64_t)a * (uint64_t)factor);                                             \
    }                                                                                              \
    static type after_##name(const struct kernel_math *math, type a)                               \
    {                                                                                              \
        return (type)(a / (type)(uint32_t)(math->arg >> 1));                                       \
    }
#define FLOATING(name, type, compute, load, store)                                                 \
    static type one_##name(const struct kernel_math *math, type x, type y)                         \
    {                                                                                              \
        compute a = load(x), b = load(y);                                                          \
        switch (math->op) {                                                                        \
        case NCCL_PROD:                                                                            \
            return store(a * b);                                                                   \
        case NCCL_MIN_MAX:                                                                         \
            return store((math->arg & 1) == (a < b) ? b : a);                                      \
        default:                                                                                   \
            return store(a + b);                                                                   \
        }                                                                                          \
    }                                                                                              \
    static type before_##name(const struct kernel_math *math, type x)                              \
    {                                                                                              \
        type factor;                                                                               \
        memcpy(&factor, &math->arg, sizeof(factor));                                               \
        return store(load(x) * load(factor));                                                      \
    }                                                                                              \
    static type after_##name(const struct kernel_math *math, type x)                               \
    {                                                                                              \
        (void)math;                                                                                \
        return x;                                                                                  \
    }
#define SAME(x) (x)

INTEGER(int8, int8_t, uint8_t)
INTEGER(uint8, uint8_t, uint8_t)
INTEGER(int32, int32_t, uint32_t)
INTEGER(uint32, uint32_t, uint32_t)
INTEGER(int64, int64_t, uint64_t)
INTEGER(uint64, uint64_t, uint64_t)
FLOATING(float16, uint16_t, float, dp_float16_load, dp_float16_store)
FLOATING(float32, float, float, SAME, SAME)
FLOATING(float64, double, double, SAME, SAME)
FLOATING(bfloat16, uint16_t, float, dp_bfloat16_load, dp_bfloat16_store)

/* A function of each type, to be called for every element of arrays of any alignment. */
#define EVERY_TYPE(DO)                                                                             \
    DO(INT8, int8, int8_t)                                                                         \
    DO(UINT8, uint8, uint8_t)                                                                      \
    DO(INT32, int32, int32_t)                                                                      \
    DO(UINT32, uint32, uint32_t)                                                                   \
    DO(INT64, int64, int64_t)                                                                      \
    DO(UINT64, uint64, uint64_t)                                                                   \
    DO(FLOAT16, float16, uint16_t)                                                                 \
    DO(FLOAT32, float32, float)                                                                    \
    DO(FLOAT64, float64, double)                                                                   \
    DO(BFLOAT16, bfloat16, uint16_t)

#define REDUCE(number, name, type)                                                                 \
    case number:                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            type a, b;                                                                             \
            memcpy(&a, to + i * sizeof(a), sizeof(a));                                             \
            memcpy(&b, from + i * sizeof(b), sizeof(b));                                           \
            a = one_##name(math, a, b);                                                            \
            memcpy(to + i * sizeof(a), &a, sizeof(a));                                             \
        }                                                                                          \
        break;
#define CHANGE(number, name, type)                                                                 \
    case number:                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            type a;                                                                                \
            memcpy(&a, at + i * sizeof(a), sizeof(a));                                             \
            a = CHANGE_BY(name)(math, a);                                                          \
            memcpy(at + i * sizeof(a), &a, sizeof(a));                                             \
        }                                                                                          \
        break;

void kernel_math_reduce(const struct kernel_math *math, void *sum, const void *in, size_t count)
{
    char *to = sum;
    const char *from = in;

    switch (math->type) {
        EVERY_TYPE(REDUCE)
    }
}

void kernel_math_before(const struct kernel_math *math, void *inout, size_t count)
{
    char *at = inout;

    if (math->op != NCCL_PRE_MUL_SUM)
        return;
#define CHANGE_BY(name) before_##name
    switch (math->type) {
        EVERY_TYPE(CHANGE)
    }
#undef CHANGE_BY
}

void kernel_math_after(const struct kernel_math *math, void *inout, size_t count)
{
    char *at = inout;

    if (math->op != NCCL_SUM_POST_DIV)
        return;
#define CHANGE_BY(name) after_##name
    switch (math->type) {
        EVERY_TYPE(CHANGE)
    }
#undef CHANGE_BY
}
