/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.cu - all kernels, one compilation: those of float32 alone, then the others once for each type
 * of activations. LOAD and STORE are of element i of an array of that type, load_eight and store_eight
 * (primitives.cuh) of eight.
 */
#include "primitives.cuh"

#ifndef __CUDACC__
#include <math.h>
#endif

#include "sums.cu"

#define NAME(x)        x##_f32
#define LOAD(p, i)     (((const float *)(p))[i])
#define STORE(p, i, v) (((float *)(p))[i] = (v))
#include "typed.cuh"
#undef NAME
#undef LOAD
#undef STORE

#define NAME(x)        x##_bf16
#define LOAD(p, i)     bf16_load(((const uint16_t *)(p))[i])
#define STORE(p, i, v) (((uint16_t *)(p))[i] = bf16_store(v))
#include "typed.cuh"
#include "attention_mma.cu"
