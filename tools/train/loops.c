/* SPDX-License-Identifier: Apache-2.0 */
#include "train/loops.h"

#include <tgmath.h>

#ifdef __clang__ /* which says so where it finds no vector instructions for a loop, as with double */
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

static const real norm_epsilon = (real)1e-5;

#define TARGET
#define NAME(x) x##_plain
#include "train/loops_set.h"
#undef TARGET
#undef NAME

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#include "train/loops_set.h"
#undef TARGET
#undef NAME

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define NAME(x) x##_avx512
#include "train/loops_set.h"
#undef TARGET
#undef NAME
#endif

const struct loops *loops_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &loops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &loops_avx2;
#endif
    return &loops_plain;
}
