/* SPDX-License-Identifier: Apache-2.0
 *
 * host_grid.h - a grid of CUDA threads on the CPU: the primitives of tools/train/cuda/primitives.cuh,
 * and what runs a kernel. Blocks run one after the other; each thread of a block is a stack of its own,
 * and they take turns at barriers and sums of warps, in the calling thread.
 */
#ifndef DP_TESTS_SIMCUDA_HOST_GRID_H
#define DP_TESTS_SIMCUDA_HOST_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The thread that is running. */
struct host_thread {
    int id, count, block[3], blocks_x;
    float *memory;
};
extern _Thread_local struct host_thread host_now;

void host_block_sync(void);
float host_warp(float x, bool most); /* the sum of a warp, or its largest */

/* Run all blocks. The kernel's memory is NaN at first. */
void host_grid_run(void (*kernel)(const void *args), const void *args, const unsigned blocks[3],
                   unsigned threads, size_t memory_bytes);
/* The handle of a kernel, NULL: there is none of that name; and the kernel of a handle, NULL: it is
 * none of these. */
void *host_kernel_named(const char *name);
void (*host_kernel_of(const void *function))(const void *args);

#define DEVICE static inline
#define UNROLL
#define KERNEL(name, args) KERNEL_OF(name, args) /* the name may be a macro */
#define KERNEL_OF(name, args)                                                                      \
    static void name##_body(const struct args a);                                                  \
    static void name(const void *p)                                                                \
    {                                                                                              \
        name##_body(*(const struct args *)p);                                                      \
    }                                                                                              \
    static void name##_body(const struct args a)

static inline int thread_id(void)
{
    return host_now.id;
}

static inline int thread_count(void)
{
    return host_now.count;
}

static inline int block_x(void)
{
    return host_now.block[0];
}

static inline int block_y(void)
{
    return host_now.block[1];
}

static inline int block_z(void)
{
    return host_now.block[2];
}

static inline int blocks_x(void)
{
    return host_now.blocks_x;
}

static inline void block_sync(void)
{
    host_block_sync();
}

static inline float *block_memory(void)
{
    return host_now.memory;
}

static inline float warp_sum(float x)
{
    return host_warp(x, false);
}

static inline float warp_max(float x)
{
    return host_warp(x, true);
}

static inline float float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

#endif
