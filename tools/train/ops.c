/* SPDX-License-Identifier: Apache-2.0 */
#include "train/ops.h"

#include <cblas.h>
#include <string.h>
#include <tgmath.h>

#ifdef GPT_DOUBLE
#define gemm cblas_dgemm
#else
#define gemm cblas_sgemm
#endif

void add(size_t count, const real *y, real *x)
{
    for (size_t i = 0; i < count; i++)
        x[i] += y[i];
}

/* Every row of y becomes b, or every row of y is added to b. */
static void rows_fill(int n, int width, const real *b, real *y)
{
    for (int i = 0; i < n; i++)
        memcpy(y + (size_t)i * (size_t)width, b, (size_t)width * sizeof(real));
}

static void rows_sum(int n, int width, const real *y, real *b)
{
    for (int i = 0; i < n; i++)
        add((size_t)width, y + (size_t)i * (size_t)width, b);
}

/* ---- linear -------------------------------------------------------------------------------- */

void linear_forward(int n, int in, int out, const real *x, const real *w, const real *b, real *y)
{
    rows_fill(n, out, b, y);
    gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, out, in, 1, x, in, w, out, 1, y, out);
}

void linear_backward(int n, int in, int out, const real *dy, const real *w, real *dx)
{
    gemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, in, out, 1, dy, out, w, out, 0, dx, in);
}

void linear_weight(int n, int in, int out, const real *x, const real *dy, real *dw, real *db)
{
    gemm(CblasRowMajor, CblasTrans, CblasNoTrans, in, out, n, 1, x, in, dy, out, 1, dw, out);
    rows_sum(n, out, dy, db);
}

void table_forward(int n, int in, int out, const real *x, const real *w, const real *b, real *y)
{
    rows_fill(n, out, b, y);
    gemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, out, in, 1, x, in, w, in, 1, y, out);
}

void table_backward(int n, int in, int out, const real *dy, const real *w, real *dx)
{
    gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, in, out, 1, dy, out, w, in, 0, dx, in);
}

void table_weight(int n, int in, int out, const real *x, const real *dy, real *dw, real *db)
{
    gemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n, 1, dy, out, x, in, 1, dw, in);
    rows_sum(n, out, dy, db);
}

/* ---- layer normalisation -------------------------------------------------------------------- */

static const real norm_epsilon = (real)1e-5;

static void norm_row(int width, const real *x, const real *gain, const real *bias, real *y,
                     real *xhat, real *rstd)
{
    real mean = 0, variance = 0;

    for (int j = 0; j < width; j++)
        mean += x[j];
    mean /= (real)width;
    for (int j = 0; j < width; j++)
        variance += (x[j] - mean) * (x[j] - mean);
    *rstd = 1 / sqrt(variance / (real)width + norm_epsilon);
    for (int j = 0; j < width; j++) {
        xhat[j] = (x[j] - mean) * *rstd;
        y[j] = xhat[j] * gain[j] + bias[j];
    }
}

void norm_forward(int n, int width, const real *x, const real *gain, const real *bias, real *y,
                  real *xhat, real *rstd)
{
    for (int i = 0; i < n; i++) {
        size_t row = (size_t)i * (size_t)width;
        norm_row(width, x + row, gain, bias, y + row, xhat + row, rstd + i);
    }
}

/* With g = dy gain: dx = rstd (g - mean(g) - xhat mean(g xhat)). */
static void norm_row_backward(int width, const real *dy, const real *gain, const real *xhat,
                              real rstd, real *dx)
{
    real mean = 0, along = 0;

    for (int j = 0; j < width; j++) {
        mean += dy[j] * gain[j];
        along += dy[j] * gain[j] * xhat[j];
    }
    mean /= (real)width;
    along /= (real)width;
    for (int j = 0; j < width; j++)
        dx[j] += rstd * (dy[j] * gain[j] - mean - xhat[j] * along);
}

void norm_backward(int n, int width, const real *dy, const real *gain, const real *xhat,
                   const real *rstd, real *dx)
{
    for (int i = 0; i < n; i++) {
        size_t row = (size_t)i * (size_t)width;
        norm_row_backward(width, dy + row, gain, xhat + row, rstd[i], dx + row);
    }
}

void norm_weight(int n, int width, const real *dy, const real *xhat, real *dgain, real *dbias)
{
    for (int i = 0; i < n; i++) {
        const real *d = dy + (size_t)i * (size_t)width, *h = xhat + (size_t)i * (size_t)width;
        for (int j = 0; j < width; j++)
            dgain[j] += d[j] * h[j];
    }
    rows_sum(n, width, dy, dbias);
}

/* ---- attention ----------------------------------------------------------------------------- */

/* One head of one sequence: where it lies in qkv[n][3 width], in p and in y[n][width]. */
struct head {
    size_t q, k, v, p, y;
};

static struct head head_at(const struct attention *a, int sequence, int head)
{
    size_t t = (size_t)a->context, c = (size_t)a->width, d = c / (size_t)a->heads;
    size_t row = (size_t)sequence * t, column = (size_t)head * d;

    return (struct head){
        .q = row * 3 * c + column,
        .k = row * 3 * c + column + c,
        .v = row * 3 * c + column + 2 * c,
        .p = ((size_t)sequence * (size_t)a->heads + (size_t)head) * t * t,
        .y = row * c + column,
    };
}

/* Softmax of the first `count` scores of a row of `len`; the rest, the future, gets nothing. */
static void softmax_causal(int count, int len, real *row)
{
    real most = row[0], sum = 0;

    for (int j = 1; j < count; j++)
        most = row[j] > most ? row[j] : most;
    for (int j = 0; j < count; j++) {
        row[j] = exp(row[j] - most);
        sum += row[j];
    }
    for (int j = 0; j < count; j++)
        row[j] /= sum;
    memset(row + count, 0, (size_t)(len - count) * sizeof(real));
}

static void head_forward(const struct attention *a, struct head at, const real *qkv, real *p,
                         real *y)
{
    int t = a->context, c = a->width, d = c / a->heads;
    real scale = 1 / sqrt((real)d);

    gemm(CblasRowMajor, CblasNoTrans, CblasTrans, t, t, d, scale, qkv + at.q, 3 * c, qkv + at.k,
         3 * c, 0, p + at.p, t);
    for (int i = 0; i < t; i++)
        softmax_causal(i + 1, t, p + at.p + (size_t)i * (size_t)t);
    gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, t, d, t, 1, p + at.p, t, qkv + at.v, 3 * c, 0,
         y + at.y, c);
}

void attention_forward(const struct attention *a, const real *qkv, real *p, real *y)
{
    for (int s = 0; s < a->sequences; s++)
        for (int h = 0; h < a->heads; h++)
            head_forward(a, head_at(a, s, h), qkv, p, y);
}

/* From the gradient of the probabilities to that of the scores, row by row, in place. */
static void softmax_backward(int t, const real *p, real *d)
{
    for (int i = 0; i < t; i++, p += t, d += t) {
        real along = 0;
        for (int j = 0; j <= i; j++)
            along += p[j] * d[j];
        for (int j = 0; j < t; j++)
            d[j] = p[j] * (d[j] - along);
    }
}

static void head_backward(const struct attention *a, struct head at, const real *qkv, const real *p,
                          const real *dy, real *dqkv, real *ds)
{
    int t = a->context, c = a->width, d = c / a->heads;
    real scale = 1 / sqrt((real)d);

    gemm(CblasRowMajor, CblasTrans, CblasNoTrans, t, d, t, 1, p + at.p, t, dy + at.y, c, 0,
         dqkv + at.v, 3 * c);
    gemm(CblasRowMajor, CblasNoTrans, CblasTrans, t, t, d, 1, dy + at.y, c, qkv + at.v, 3 * c, 0,
         ds, t);
    softmax_backward(t, p + at.p, ds);
    gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, t, d, t, scale, ds, t, qkv + at.k, 3 * c, 0,
         dqkv + at.q, 3 * c);
    gemm(CblasRowMajor, CblasTrans, CblasNoTrans, t, d, t, scale, ds, t, qkv + at.q, 3 * c, 0,
         dqkv + at.k, 3 * c);
}

void attention_backward(const struct attention *a, const real *qkv, const real *p, const real *dy,
                        real *dqkv, real *scratch)
{
    for (int s = 0; s < a->sequences; s++)
        for (int h = 0; h < a->heads; h++)
            head_backward(a, head_at(a, s, h), qkv, p, dy, dqkv, scratch);
}

/* ---- GELU ---------------------------------------------------------------------------------- */

/* The tanh form (Hendrycks and Gimpel, 2016): x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715
 * x^3); (1 + tanh u) / 2 is the logistic function of 2u, so one exp gives value and slope. */
void gelu_forward(size_t count, real *x, real *y)
{
    const real a = (real)0.7978845608028654, b = (real)0.044715;

    for (size_t i = 0; i < count; i++) {
        real z = x[i], square = z * z;
        real gate = 1 / (1 + exp(-2 * a * z * (1 + b * square)));
        y[i] = z * gate;
        x[i] = gate + 2 * a * z * (1 + 3 * b * square) * gate * (1 - gate);
    }
}

void gelu_backward(size_t count, const real *slope, real *d)
{
    for (size_t i = 0; i < count; i++)
        d[i] *= slope[i];
}

/* ---- dropout ------------------------------------------------------------------------------- */

void dropout(struct dp_random_key key, float rate, size_t count, real *x)
{
    const real scale = 1 / (1 - (real)rate);
    float u[256];

    for (size_t at = 0; rate > 0 && at < count; at += 256) {
        size_t n = count - at < 256 ? count - at : 256;
        dp_random_uniform(key, at, u, n);
        for (size_t i = 0; i < n; i++)
            x[at + i] = u[i] < rate ? 0 : x[at + i] * scale;
    }
}

/* ---- embedding ----------------------------------------------------------------------------- */

void embed_forward(int n, int context, int width, const uint8_t *tokens, const real *table,
                   const real *positions, real *y)
{
    size_t w = (size_t)width;

    for (int i = 0; i < n; i++, y += w) {
        memcpy(y, table + tokens[i] * w, w * sizeof(real));
        add(w, positions + (size_t)(i % context) * w, y);
    }
}

void embed_weight(int n, int context, int width, const uint8_t *tokens, const real *dy,
                  real *dtable, real *dpositions)
{
    size_t w = (size_t)width;

    for (int i = 0; i < n; i++, dy += w) {
        add(w, dy, dtable + tokens[i] * w);
        add(w, dy, dpositions + (size_t)(i % context) * w);
    }
}

/* ---- cross-entropy ------------------------------------------------------------------------- */

/* log(sum(exp(row))), without overflow. */
static real log_sum_exp(int classes, const real *row)
{
    real most = row[0], sum = 0;

    for (int j = 1; j < classes; j++)
        most = row[j] > most ? row[j] : most;
    for (int j = 0; j < classes; j++)
        sum += exp(row[j] - most);
    return most + log(sum);
}

double entropy_forward(int n, int classes, const real *logits, const uint8_t *labels)
{
    double total = 0;

    for (int i = 0; i < n; i++, logits += classes)
        total += (double)(log_sum_exp(classes, logits) - logits[labels[i]]);
    return total / n;
}

void entropy_backward(int n, int classes, const real *logits, const uint8_t *labels, double scale,
                      real *dlogits)
{
    const real each = (real)(scale / n);

    for (int i = 0; i < n; i++, logits += classes, dlogits += classes) {
        real lse = log_sum_exp(classes, logits);
        for (int j = 0; j < classes; j++)
            dlogits[j] = exp(logits[j] - lse) * each;
        dlogits[labels[i]] -= each;
    }
}
