/* SPDX-License-Identifier: Apache-2.0
 *
 * host_grid.h - a grid of CUDA threads on the CPU: the primitives of tools/train/cuda/primitives.cuh,
 * and what runs a kernel. Blocks run one after the other; each thread of a block is a stack of its own,
 * and they take turns at barriers and sums of warps, in the calling thread.
 */
#ifndef DP_TESTS_SIMCUDA_HOST_GRID_H
#define DP_TESTS_SIMCUDA_HOST_GRID_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The thread that is running. */
struct host_thread {
    int id, count, block[3], blocks[2];
    float *memory;
};
extern _Thread_local struct host_thread host_now;

void host_block_sync(void);
float host_warp(float x, bool most); /* the sum of a warp, or its largest */
/* What each lane of the warp gives, once all are here; it stays until the lane calls again. */
enum { HOST_WORDS = 6 };
typedef const uint32_t (*host_lanes)[HOST_WORDS];
host_lanes host_exchange(const uint32_t mine[HOST_WORDS]);

/* Run all blocks. The kernel's memory is NaN at first. */
void host_grid_run(void (*kernel)(const void *args), const void *args, const unsigned blocks[3],
                   unsigned threads, size_t memory_bytes);
/* The handle of a kernel, NULL: there is none of that name; and the kernel of a handle, NULL: it is
 * none of these. */
void *host_kernel_named(const char *name);
void (*host_kernel_of(const void *function))(const void *args);
/* Its name when this process asks for the first time, then NULL. */
const char *host_kernel_first(const void *function);

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
    return host_now.blocks[0];
}

static inline int blocks_y(void)
{
    return host_now.blocks[1];
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

static inline float bf16_of_half(uint32_t pair, int half)
{
    const uint32_t bits = (half ? pair >> 16 : pair & 0xffffu) << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float host_quad(float x, bool most)
{
    uint32_t mine[HOST_WORDS] = {0};
    float v[4];

    memcpy(mine, &x, sizeof(x));
    host_lanes all = host_exchange(mine);
    for (int i = 0; i < 4; i++)
        memcpy(&v[i], all[host_now.id % 32 / 4 * 4 + (host_now.id % 4 ^ i)], sizeof(x));
    return most ? fmaxf(fmaxf(v[0], v[2]), fmaxf(v[1], v[3])) : (v[0] + v[2]) + (v[1] + v[3]);
}

static inline float quad_sum(float x)
{
    return host_quad(x, false);
}

static inline float quad_max(float x)
{
    return host_quad(x, true);
}

static inline void warp_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    const host_lanes all = host_exchange((uint32_t[]){a[0], a[1], a[2], a[3], b[0], b[1]});
    const int g = host_now.id % 32 / 4, t = host_now.id % 4;

    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            const int of = k % 8 / 2, upper = k / 8; /* the lane of a quad that has k, and which word */
            const uint32_t *left = all[g * 4 + of], *right = all[(2 * t + i % 2) * 4 + of];
            d[i] += bf16_of_half(left[2 * upper + i / 2], k % 2) * bf16_of_half(right[4 + upper], k % 2);
        }
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
