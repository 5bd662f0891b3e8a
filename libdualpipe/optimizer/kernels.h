/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h - loops over elements, for each type that is computed in and each instruction set. All
 * sets give the same bits, NaNs aside: every operation is rounded by itself, a fused multiply-add is
 * used only where it is written, and sums have a fixed number of partial sums.
 */
#ifndef DP_OPTIMIZER_KERNELS_H
#define DP_OPTIMIZER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DP_STATES = 3, DP_LANES = 16 };

/* The numbers of one step, the same for all elements of a parameter. optimizer.h has the formulas. */
struct dp_numbers {
    double scale, decay, keep;      /* decay: what is added of x to g; keep: what is left of x */
    double rate;                    /* SGD, Adam */
    double momentum;
    bool nesterov;
    double beta1, beta2, epsilon;
    double bias1, bias2;            /* Adam: 1 - beta^t; accumulating: bias2 is its square root */
    double step;                    /* accumulating: rate / bias1 */
    double share;                   /* accumulating: 1 / K */
    bool fold;                      /* accumulating: K divides t */
};

typedef void dp_update_fn(const struct dp_numbers *n, size_t count, void *x, const void *g,
                          void *const *state);

/* For one type T, float or double. x and the arrays of state do not overlap. */
struct dp_kernels {
    dp_update_fn *sgd, *sgd_momentum, *adam, *accum;
    /* Accumulating, after accum of a step that K divides. */
    void (*fold)(const struct dp_numbers *n, size_t count, void *const *state);
    /* x = keep x + take c */
    void (*mix)(size_t count, void *x, const void *c, double keep, double take);
    /* out = factor x */
    void (*scale)(size_t count, void *out, const void *x, double factor);
    /* Add squares to sums[DP_LANES]: element i to sums[i % DP_LANES]. */
    void (*squares)(size_t count, const void *x, double *sums);
    /* 16-bit types to T and back. */
    void (*load_bfloat16)(size_t count, void *x, const uint16_t *h);
    void (*load_float16)(size_t count, void *x, const uint16_t *h);
    void (*store_bfloat16)(size_t count, uint16_t *h, const void *x);
    void (*store_float16)(size_t count, uint16_t *h, const void *x);
};

/* The types of one instruction set. */
struct dp_kernel_set {
    const char *name;
    const struct dp_kernels *float32, *float64;
};

/* The widest set of this machine. */
const struct dp_kernel_set *dp_kernel_set_best(void);
/* For tests: every set that this machine has, from 0, the plain one; NULL behind the last. */
const struct dp_kernel_set *dp_kernel_set_at(int index);

#endif
