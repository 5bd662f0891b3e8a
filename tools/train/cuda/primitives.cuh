/* SPDX-License-Identifier: Apache-2.0
 *
 * primitives.cuh - the few things that kernels ask of what runs them: which thread and block this is,
 * barriers, memory of the block, sums over a warp. nvcc makes them CUDA's; elsewhere the functions of
 * tests/simcuda/host_grid.h carry a grid out on the CPU, so that the same source is tested without a
 * GPU. Kernels are written in what C11 and CUDA C++ have in common, blocks and warps are in one
 * dimension, and a warp calls warp_sum and warp_max with all its lanes.
 */
#ifndef DP_TRAIN_CUDA_PRIMITIVES_H
#define DP_TRAIN_CUDA_PRIMITIVES_H

#include "kernels.h"

#ifdef __CUDACC__

#define DEVICE            static __device__ __forceinline__
#define KERNEL(name, args) extern "C" __global__ void name(const struct args a)
#define UNROLL            _Pragma("unroll")

extern __shared__ __align__(16) float shared_memory[];

DEVICE int thread_id(void)
{
    return (int)threadIdx.x;
}

DEVICE int thread_count(void)
{
    return (int)blockDim.x;
}

DEVICE int block_x(void)
{
    return (int)blockIdx.x;
}

DEVICE int block_y(void)
{
    return (int)blockIdx.y;
}

DEVICE int block_z(void)
{
    return (int)blockIdx.z;
}

DEVICE int blocks_x(void)
{
    return (int)gridDim.x;
}

DEVICE int blocks_y(void)
{
    return (int)gridDim.y;
}

DEVICE void block_sync(void)
{
    __syncthreads();
}

DEVICE float *block_memory(void)
{
    return shared_memory;
}

/* Every lane gets the same bits: in each step two lanes add the same two numbers. */
DEVICE float warp_sum(float x)
{
    for (int mask = 16; mask; mask /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

DEVICE float warp_max(float x)
{
    for (int mask = 16; mask; mask /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

/* Of the four lanes whose number / 4 is the same. */
DEVICE float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    return x + __shfl_xor_sync(0xffffffffu, x, 1);
}

DEVICE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
}

/* d (16 x 8 floats) += a (16 x 16) b (16 x 8), of bfloat16; attention_mma.cu has the lanes' parts. */
DEVICE void warp_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE float float_of_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}

DEVICE uint32_t bits_of_float(float x)
{
    return __float_as_uint(x);
}

#else
#include "simcuda/host_grid.h"
#endif

DEVICE float bf16_load(uint16_t x)
{
    return float_of_bits((uint32_t)x << 16);
}

/* To nearest, ties to even; a NaN stays one. */
DEVICE uint16_t bf16_store(float x)
{
#ifdef __CUDACC__
    uint16_t out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(x));
    return out;
#else
    const uint32_t bits = bits_of_float(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

/* Two in a word, the first in its lower half. */
DEVICE uint32_t bf16_pair(float low, float high)
{
#ifdef __CUDACC__
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
#else
    return (uint32_t)bf16_store(low) | (uint32_t)bf16_store(high) << 16;
#endif
}

/* 16 bytes at once, from where a multiple of 16 begins, and two elements. */
struct chunk {
    uint32_t pairs[4];
} __attribute__((aligned(16)));

/* x and, unless NULL, y begin where a chunk may. */
DEVICE bool is_aligned(const void *x, const void *y)
{
    return (((uintptr_t)x | (uintptr_t)y) & 15u) == 0;
}

DEVICE struct chunk chunk_load(const void *x)
{
#ifdef __CUDACC__
    return *(const struct chunk *)x;
#else
    struct chunk c;
    memcpy(&c, x, sizeof(c));
    return c;
#endif
}

DEVICE void chunk_store(void *x, struct chunk c)
{
#ifdef __CUDACC__
    *(struct chunk *)x = c;
#else
    memcpy(x, &c, sizeof(c));
#endif
}

DEVICE uint32_t pair_load(const uint16_t *x)
{
#ifdef __CUDACC__
    return *(const uint32_t *)x;
#else
    uint32_t pair;
    memcpy(&pair, x, sizeof(pair));
    return pair;
#endif
}

/* Eight elements from number `at` on, which must be a multiple of eight if `whole`, as chunks; else those
 * of them that are left, one by one, and zeroes. */
DEVICE void load_eight_f32(const void *x, size_t at, bool whole, int64_t left, float out[8])
{
    const float *from = (const float *)x + at;

    if (whole) {
        const struct chunk low = chunk_load(from), high = chunk_load(from + 4);
        UNROLL for (int k = 0; k < 4; k++) {
            out[k] = float_of_bits(low.pairs[k]);
            out[4 + k] = float_of_bits(high.pairs[k]);
        }
        return;
    }
    for (int k = 0; k < 8; k++)
        out[k] = k < left ? from[k] : 0.0f;
}

DEVICE void store_eight_f32(void *x, size_t at, bool whole, int64_t left, const float v[8])
{
    float *to = (float *)x + at;

    if (whole) {
        struct chunk low, high;
        UNROLL for (int k = 0; k < 4; k++) {
            low.pairs[k] = bits_of_float(v[k]);
            high.pairs[k] = bits_of_float(v[4 + k]);
        }
        chunk_store(to, low);
        chunk_store(to + 4, high);
        return;
    }
    for (int k = 0; k < 8 && k < left; k++)
        to[k] = v[k];
}

DEVICE void load_eight_bf16(const void *x, size_t at, bool whole, int64_t left, float out[8])
{
    const uint16_t *from = (const uint16_t *)x + at;

    if (whole) {
        const struct chunk c = chunk_load(from);
        UNROLL for (int k = 0; k < 8; k++)
            out[k] = bf16_load((uint16_t)(c.pairs[k / 2] >> (16 * (k % 2))));
        return;
    }
    for (int k = 0; k < 8; k++)
        out[k] = k < left ? bf16_load(from[k]) : 0.0f;
}

DEVICE void store_eight_bf16(void *x, size_t at, bool whole, int64_t left, const float v[8])
{
    uint16_t *to = (uint16_t *)x + at;

    if (whole) {
        struct chunk c;
        UNROLL for (int k = 0; k < 4; k++)
            c.pairs[k] = bf16_pair(v[2 * k], v[2 * k + 1]);
        chunk_store(to, c);
        return;
    }
    for (int k = 0; k < 8 && k < left; k++)
        to[k] = bf16_store(v[k]);
}

/* The element of a grid that is one-dimensional, and how many there are at a time. */
DEVICE uint64_t first_element(void)
{
    return (uint64_t)block_x() * (uint64_t)thread_count() + (uint64_t)thread_id();
}

DEVICE uint64_t element_stride(void)
{
    return (uint64_t)blocks_x() * (uint64_t)thread_count();
}

#endif
