/* SPDX-License-Identifier: Apache-2.0
 *
 * compute_cpu.c - the table's filling for the CPU: the functions of ops.h as they are.
 */
#include "train/compute.h"

#include <string.h>

#define C const struct compute *c

static void linear_forward_cpu(C, int n, int in, int out, const void *x, const real *w,
                               const real *b, void *y)
{
    (void)c;
    linear_forward(n, in, out, x, w, b, y);
}

static void linear_backward_cpu(C, int n, int in, int out, const void *dy, const real *w, void *dx)
{
    (void)c;
    linear_backward(n, in, out, dy, w, dx);
}

static void linear_weight_cpu(C, int n, int in, int out, const void *x, const void *dy, real *dw,
                              real *db)
{
    (void)c;
    linear_weight(n, in, out, x, dy, dw, db);
}

static void table_forward_cpu(C, int n, int in, int out, const void *x, const real *w,
                              const real *b, void *y)
{
    (void)c;
    table_forward(n, in, out, x, w, b, y);
}

static void table_backward_cpu(C, int n, int in, int out, const void *dy, const real *w, void *dx)
{
    (void)c;
    table_backward(n, in, out, dy, w, dx);
}

static void table_weight_cpu(C, int n, int in, int out, const void *x, const void *dy, real *dw,
                             real *db)
{
    (void)c;
    table_weight(n, in, out, x, dy, dw, db);
}

static void norm_forward_cpu(C, int n, int width, const void *x, const real *gain, const real *bias,
                             void *y, void *xhat, real *rstd)
{
    (void)c;
    norm_forward(n, width, x, gain, bias, y, xhat, rstd);
}

static void norm_backward_cpu(C, int n, int width, const void *dy, const real *gain,
                              const void *xhat, const real *rstd, void *dx)
{
    (void)c;
    norm_backward(n, width, dy, gain, xhat, rstd, dx);
}

static void norm_weight_cpu(C, int n, int width, const void *dy, const void *xhat, real *dgain,
                            real *dbias)
{
    (void)c;
    norm_weight(n, width, dy, xhat, dgain, dbias);
}

/* The probabilities of all heads. */
static size_t attention_kept_cpu(const struct attention *a)
{
    const size_t t = (size_t)a->context;

    return (size_t)a->sequences * (size_t)a->heads * t * t * sizeof(real);
}

static size_t attention_scratch_cpu(const struct attention *a)
{
    return (size_t)a->context * (size_t)a->context * sizeof(real);
}

static void attention_forward_cpu(C, const struct attention *a, const void *qkv, void *kept,
                                  void *y)
{
    (void)c;
    attention_forward(a, qkv, kept, y);
}

static void attention_backward_cpu(C, const struct attention *a, const void *qkv, const void *kept,
                                   const void *y, const void *dy, void *dqkv, void *scratch)
{
    (void)c, (void)y;
    attention_backward(a, qkv, kept, dy, dqkv, scratch);
}

static void gelu_forward_cpu(C, size_t count, void *x, void *y)
{
    (void)c;
    gelu_forward(count, x, y);
}

static void gelu_backward_cpu(C, size_t count, const void *slope, void *d)
{
    (void)c;
    gelu_backward(count, slope, d);
}

static void dropout_cpu(C, struct dp_random_key key, float rate, size_t count, void *x)
{
    (void)c;
    dropout(key, rate, count, x);
}

static void embed_forward_cpu(C, int n, int context, int width, const uint8_t *tokens,
                              const real *table, const real *positions, void *y)
{
    (void)c;
    embed_forward(n, context, width, tokens, table, positions, y);
}

static void embed_weight_cpu(C, int n, int context, int width, const uint8_t *tokens,
                             const void *dy, real *dtable, real *dpositions)
{
    (void)c;
    embed_weight(n, context, width, tokens, dy, dtable, dpositions);
}

static void entropy_forward_cpu(C, int n, int classes, const void *logits, const uint8_t *labels,
                                double *value)
{
    (void)c;
    *value = entropy_forward(n, classes, logits, labels);
}

static void entropy_backward_cpu(C, int n, int classes, const void *logits, const uint8_t *labels,
                                 double scale, void *dlogits)
{
    (void)c;
    entropy_backward(n, classes, logits, labels, scale, dlogits);
}

static void add_cpu(C, size_t count, const void *y, void *x)
{
    (void)c;
    add(count, y, x);
}

static void copy_cpu(C, size_t count, const void *from, void *to)
{
    memcpy(to, from, count * c->size);
}

static void zero_cpu(C, size_t count, void *x)
{
    memset(x, 0, count * c->size);
}

static int error_cpu(C)
{
    (void)c;
    return 0;
}

static int carry_out_cpu(C, const struct compute_key *key, bool is_static, int (*queue)(void *arg),
                         void *arg)
{
    (void)c, (void)key, (void)is_static;
    return queue(arg);
}

static const struct compute_ops cpu_ops = {
    .linear_forward = linear_forward_cpu,
    .linear_backward = linear_backward_cpu,
    .linear_weight = linear_weight_cpu,
    .table_forward = table_forward_cpu,
    .table_backward = table_backward_cpu,
    .table_weight = table_weight_cpu,
    .norm_forward = norm_forward_cpu,
    .norm_backward = norm_backward_cpu,
    .norm_weight = norm_weight_cpu,
    .attention_kept = attention_kept_cpu,
    .attention_scratch = attention_scratch_cpu,
    .attention_forward = attention_forward_cpu,
    .attention_backward = attention_backward_cpu,
    .gelu_forward = gelu_forward_cpu,
    .gelu_backward = gelu_backward_cpu,
    .dropout = dropout_cpu,
    .embed_forward = embed_forward_cpu,
    .embed_weight = embed_weight_cpu,
    .entropy_forward = entropy_forward_cpu,
    .entropy_backward = entropy_backward_cpu,
    .add = add_cpu,
    .copy = copy_cpu,
    .zero = zero_cpu,
    .error = error_cpu,
    .carry_out = carry_out_cpu,
};

const struct compute compute_cpu = {
    .ops = &cpu_ops, .size = sizeof(real), .align = sizeof(real), .dl = {kDLCPU, 0}};

size_t parts_place(const struct compute *c, const struct part *parts, size_t len, void *base)
{
    const size_t sizes[] = {c->size, sizeof(real), 1};
    size_t used = 0;

    for (size_t i = 0; i < len; i++) {
        *parts[i].at = base ? (void *)((char *)base + used) : NULL;
        used += parts[i].count * sizes[parts[i].unit];
        used = (used + c->align - 1) / c->align * c->align;
    }
    return used;
}

size_t parts_lay_out(const struct part *parts, size_t len, real *base)
{
    return parts_place(&compute_cpu, parts, len, base) / sizeof(real);
}
