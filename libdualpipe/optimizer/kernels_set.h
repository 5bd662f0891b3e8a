/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_set.h - both types for one instruction set; kernels.c includes it once for each, with SET
 * (a suffix), TARGET and CONVERT defined.
 */
#define REAL float
#define SQRT(x) __builtin_sqrtf(x)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define NAME(x) PASTE(x, _float_, SET)
#include "optimizer/kernels_type.h"
#undef REAL
#undef SQRT
#undef FMA
#undef NAME

#define REAL double
#define SQRT(x) __builtin_sqrt(x)
#define FMA(a, b, c) __builtin_fma(a, b, c)
#define NAME(x) PASTE(x, _double_, SET)
#include "optimizer/kernels_type.h"
#undef REAL
#undef SQRT
#undef FMA
#undef NAME
