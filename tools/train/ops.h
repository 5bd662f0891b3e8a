/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.h - the arithmetic of the model: plain functions on row-major matrices, in threes.
 *
 *      X_forward   y from x
 *      X_backward  dx from dy: the gradient with respect to the input, and nothing else
 *      X_weight    adds to dw what this micro-batch contributes to the gradient of the weights
 *
 * That the last two are apart is what a pipeline lives on: dx is what the rank before waits for, dw
 * can come whenever there is time. Nothing here knows of pipelines; nothing allocates.
 *
 * n is a number of rows: tokens, sequence after sequence. `real` is float; the test that compares
 * with finite differences builds the same source with double.
 */
#ifndef DP_TRAIN_OPS_H
#define DP_TRAIN_OPS_H

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

/* y[n][out] = x[n][in] w[in][out] + b[out] */
void linear_forward(int n, int in, int out, const real *x, const real *w, const real *b, real *y);
void linear_backward(int n, int in, int out, const real *dy, const real *w, real *dx);
void linear_weight(int n, int in, int out, const real *x, const real *dy, real *dw, real *db);
/* The same with w[out][in], the table of an embedding. */
void table_forward(int n, int in, int out, const real *x, const real *w, const real *b, real *y);
void table_backward(int n, int in, int out, const real *dy, const real *w, real *dx);
void table_weight(int n, int in, int out, const real *x, const real *dy, real *dw, real *db);

/* Layer normalisation of each row: y = xhat gain + bias, xhat = (x - mean) rstd. The backward needs
 * xhat[n][width] and rstd[n], and *adds* to dx, which already holds the gradient that came round
 * the block on the residual path. */
void norm_forward(int n, int width, const real *x, const real *gain, const real *bias, real *y,
                  real *xhat, real *rstd);
void norm_backward(int n, int width, const real *dy, const real *gain, const real *xhat,
                   const real *rstd, real *dx);
void norm_weight(int n, int width, const real *dy, const real *xhat, real *dgain, real *dbias);

/* Causal self-attention: position i of a sequence sees positions 0 .. i. */
struct attention {
    int sequences, context, heads, width; /* width = heads * width of a head */
};
/* qkv[n][3 width]: queries, keys, values; p[sequences][heads][context][context] receives the
 * probabilities, y[n][width] the mixed values. */
void attention_forward(const struct attention *a, const real *qkv, real *p, real *y);
/* scratch: context * context. */
void attention_backward(const struct attention *a, const real *qkv, const real *p, const real *dy,
                        real *dqkv, real *scratch);

/* y = gelu(x); x becomes gelu'(x), which is all that the backward needs: dx = dy * x. */
void gelu_forward(size_t count, real *x, real *y);
void gelu_backward(size_t count, const real *slope, real *d);

/* Set a share `rate` of x to zero and scale the rest by 1 / (1 - rate). Which ones follows from the
 * key alone, so the same call on a gradient is the backward. */
void dropout(struct dp_random_key key, float rate, size_t count, real *x);

/* y[n][width] = table[token] + positions[place in the sequence] */
void embed_forward(int n, int context, int width, const uint8_t *tokens, const real *table,
                   const real *positions, real *y);
void embed_weight(int n, int context, int width, const uint8_t *tokens, const real *dy,
                  real *dtable, real *dpositions);

/* Mean over the rows of -log softmax(logits)[label], in nats; and its gradient times scale. */
double entropy_forward(int n, int classes, const real *logits, const uint8_t *labels);
void entropy_backward(int n, int classes, const real *logits, const uint8_t *labels, double scale,
                      real *dlogits);

/* x += y */
void add(size_t count, const real *y, real *x);

#endif
