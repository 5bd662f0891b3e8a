/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - the predefined reducers: sum, mean, weighted mean.
 */
#include "microbatch/reduce.h"

#include "base/fp16.h"
#include "microbatch/tensor.h"
#include "microbatch/walk.h"

#include "base/fail.h"

#include <math.h>

/* ---- kernels: a row of `n` elements of `parts` numbers each --------------------------------- */

/* acc = (acc + weight * value) / divisor; integers know no other weight and divisor than 1. */
struct factors {
    double weight, divisor;
};
typedef void (*kernel_fn)(char *acc, int64_t acc_step, const char *value, int64_t value_step,
                          int64_t n, int parts, struct factors f);

/* (name, type in memory, type of arithmetic, load, store, result). Signed integers are added as
 * unsigned ones, which gives the same bits and wraps. */
#define KERNELS(K)                                                                                 \
    K(u8, uint8_t, uint32_t, (uint32_t), (uint8_t), a + v)                                         \
    K(u16, uint16_t, uint32_t, (uint32_t), (uint16_t), a + v)                                      \
    K(u32, uint32_t, uint32_t, (uint32_t), (uint32_t), a + v)                                      \
    K(u64, uint64_t, uint64_t, (uint64_t), (uint64_t), a + v)                                      \
    K(f16, uint16_t, double, dp_float16_load, dp_float16_store, (float)AVERAGE)                    \
    K(bf16, uint16_t, double, dp_bfloat16_load, dp_bfloat16_store, (float)AVERAGE)                 \
    K(f32, float, double, (double), (float), AVERAGE)                                              \
    K(f64, double, double, (double), (double), AVERAGE)
#define AVERAGE ((a + f.weight * v) / f.divisor)

#define KERNEL(name, memory, arithmetic, load, store, result)                                      \
    static void add_##name(char *acc, int64_t acc_step, const char *value, int64_t value_step,     \
                           int64_t n, int parts, struct factors f)                                 \
    {                                                                                              \
        (void)f;                                                                                   \
        for (int64_t i = 0; i < n; i++, acc += acc_step, value += value_step)                      \
            for (size_t p = 0; p < (size_t)parts; p++) {                                           \
                memory to, from;                                                                   \
                memcpy(&to, acc + p * sizeof(to), sizeof(to));                                     \
                memcpy(&from, value + p * sizeof(from), sizeof(from));                             \
                arithmetic a = load(to), v = load(from);                                           \
                to = store(result);                                                                \
                memcpy(acc + p * sizeof(to), &to, sizeof(to));                                     \
            }                                                                                      \
    }
KERNELS(KERNEL)

/* NULL: cannot be added. *parts: numbers in an element. */
static kernel_fn find_kernel(DLDataType type, bool weighted, int *parts)
{
    int bits = type.bits;
    bool brain = type.code == kDLBfloat;

    *parts = type.lanes;
    switch (type.code) {
    case kDLInt:
    case kDLUInt:
        if (weighted)
            return NULL;
        return bits == 8 ? add_u8 : bits == 16 ? add_u16 : bits == 32 ? add_u32
             : bits == 64 ? add_u64 : NULL;
    case kDLComplex:
        *parts *= 2;
        bits /= 2;
        /* fall through */
    case kDLFloat:
    case kDLBfloat:
        if (bits == 16)
            return brain ? add_bf16 : add_f16;
        return brain ? NULL : bits == 32 ? add_f32 : bits == 64 ? add_f64 : NULL;
    default:
        return NULL;
    }
}

static int add(const struct dp_tree *acc, const struct dp_tree *value, bool weighted,
               struct factors f)
{
    struct dp_walk w;
    int parts;

    if (acc->kind != DP_TREE_TENSOR || value->kind != DP_TREE_TENSOR)
        return DP_EUNSUPPORTED;
    if (!dp_tensor_same_dtype(acc->tensor, value->tensor) ||
        !dp_tensor_same_shape(acc->tensor, value->tensor))
        return DP_EMISMATCH;
    kernel_fn kernel = find_kernel(acc->tensor->dtype, weighted, &parts);
    if (!kernel || !dp_tensor_on_host(value->tensor))
        return DP_EUNSUPPORTED;
    for (bool more = dp_walk_begin(&w, acc->tensor, value->tensor); more; more = dp_walk_next(&w))
        for (int64_t r = 0; r < w.rows; r++)
            kernel(w.a + r * w.a_row, w.a_column, w.b + r * w.b_row, w.b_column, w.columns, parts,
                   f);
    return 0;
}

/* ---- reducers ------------------------------------------------------------------------------- */

static int fold_sum(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                    int32_t count)
{
    (void)user, (void)mb, (void)count;
    return add(acc, value, false, (struct factors){1, 1});
}

/* The division is part of the last addition, so that nothing is rounded in between. */
static int fold_mean(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                     int32_t count)
{
    (void)user;
    return add(acc, value, true, (struct factors){1, mb == count - 1 ? count : 1});
}

static double total(const struct dp_weights *w)
{
    double sum = 0;

    for (int32_t i = 0; i < w->count; i++)
        sum += w->weights[i];
    return sum;
}

static int fold_weighted(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                         int32_t count)
{
    const struct dp_weights *w = user;
    return add(acc, value, true, (struct factors){w->weights[mb], mb == count - 1 ? total(w) : 1});
}

int dp_reducer_check(const struct dp_reducer *r, int32_t count)
{
    const struct dp_weights *w = r->user;

    if (r->fold != fold_weighted)
        return 0;
    if (!w || !w->weights || w->count != count)
        return dp_fail(DP_EINVAL, "weighted mean: %d weights for %d micro-batches",
                       w && w->weights ? w->count : 0, count);
    if (!isfinite(total(w)) || total(w) == 0)
        return dp_fail(DP_EINVAL, "weighted mean: the weights sum up to %g, expected a finite "
                       "number other than 0", total(w));
    return 0;
}

const struct dp_reducer *dp_reducer_sum(void)
{
    static const struct dp_reducer sum = {.name = "sum", .fold = fold_sum};
    return &sum;
}

const struct dp_reducer *dp_reducer_mean(void)
{
    static const struct dp_reducer mean = {.name = "mean", .fold = fold_mean};
    return &mean;
}

struct dp_reducer dp_reducer_weighted_mean(const struct dp_weights *weights)
{
    return (struct dp_reducer){
        .name = "weighted mean", .fold = fold_weighted, .user = (void *)(uintptr_t)weights};
}
