/* SPDX-License-Identifier: Apache-2.0
 *
 * host_kernels.c - the kernels of `dualpipe train`, compiled for the CPU, by their names.
 */
#include <stdbool.h>
#include <string.h>

#include "base/fp16.h"
#include "train/cuda/kernels.cu"

/* What libdualpipe adds up with (device/cuda_sum.c), in C. */
struct sum_kernel_args {
    uint64_t to, from, count;
    double keep, take;
};
#define SUM(name, to_type, from_type, sum)                                                         \
    KERNEL(name, sum_kernel_args)                                                                  \
    {                                                                                              \
        to_type *to = (to_type *)(uintptr_t)a.to;                                                  \
        const from_type *from = (const from_type *)(uintptr_t)a.from;                              \
        for (uint64_t i = first_element(); i < a.count; i += element_stride())                     \
            to[i] = sum;                                                                           \
    }
SUM(dp_add_f32, float, float, to[i] + from[i])
SUM(dp_add_f64, double, double, to[i] + from[i])
SUM(dp_add_bf16, uint16_t, float, bf16_store(bf16_load(to[i]) + from[i]))
SUM(dp_add_f16, uint16_t, float, dp_float16_store(dp_float16_load(to[i]) + from[i]))
SUM(dp_add_bf16_bf16, uint16_t, uint16_t, bf16_store(bf16_load(to[i]) + bf16_load(from[i])))
SUM(dp_add_f16_f16, uint16_t, uint16_t,
    dp_float16_store(dp_float16_load(to[i]) + dp_float16_load(from[i])))

SUM(dp_mix_f32, float, float, fmaf((float)a.take, from[i], (float)a.keep * to[i]))
SUM(dp_mix_f64, double, double, fma(a.take, from[i], a.keep * to[i]))

#define BOTH(name) {#name "_f32", name##_f32}, {#name "_bf16", name##_bf16}

static const struct host_kernel {
    const char *name;
    void (*run)(const void *args);
} host_kernels[] = {
    {"adamw", adamw}, {"adamw_set", adamw_set}, {"squares", squares}, {"squares_sum", squares_sum}, {"columns_sum", columns_sum}, {"sum", sum},
    {"to_bf16", to_bf16}, {"attention_forward_mma", attention_forward_mma},
    {"attention_dq_mma", attention_dq_mma}, {"attention_dkv_mma", attention_dkv_mma},
    {"dp_add_f32", dp_add_f32}, {"dp_add_f64", dp_add_f64}, {"dp_add_bf16", dp_add_bf16},
    {"dp_add_f16", dp_add_f16}, {"dp_add_bf16_bf16", dp_add_bf16_bf16},
    {"dp_add_f16_f16", dp_add_f16_f16}, {"dp_mix_f32", dp_mix_f32}, {"dp_mix_f64", dp_mix_f64},
    BOTH(add), BOTH(attention_delta), BOTH(attention_dkv), BOTH(attention_dq),
    BOTH(attention_forward), BOTH(columns), BOTH(copy), BOTH(dropout), BOTH(embed_forward),
    BOTH(embed_positions), BOTH(embed_table), BOTH(entropy_backward), BOTH(entropy_forward),
    BOTH(gelu_backward), BOTH(gelu_forward), BOTH(norm_backward), BOTH(norm_forward), BOTH(product),
    BOTH(zero),
};
enum { COUNT = sizeof(host_kernels) / sizeof(host_kernels[0]) };

void *host_kernel_named(const char *name)
{
    for (size_t i = 0; i < COUNT; i++)
        if (!strcmp(host_kernels[i].name, name))
            return (void *)(uintptr_t)&host_kernels[i];
    return NULL;
}

void (*host_kernel_of(const void *function))(const void *args)
{
    for (size_t i = 0; i < COUNT; i++)
        if (function == &host_kernels[i])
            return host_kernels[i].run;
    return NULL;
}
