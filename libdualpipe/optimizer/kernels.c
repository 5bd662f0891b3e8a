/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops are written once, in kernels_type.h, and compiled for each instruction set. This file is
 * compiled with -ffp-contract=off (as all are): a compiler that may fuse a * b + c rounds once where
 * the set has such an instruction and twice where not, and machines would disagree. Where the product
 * is to stay unrounded, FMA says so; sets without the instruction call libm's, which is slow but the
 * same. -fno-math-errno, -fno-trapping-math and -fopenmp-simd let the loops become vector
 * instructions; none of them changes a result.
 */
#include "optimizer/kernels.h"

#include "base/fp16.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PASTE_(a, b, c) a##b##c
#define PASTE(a, b, c) PASTE_(a, b, c)

#define CONVERT 0
#define SET plain
#define TARGET
#include "optimizer/kernels_set.h"
#undef CONVERT
#undef SET
#undef TARGET

#if defined(__x86_64__)
#define CONVERT 1
#define SET avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#include "optimizer/kernels_set.h"
#undef SET
#undef TARGET

#define SET avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#include "optimizer/kernels_set.h"
#undef CONVERT
#undef SET
#undef TARGET
#endif

static bool has_plain(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); /* f16c is older */
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* Each set has all instructions of the ones before it. */
static const struct {
    bool (*has)(void);
    struct dp_kernel_set set;
} sets[] = {
#define SET_OF(name) {has_##name, {#name, &kernels_float_##name, &kernels_double_##name}}
    SET_OF(plain),
#if defined(__x86_64__)
    SET_OF(avx2),
    SET_OF(avx512),
#endif
};

const struct dp_kernel_set *dp_kernel_set_at(int index)
{
    const int count = (int)(sizeof(sets) / sizeof(sets[0]));

    return index < count && sets[index].has() ? &sets[index].set : NULL;
}

const struct dp_kernel_set *dp_kernel_set_best(void)
{
    int best = 0;

    while (dp_kernel_set_at(best + 1))
        best++;
    return dp_kernel_set_at(best);
}
