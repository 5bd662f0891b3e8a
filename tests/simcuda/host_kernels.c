/* SPDX-License-Identifier: Apache-2.0
 *
 * host_kernels.c - the kernels of `dualpipe train`, compiled for the CPU, by their names.
 */
#include <stdbool.h>
#include <string.h>

#include "train/cuda/kernels.cu"

#define BOTH(name) {#name "_f32", name##_f32}, {#name "_bf16", name##_bf16}

static const struct host_kernel {
    const char *name;
    void (*run)(const void *args);
} host_kernels[] = {
    {"adamw", adamw}, {"squares", squares}, {"squares_sum", squares_sum}, {"sum", sum},
    {"to_bf16", to_bf16},
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
