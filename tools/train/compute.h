/* SPDX-License-Identifier: Apache-2.0
 *
 * compute.h - what computes the model: a table of the operations of ops.h, with a filling for the CPU
 * (compute_cpu.c) and one for CUDA (cuda/). Activations are `size` bytes each: reals, or on CUDA also
 * bfloat16. Parameters, their gradients and the statistics of norms are reals everywhere.
 *
 * On CUDA an operation is queued in `stream`, and nothing waits for it. The first failure is kept,
 * and what follows it is left out; compute_error hands it to the callback's caller.
 */
#ifndef DP_TRAIN_COMPUTE_H
#define DP_TRAIN_COMPUTE_H

#include "train/ops.h"

#include <dlpack/dlpack.h>
#include <stdbool.h>

struct compute;

/* Of a callback; no padding: keys are compared as bytes. */
struct compute_key {
    const void *of, *in, *out, *gout, *gin, *save, *grads; /* of: not NULL */
    uint64_t kind;
    const void *values; /* of parameters that pass the device: in which window */
};

/* Arguments are as those of the functions of the same name in ops.h. Activations and their gradients
 * are void, parameters and their gradients real. */
struct compute_ops {
    void (*linear_forward)(const struct compute *c, int n, int in, int out, const void *x,
                           const real *w, const real *b, void *y);
    void (*linear_backward)(const struct compute *c, int n, int in, int out, const void *dy,
                            const real *w, void *dx);
    void (*linear_weight)(const struct compute *c, int n, int in, int out, const void *x,
                          const void *dy, real *dw, real *db);
    /* The same with w[out][in], the table of an embedding. */
    void (*table_forward)(const struct compute *c, int n, int in, int out, const void *x,
                          const real *w, const real *b, void *y);
    void (*table_backward)(const struct compute *c, int n, int in, int out, const void *dy,
                           const real *w, void *dx);
    void (*table_weight)(const struct compute *c, int n, int in, int out, const void *x,
                         const void *dy, real *dw, real *db);
    void (*norm_forward)(const struct compute *c, int n, int width, const void *x, const real *gain,
                         const real *bias, void *y, void *xhat, real *rstd);
    void (*norm_backward)(const struct compute *c, int n, int width, const void *dy,
                          const real *gain, const void *xhat, const real *rstd, void *dx);
    void (*norm_weight)(const struct compute *c, int n, int width, const void *dy, const void *xhat,
                        real *dgain, real *dbias);
    /* Bytes that attention_forward keeps for the backward (the probabilities, or only their
     * normalisation), and of the scratch of a backward. */
    size_t (*attention_kept)(const struct attention *a);
    size_t (*attention_scratch)(const struct attention *a);
    void (*attention_forward)(const struct compute *c, const struct attention *a, const void *qkv,
                              void *kept, void *y);
    /* y: what the forward wrote. */
    void (*attention_backward)(const struct compute *c, const struct attention *a, const void *qkv,
                               const void *kept, const void *y, const void *dy, void *dqkv,
                               void *scratch);
    void (*gelu_forward)(const struct compute *c, size_t count, void *x, void *y);
    void (*gelu_backward)(const struct compute *c, size_t count, const void *slope, void *d);
    void (*dropout)(const struct compute *c, struct dp_random_key key, float rate, size_t count,
                    void *x);
    void (*embed_forward)(const struct compute *c, int n, int context, int width,
                          const uint8_t *tokens, const real *table, const real *positions, void *y);
    void (*embed_weight)(const struct compute *c, int n, int context, int width,
                         const uint8_t *tokens, const void *dy, real *dtable, real *dpositions);
    /* value is in the memory that c computes in. */
    void (*entropy_forward)(const struct compute *c, int n, int classes, const void *logits,
                            const uint8_t *labels, double *value);
    void (*entropy_backward)(const struct compute *c, int n, int classes, const void *logits,
                             const uint8_t *labels, double scale, void *dlogits);
    void (*add)(const struct compute *c, size_t count, const void *y, void *x);
    void (*copy)(const struct compute *c, size_t count, const void *from, void *to);
    void (*zero)(const struct compute *c, size_t count, void *x);
    /* The first failure since the last call. */
    int (*error)(const struct compute *c);
    /* queue(arg), or what it queued when it was called with the same key before, which says where all
     * is that the work follows from, if nothing else differs (is_static). */
    int (*carry_out)(const struct compute *c, const struct compute_key *key, bool is_static,
                     int (*queue)(void *arg), void *arg);
};

struct compute {
    const struct compute_ops *ops;
    size_t size, align; /* bytes of an activation; that the parts of a save area begin at */
    void *stream;       /* of the callback that computes */
    void *device;       /* the filling's own; NULL: the CPU */
    DLDevice dl;        /* where its memory is */
    const DLTensor *values, *rounded; /* [tensors] parameters, and what products read of them instead; */
    int tensors;                      /* 0: nothing */
};

extern const struct compute compute_cpu;

/* Memory that is cut into parts: each *at becomes where its part begins, one after the other from
 * base on. Returns their bytes; base may be NULL, to learn that only. */
struct part {
    real **at;
    size_t count;
    enum { PART_ACTIVATIONS, PART_REALS, PART_BYTES } unit;
};
size_t parts_place(const struct compute *c, const struct part *parts, size_t len, void *base);
/* The same on the CPU, counted in reals. */
size_t parts_lay_out(const struct part *parts, size_t len, real *base);

#endif
