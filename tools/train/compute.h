/* SPDX-License-Identifier: Apache-2.0
 *
 * compute.h - what computes the model: a table of operations on row-major matrices, with a filling for
 * the CPU (ops.c) and one for CUDA (cuda/compute_cuda.c). Most are in threes:
 *
 *      X_forward   y from x
 *      X_backward  dx from dy: the gradient with respect to the input, and nothing else
 *      X_weight    adds to dw what this micro-batch contributes to the gradient of the weights
 *
 * That the last two are apart is what a pipeline lives on: dx is what the rank before waits for, dw can
 * come whenever there is time.
 *
 * Activations and their gradients, void here, are `size` bytes each: reals, or on CUDA also bfloat16.
 * Parameters, their gradients and the statistics of norms are reals everywhere: floats, but for the test
 * that compares with finite differences. n is a number of rows: tokens, sequence after sequence.
 *
 * On CUDA an operation is queued in `stream`, and nothing waits for it. The first failure is kept,
 * and what follows it is left out; compute_error hands it to the callback's caller.
 */
#ifndef DP_TRAIN_COMPUTE_H
#define DP_TRAIN_COMPUTE_H

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dualpipe/random.h>

#ifdef GPT_DOUBLE
typedef double real;
#else
typedef float real;
#endif

/* OpenBLAS on one thread, with kernels for this processor. It is loaded where it is used only: it makes
 * threads and buffers as it is loaded, for which other commands have no use. The first call of a process
 * loads it. false: it cannot be loaded, and *why says why. */
bool blas_begin(const char **why);

/* Causal self-attention: position i of a sequence sees positions 0 .. i. */
struct attention {
    int sequences, context, heads, width; /* width = heads * width of a head */
};

struct compute;

/* Of a callback; no padding: keys are compared as bytes. */
struct compute_key {
    const void *of, *in, *out, *gout, *gin, *save, *grads; /* of: not NULL */
    uint64_t kind;
    const void *values; /* of parameters that pass the device: in which window */
};

struct compute_ops {
    /* y[n][out] = x[n][in] w[in][out] + b[out]; table: with w[out][in], that of an embedding. */
    void (*linear_forward)(const struct compute *c, int n, int in, int out, bool table,
                           const void *x, const real *w, const real *b, void *y);
    void (*linear_backward)(const struct compute *c, int n, int in, int out, bool table,
                            const void *dy, const real *w, void *dx);
    void (*linear_weight)(const struct compute *c, int n, int in, int out, bool table,
                          const void *x, const void *dy, real *dw, real *db);
    /* Layer normalisation of each row: y = xhat gain + bias, xhat = (x - mean) rstd. The backward needs
     * xhat[n][width] and rstd[n], and *adds* to dx, which already holds the gradient that came round
     * the block on the residual path. */
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
    /* qkv[n][3 width]: queries, keys, values; y[n][width]: the mixed values. */
    void (*attention_forward)(const struct compute *c, const struct attention *a, const void *qkv,
                              void *kept, void *y);
    /* y: what the forward wrote. */
    void (*attention_backward)(const struct compute *c, const struct attention *a, const void *qkv,
                               const void *kept, const void *y, const void *dy, void *dqkv,
                               void *scratch);
    /* y = gelu(x); x becomes gelu'(x), which is all that the backward needs: d = d * slope. */
    void (*gelu_forward)(const struct compute *c, size_t count, void *x, void *y);
    void (*gelu_backward)(const struct compute *c, size_t count, const void *slope, void *d);
    /* Set a share `rate` of x to zero and scale the rest by 1 / (1 - rate). Which ones follows from the
     * key alone, so the same call on a gradient is the backward. */
    void (*dropout)(const struct compute *c, struct dp_random_key key, float rate, size_t count,
                    void *x);
    /* y[n][width] = table[token] + positions[place in the sequence] */
    void (*embed_forward)(const struct compute *c, int n, int context, int width,
                          const uint8_t *tokens, const real *table, const real *positions, void *y);
    void (*embed_weight)(const struct compute *c, int n, int context, int width,
                         const uint8_t *tokens, const void *dy, real *dtable, real *dpositions);
    /* Mean over the rows of -log softmax(logits)[label], in nats; and its gradient times scale. value is
     * in the memory that c computes in. */
    void (*entropy_forward)(const struct compute *c, int n, int classes, const void *logits,
                            const uint8_t *labels, double *value);
    void (*entropy_backward)(const struct compute *c, int n, int classes, const void *logits,
                             const uint8_t *labels, double scale, void *dlogits);
    /* x += y; to = from; x = 0 */
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

/* A filling: functions of these names. */
#define COMPUTE_OPS                                                                                \
    {                                                                                              \
        linear_forward, linear_backward, linear_weight, norm_forward, norm_backward, norm_weight,  \
            attention_kept, attention_scratch, attention_forward, attention_backward,              \
            gelu_forward, gelu_backward, dropout, embed_forward, embed_weight, entropy_forward,    \
            entropy_backward, add, copy, zero, error, carry_out                                    \
    }

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

/* Memory that is cut into areas: *at becomes base, where one of `count` begins; returns its bytes,
 * behind which the next one may begin. base NULL: to learn that only. */
enum compute_unit { AREA_ACTIVATIONS, AREA_REALS, AREA_BYTES };
size_t compute_place(const struct compute *c, size_t count, enum compute_unit unit, void *base,
                     real **at);

#endif
