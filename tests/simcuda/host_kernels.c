/* SPDX-License-Identifier: Apache-2.0
 *
 * host_kernels.c - the kernels of `dualpipe train`, compiled for the CPU, by their names.
 */
#include <stdatomic.h>
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

/* What an optimizer does on a device (device/cuda_update.c). */
struct update_kernel_args {
    uint64_t x, g, a, b, count, zero, nesterov;
    double scale, decay, keep, rate, beta1, beta2, bias1, bias2, epsilon;
};
#define UPDATE(name, REAL, FMA, SQRT, ...)                                                         \
    KERNEL(name, update_kernel_args)                                                               \
    {                                                                                              \
        REAL *x = (REAL *)(uintptr_t)a.x, *grad = (REAL *)(uintptr_t)a.g;                          \
        REAL *first = (REAL *)(uintptr_t)a.a, *second = (REAL *)(uintptr_t)a.b;                    \
        const REAL decay = (REAL)a.decay, rate = (REAL)a.rate, b1 = (REAL)a.beta1, b2 = (REAL)a.beta2; \
        for (uint64_t i = first_element(); i < a.count; i += element_stride()) {                   \
            REAL g = grad[i] * (REAL)a.scale;                                                      \
            __VA_ARGS__                                                                            \
            if (a.zero)                                                                            \
                grad[i] = 0;                                                                       \
            (void)first, (void)second, (void)b1, (void)b2;                                         \
        }                                                                                          \
    }
#define UPDATES(type, REAL, FMA, SQRT)                                                             \
    UPDATE(dp_sgd_##type, REAL, FMA, SQRT, x[i] = FMA(-rate, FMA(decay, x[i], g), x[i]);)          \
    UPDATE(dp_momentum_##type, REAL, FMA, SQRT, g = FMA(decay, x[i], g);                           \
           first[i] = b1 * first[i] + g;                                                           \
           x[i] = FMA(-rate, a.nesterov ? FMA(b1, first[i], g) : first[i], x[i]);)                 \
    UPDATE(dp_adam_##type, REAL, FMA, SQRT, g += decay * x[i];                                     \
           first[i] = b1 * first[i] + (1 - b1) * g;                                                \
           second[i] = b2 * second[i] + (1 - b2) * g * g;                                          \
           x[i] = x[i] * (REAL)a.keep -                                                            \
                  rate * (first[i] / (REAL)a.bias1 /                                               \
                          (SQRT(second[i] / (REAL)a.bias2) + (REAL)a.epsilon));)
UPDATES(f32, float, fmaf, sqrtf)
UPDATES(f64, double, fma, sqrt)

struct sum_rows_args {
    uint64_t from, to, count;
};
#define SUM_ROWS(name, REAL, begin, step, row, x)                                                  \
    KERNEL(name, sum_rows_args)                                                                    \
    {                                                                                              \
        const REAL *from = (const REAL *)(uintptr_t)a.from + (row);                                \
        double sum = 0;                                                                            \
        for (uint64_t i = begin; i < a.count; i += step)                                           \
            sum += x;                                                                              \
        ((double *)(uintptr_t)a.to)[first_element()] = sum;                                        \
    }
SUM_ROWS(dp_squares_f32, float, first_element(), element_stride(), 0, (double)from[i] * (double)from[i])
SUM_ROWS(dp_squares_f64, double, first_element(), element_stride(), 0, from[i] * from[i])
SUM_ROWS(dp_sum_rows, double, (uint64_t)thread_id(), (uint64_t)thread_count(),
         (uint64_t)block_x() * a.count, from[i])

#define BOTH(name) {#name "_f32", name##_f32}, {#name "_bf16", name##_bf16}

static const struct host_kernel {
    const char *name;
    void (*run)(const void *args);
} host_kernels[] = {
    {"columns_sum", columns_sum}, {"sum", sum}, {"attention_forward_mma", attention_forward_mma},
    {"attention_dq_mma", attention_dq_mma}, {"attention_dkv_mma", attention_dkv_mma},
    {"dp_add_f32", dp_add_f32}, {"dp_add_f64", dp_add_f64}, {"dp_add_bf16", dp_add_bf16},
    {"dp_add_f16", dp_add_f16}, {"dp_add_bf16_bf16", dp_add_bf16_bf16},
    {"dp_adam_f32", dp_adam_f32}, {"dp_adam_f64", dp_adam_f64}, {"dp_sgd_f32", dp_sgd_f32},
    {"dp_sgd_f64", dp_sgd_f64}, {"dp_momentum_f32", dp_momentum_f32},
    {"dp_momentum_f64", dp_momentum_f64}, {"dp_squares_f32", dp_squares_f32},
    {"dp_squares_f64", dp_squares_f64}, {"dp_sum_rows", dp_sum_rows},
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

const char *host_kernel_first(const void *function)
{
    static atomic_flag launched[COUNT];
    const struct host_kernel *kernel = function;

    return atomic_flag_test_and_set(&launched[kernel - host_kernels]) ? NULL : kernel->name;
}

void (*host_kernel_of(const void *function))(const void *args)
{
    for (size_t i = 0; i < COUNT; i++)
        if (function == &host_kernels[i])
            return host_kernels[i].run;
    return NULL;
}
