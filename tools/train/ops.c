/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.c - the operations of compute.h on the CPU: matrix products by BLAS, and loops over the elements
 * of a row. Nothing here knows of pipelines; nothing allocates.
 */
#include "train/compute.h"

#include <cblas.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tgmath.h>

/* ---- OpenBLAS -------------------------------------------------------------------------------- */

/* OpenBLAS knows processors by their model. One that came after its release gets the kernels of the
 * oldest (3 times slower, seen with 0.3.21), unless OPENBLAS_CORETYPE names others when the library is
 * loaded; so it is loaded again with that. */

/* NULL: what OpenBLAS has chosen is right, as far as can be told. */
static const char *better_kernels(const char *chosen)
{
#if defined(__x86_64__)
    static const char *const old[] = {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem",
                                      "Sandybridge", "Athlon", "Opteron", "Opteron_SSE3",
                                      "Barcelona", "Bobcat", "Bulldozer", "Nano", "Atom"};

    for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
        if (strcmp(chosen, old[i]))
            continue;
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"))
            return "SkylakeX";
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            return "Haswell";
    }
#endif
    return NULL;
}

static struct blas_kernels {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dgemm) *dgemm;
} blas;
static char failure[512];

static void *find(void *library, const char *name)
{
    void *at = library ? dlsym(library, name) : NULL;

    if (!at && !failure[0])
        snprintf(failure, sizeof(failure), "OpenBLAS cannot be loaded: %s; install it (Debian, "
                                           "Ubuntu: libopenblas0)", dlerror());
    return at;
}

static void *open_library(void)
{
    return dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
}

/* OpenBLAS maps a buffer for the first product of a thread, of up to 128 MiB, and keeps it. Where
 * it may not, it tries for ever. */
static void take_buffer(void)
{
    enum { SIDE = 128, BUFFER = 144 << 20 };
    static float a[SIDE * SIDE], b[SIDE * SIDE];
    void *room = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room == MAP_FAILED) {
        snprintf(failure, sizeof(failure), "OpenBLAS needs %d MiB of address space for its buffer: "
                 "%s; see 'ulimit -v'", BUFFER >> 20, strerror(errno));
        return;
    }
    munmap(room, BUFFER);
    blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, a, SIDE, a, SIDE, 0,
               b, SIDE);
}

static void load(void)
{
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = open_library();
    char *(*name)(void) = (char *(*)(void))find(library, "openblas_get_corename");
    const char *kernels = getenv("OPENBLAS_CORETYPE") || !name ? NULL : better_kernels(name());
    if (kernels && !setenv("OPENBLAS_CORETYPE", kernels, 1)) {
        dlclose(library);
        library = open_library();
    }
    blas.sgemm = (__typeof__(blas.sgemm))find(library, "cblas_sgemm");
    blas.dgemm = (__typeof__(blas.dgemm))find(library, "cblas_dgemm");
    if (!failure[0])
        take_buffer();
}

bool blas_begin(const char **why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    *why = failure;
    return !failure[0];
}

static const struct blas_kernels *blas_get(void)
{
    const char *why;

    if (!blas_begin(&why)) {
        fprintf(stderr, "%s\n", why);
        abort();
    }
    return &blas;
}

#ifdef GPT_DOUBLE
#define gemm blas_get()->dgemm
#else
#define gemm blas_get()->sgemm
#endif

/* ---- rows ----------------------------------------------------------------------------------- */

/* The compiler makes a version of a loop for each of these instruction sets, and the loader takes the
 * best that the machine has; not under TSan, which is not there yet when the loader asks. Machines
 * whose vectors differ in width add up in another order, so their losses differ in the last bits, as
 * those of OpenBLAS do. */
#if defined(__x86_64__) && defined(__GLIBC__) && __has_attribute(target_clones) && \
    !defined(__SANITIZE_THREAD__)
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORS
#endif

#ifdef __clang__ /* which says so where it finds no vector instructions for a loop, as with double */
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

static const real norm_epsilon = (real)1e-5;

/* The float one has no branch and no call, so that loops around it become vector instructions: 2^n
 * times a polynomial of what is left, within 2 units in the last place; 0 below -87, never infinite.
 * NaN stays. */
static inline real exp_of(real x)
{
#ifdef GPT_DOUBLE
    return exp(x);
#else
    const float log2e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const float most = 88.0f, least = -87.0f, shift = 12582912.0f; /* 1.5 * 2^23: rounds */
    const float z = x > least ? (x < most ? x : most) : least; /* of NaN, too */
    const float n = (z * log2e + shift) - shift;
    const float r = z - n * ln2_high - n * ln2_low;
    float p = 1.9875691500e-4f;
    union { int32_t bits; float value; } power = {.bits = ((int32_t)n + 127) * (1 << 23)};

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return x != x ? x : x < least ? 0 : p * power.value;
#endif
}

VECTORS static void add_row(size_t count, const real *y, real *x)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] += y[i];
}

/* x becomes exp(x - the largest of x); returns their sum. */
VECTORS static real exp_row(size_t count, real *x, const real *from, real *most)
{
    real largest = from[0], sum = 0;

#pragma omp simd reduction(max : largest)
    for (size_t j = 0; j < count; j++)
        largest = from[j] > largest ? from[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < count; j++) {
        x[j] = exp_of(from[j] - largest);
        sum += x[j];
    }
    *most = largest;
    return sum;
}

VECTORS static void scale_row(size_t count, real factor, real *x)
{
#pragma omp simd
    for (size_t j = 0; j < count; j++)
        x[j] *= factor;
}

/* From the gradient of the probabilities to that of the scores, row by row, in place. */
VECTORS static void softmax_backward(size_t t, const real *p, real *d)
{
    for (size_t i = 0; i < t; i++, p += t, d += t) {
        real along = 0;
#pragma omp simd reduction(+ : along)
        for (size_t j = 0; j < t; j++)
            along += p[j] * d[j];
#pragma omp simd
        for (size_t j = 0; j < t; j++)
            d[j] = p[j] * (d[j] - along);
    }
}

#define C __attribute__((unused)) const struct compute *c

static void add(C, size_t count, const void *y, void *x)
{
    add_row(count, y, x);
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
        add_row((size_t)width, y + (size_t)i * (size_t)width, b);
}

/* ---- linear -------------------------------------------------------------------------------- */

static void linear_forward(C, int n, int in, int out, bool table, const void *x, const real *w,
                           const real *b, void *y)
{
    rows_fill(n, out, b, y);
    gemm(CblasRowMajor, CblasNoTrans, table ? CblasTrans : CblasNoTrans, n, out, in, 1, x, in, w,
         table ? in : out, 1, y, out);
}

static void linear_backward(C, int n, int in, int out, bool table, const void *dy, const real *w,
                            void *dx)
{
    gemm(CblasRowMajor, CblasNoTrans, table ? CblasNoTrans : CblasTrans, n, in, out, 1, dy, out, w,
         table ? in : out, 0, dx, in);
}

static void linear_weight(C, int n, int in, int out, bool table, const void *x, const void *dy,
                          real *dw, real *db)
{
    if (table)
        gemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n, 1, dy, out, x, in, 1, dw, in);
    else
        gemm(CblasRowMajor, CblasTrans, CblasNoTrans, in, out, n, 1, x, in, dy, out, 1, dw, out);
    rows_sum(n, out, dy, db);
}

/* ---- layer normalisation -------------------------------------------------------------------- */

VECTORS static void norm_forward(C, int n, int width, const void *x, const real *gain,
                                 const real *bias, void *y, void *xhat, real *rstd)
{
    const size_t w = (size_t)width;
    const real *from = x;
    real *to = y, *hat = xhat;

    for (int i = 0; i < n; i++, from += w, to += w, hat += w) {
        real sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t j = 0; j < w; j++)
            sum += from[j];
        const real mean = sum / (real)width;
#pragma omp simd reduction(+ : squares)
        for (size_t j = 0; j < w; j++)
            squares += (from[j] - mean) * (from[j] - mean);
        const real scale = 1 / sqrt(squares / (real)width + norm_epsilon);
#pragma omp simd
        for (size_t j = 0; j < w; j++) {
            hat[j] = (from[j] - mean) * scale;
            to[j] = hat[j] * gain[j] + bias[j];
        }
        rstd[i] = scale;
    }
}

/* With g = dy gain: dx = rstd (g - mean(g) - xhat mean(g xhat)). */
VECTORS static void norm_backward(C, int n, int width, const void *dy, const real *gain,
                                  const void *xhat, const real *rstd, void *dx)
{
    const size_t w = (size_t)width;
    const real *from = dy, *hat = xhat;
    real *to = dx;

    for (int i = 0; i < n; i++, from += w, to += w, hat += w) {
        real sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
        for (size_t j = 0; j < w; j++) {
            sum += from[j] * gain[j];
            along += from[j] * gain[j] * hat[j];
        }
        sum /= (real)width;
        along /= (real)width;
#pragma omp simd
        for (size_t j = 0; j < w; j++)
            to[j] += rstd[i] * (from[j] * gain[j] - sum - hat[j] * along);
    }
}

VECTORS static void norm_weight(C, int n, int width, const void *dy, const void *xhat, real *dgain,
                                real *dbias)
{
    const size_t w = (size_t)width;
    const real *from = dy, *hat = xhat;

    for (int i = 0; i < n; i++, from += w, hat += w)
#pragma omp simd
        for (size_t j = 0; j < w; j++) {
            dgain[j] += from[j] * hat[j];
            dbias[j] += from[j];
        }
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
    real most;

    scale_row((size_t)count, 1 / exp_row((size_t)count, row, row, &most), row);
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

/* The probabilities of all heads. */
static size_t attention_kept(const struct attention *a)
{
    const size_t t = (size_t)a->context;

    return (size_t)a->sequences * (size_t)a->heads * t * t * sizeof(real);
}

static size_t attention_scratch(const struct attention *a)
{
    return (size_t)a->context * (size_t)a->context * sizeof(real);
}

static void attention_forward(C, const struct attention *a, const void *qkv, void *kept, void *y)
{
    for (int s = 0; s < a->sequences; s++)
        for (int h = 0; h < a->heads; h++)
            head_forward(a, head_at(a, s, h), qkv, kept, y);
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
    softmax_backward((size_t)t, p + at.p, ds);
    gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, t, d, t, scale, ds, t, qkv + at.k, 3 * c, 0,
         dqkv + at.q, 3 * c);
    gemm(CblasRowMajor, CblasTrans, CblasNoTrans, t, d, t, scale, ds, t, qkv + at.q, 3 * c, 0,
         dqkv + at.k, 3 * c);
}

static void attention_backward(C, const struct attention *a, const void *qkv, const void *kept,
                               __attribute__((unused)) const void *y, const void *dy, void *dqkv,
                               void *scratch)
{
    for (int s = 0; s < a->sequences; s++)
        for (int h = 0; h < a->heads; h++)
            head_backward(a, head_at(a, s, h), qkv, kept, dy, dqkv, scratch);
}

/* ---- GELU ---------------------------------------------------------------------------------- */

/* The tanh form (Hendrycks and Gimpel, 2016): x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715
 * x^3); (1 + tanh u) / 2 is the logistic function of 2u, so one exp gives value and slope. */
VECTORS static void gelu_forward(C, size_t count, void *x, void *y)
{
    const real a = (real)0.7978845608028654, b = (real)0.044715;
    real *from = x, *to = y;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const real z = from[i], square = z * z;
        const real gate = 1 / (1 + exp_of(-2 * a * z * (1 + b * square)));
        to[i] = z * gate;
        from[i] = gate + 2 * a * z * (1 + 3 * b * square) * gate * (1 - gate);
    }
}

VECTORS static void gelu_backward(C, size_t count, const void *slope, void *d)
{
    const real *by = slope;
    real *to = d;

#pragma omp simd
    for (size_t i = 0; i < count; i++)
        to[i] *= by[i];
}

/* ---- dropout ------------------------------------------------------------------------------- */

static void dropout(C, struct dp_random_key key, float rate, size_t count, void *x)
{
    const real scale = 1 / (1 - (real)rate);
    real *of = x;
    float u[256];

    for (size_t at = 0; rate > 0 && at < count; at += 256) {
        size_t n = count - at < 256 ? count - at : 256;
        dp_random_uniform(key, at, u, n);
        for (size_t i = 0; i < n; i++)
            of[at + i] = u[i] < rate ? 0 : of[at + i] * scale;
    }
}

/* ---- embedding ----------------------------------------------------------------------------- */

static void embed_forward(C, int n, int context, int width, const uint8_t *tokens,
                          const real *table, const real *positions, void *y)
{
    const size_t w = (size_t)width;
    real *to = y;

    for (int i = 0; i < n; i++, to += w) {
        memcpy(to, table + tokens[i] * w, w * sizeof(real));
        add_row(w, positions + (size_t)(i % context) * w, to);
    }
}

static void embed_weight(C, int n, int context, int width, const uint8_t *tokens, const void *dy,
                         real *dtable, real *dpositions)
{
    const size_t w = (size_t)width;
    const real *from = dy;

    for (int i = 0; i < n; i++, from += w) {
        add_row(w, from, dtable + tokens[i] * w);
        add_row(w, from, dpositions + (size_t)(i % context) * w);
    }
}

/* ---- cross-entropy ------------------------------------------------------------------------- */

static void entropy_forward(C, int n, int classes, const void *logits, const uint8_t *labels,
                            double *value)
{
    real most, unused[UINT8_MAX + 1]; /* classes are those of a byte */
    const real *row = logits;
    double total = 0;

    for (int i = 0; i < n; i++, row += classes) {
        const real sum = exp_row((size_t)classes, unused, row, &most);
        total += (double)(most + log(sum) - row[labels[i]]);
    }
    *value = total / n;
}

static void entropy_backward(C, int n, int classes, const void *logits, const uint8_t *labels,
                             double scale, void *dlogits)
{
    const real each = (real)(scale / n), *row = logits;
    real most, *d = dlogits;

    for (int i = 0; i < n; i++, row += classes, d += classes) {
        const real sum = exp_row((size_t)classes, d, row, &most);
        scale_row((size_t)classes, each / sum, d);
        d[labels[i]] -= each;
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

static void copy(C, size_t count, const void *from, void *to)
{
    memcpy(to, from, count * sizeof(real));
}

static void zero(C, size_t count, void *x)
{
    memset(x, 0, count * sizeof(real));
}

static int error(C)
{
    return 0;
}

static int carry_out(C, __attribute__((unused)) const struct compute_key *key,
                     __attribute__((unused)) bool is_static, int (*queue)(void *arg), void *arg)
{
    return queue(arg);
}

static const struct compute_ops ops = COMPUTE_OPS;

const struct compute compute_cpu = {
    .ops = &ops, .size = sizeof(real), .align = sizeof(real), .dl = {kDLCPU, 0}};

size_t compute_place(const struct compute *c, size_t count, enum compute_unit unit, void *base,
                     real **at)
{
    const size_t bytes = count * (size_t[]){c->size, sizeof(real), 1}[unit];

    *at = base;
    return (bytes + c->align - 1) / c->align * c->align;
}
