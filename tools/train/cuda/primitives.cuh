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
    const uint32_t bits = bits_of_float(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
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
