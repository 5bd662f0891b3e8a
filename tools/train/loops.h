/* SPDX-License-Identifier: Apache-2.0
 *
 * loops.h - loops over the elements of a row, for the widest vectors that this machine has. Machines
 * whose vectors differ in width add up in another order, so their losses differ in the last bits, as
 * those of OpenBLAS do.
 */
#ifndef DP_TRAIN_LOOPS_H
#define DP_TRAIN_LOOPS_H

#include "train/ops.h"

/* Arrays do not overlap, but for exp_row's. */
struct loops {
    void (*add)(size_t count, const real *y, real *x);      /* x += y */
    void (*multiply)(size_t count, const real *y, real *x); /* x *= y */
    void (*scale)(size_t count, real factor, real *x);
    void (*norm_forward)(size_t width, const real *x, const real *gain, const real *bias, real *y,
                         real *xhat, real *rstd);
    void (*norm_backward)(size_t width, const real *dy, const real *gain, const real *xhat,
                          real rstd, real *dx);
    void (*norm_weight)(size_t width, const real *dy, const real *xhat, real *dgain, real *dbias);
    /* x = exp(from - most), most being the largest of from; returns their sum. x may be from. */
    real (*exp_row)(size_t count, real *x, const real *from, real *most);
    void (*softmax_backward)(size_t count, const real *p, real *d);
    void (*gelu_forward)(size_t count, real *x, real *y);
};

const struct loops *loops_best(void);

#endif
