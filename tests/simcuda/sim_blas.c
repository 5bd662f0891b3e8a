/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_blas.c - libcublasLt as far as `dualpipe train` calls it (tools/train/cuda/blas.c): products
 * are computed on the CPU, in the order of their stream. It refuses what the library must not be given:
 * a matrix less aligned than the preferences have promised, which are 256 bytes unless they are set,
 * a bias that is not aligned to 16 bytes, and matrices whose sizes do not fit each other. It has no
 * algorithm for matrices whose columns are no multiple of 8 bytes apart, and loads one when it is chosen.
 */
#include "simcuda/sim.h"

#include "base/fp16.h"

#include <stdlib.h>
#include <string.h>

enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, BLAS_NOT_SUPPORTED = 15 };
enum { COMPUTE_32F = 68, R_32F = 0, R_16BF = 14 };
enum { A, B, C, D, OPERANDS };
enum { COLUMN_BYTES = 8, DEFAULT_ALIGNMENT = 256, BIAS_ALIGNMENT = 16 };

struct sim_matmul {
    int32_t transa, transb, epilogue, bias_type;
    const void *bias;
};

struct sim_layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};

struct sim_preference {
    uint64_t workspace_bytes;
    uint32_t alignment[OPERANDS];
};

/* What the heuristic answers: opaque to the caller, who hands it back with pointers. */
struct sim_algorithm {
    uint64_t workspace_bytes;
    uint32_t alignment[OPERANDS];
    uint64_t rest[5];
};

struct sim_heuristic {
    struct sim_algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct sim_algorithm) == 64 && sizeof(struct sim_heuristic) == 96,
               "as cublasLt.h has them");

SIM_EXPORT size_t cublasLtGetVersion(void)
{
    return 130000;
}

/* ---- objects --------------------------------------------------------------------------------- */

static int make(void **out, const void *from, size_t bytes)
{
    void *object = malloc(bytes);

    if (!object)
        return NOT_INITIALIZED;
    memcpy(object, from, bytes);
    *out = object;
    return 0;
}

static int destroy(void *object)
{
    free(object);
    return 0;
}

SIM_EXPORT int cublasLtCreate(void **out)
{
    SIM_BEGIN();
    return make(out, "", 1);
}

SIM_EXPORT int cublasLtMatmulDescCreate(void **out, int compute, int scale)
{
    const struct sim_matmul desc = {.epilogue = 1};

    return compute == COMPUTE_32F && scale == R_32F ? make(out, &desc, sizeof(desc))
                                                    : BLAS_NOT_SUPPORTED;
}

SIM_EXPORT int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    const struct sim_layout layout = {type, rows, cols, ld};

    return (type == R_32F || type == R_16BF) && ld >= (int64_t)rows
               ? make(out, &layout, sizeof(layout)) : INVALID_VALUE;
}

SIM_EXPORT int cublasLtMatmulPreferenceCreate(void **out)
{
    struct sim_preference preference = {0};

    for (int i = 0; i < OPERANDS; i++)
        preference.alignment[i] = DEFAULT_ALIGNMENT;
    return make(out, &preference, sizeof(preference));
}

#define DESTROY(name)                                                                              \
    SIM_EXPORT int cublasLt##name(void *object)                                                    \
    {                                                                                              \
        return destroy(object);                                                                    \
    }
DESTROY(Destroy)
DESTROY(MatmulDescDestroy)
DESTROY(MatrixLayoutDestroy)
DESTROY(MatmulPreferenceDestroy)

/* ---- attributes, by NVIDIA's numbers --------------------------------------------------------- */

struct attribute {
    int number;
    size_t offset, bytes;
};

static int set(void *object, const struct attribute *known, size_t count, int number,
               const void *value, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (known[i].number == number && known[i].bytes == bytes) {
            memcpy((char *)object + known[i].offset, value, bytes);
            return 0;
        }
    return INVALID_VALUE;
}

#define ATTRIBUTE(number, type, member)                                                            \
    {                                                                                              \
        number, offsetof(struct type, member), sizeof(((struct type *)0)->member)                  \
    }

SIM_EXPORT int cublasLtMatmulDescSetAttribute(void *desc, int number, const void *value, size_t bytes)
{
    static const struct attribute known[] = {
        ATTRIBUTE(3, sim_matmul, transa), ATTRIBUTE(4, sim_matmul, transb),
        ATTRIBUTE(7, sim_matmul, epilogue), ATTRIBUTE(8, sim_matmul, bias),
        ATTRIBUTE(26, sim_matmul, bias_type),
    };

    return set(desc, known, sizeof(known) / sizeof(known[0]), number, value, bytes);
}

SIM_EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int number, const void *value,
                                                    size_t bytes)
{
    static const struct attribute known[] = {
        ATTRIBUTE(1, sim_preference, workspace_bytes), ATTRIBUTE(5, sim_preference, alignment[A]),
        ATTRIBUTE(6, sim_preference, alignment[B]), ATTRIBUTE(7, sim_preference, alignment[C]),
        ATTRIBUTE(8, sim_preference, alignment[D]),
    };

    return set(preference, known, sizeof(known) / sizeof(known[0]), number, value, bytes);
}

/* ---- products -------------------------------------------------------------------------------- */

struct product {
    struct sim_matmul desc;
    struct sim_layout layout[OPERANDS];
    const void *data[OPERANDS];
    float alpha, beta;
    uint64_t inner;
};

/* D (m x n) = alpha op(A) (m x k) op(B) (k x n) + beta C. */
static bool do_sizes_fit(const struct sim_matmul *desc, struct sim_layout *const l[OPERANDS])
{
    const uint64_t m = desc->transa ? l[A]->cols : l[A]->rows;
    const uint64_t k = desc->transa ? l[A]->rows : l[A]->cols;
    const uint64_t n = desc->transb ? l[B]->rows : l[B]->cols;

    return k == (desc->transb ? l[B]->cols : l[B]->rows) && l[A]->type == l[B]->type &&
           l[C]->rows == m && l[C]->cols == n && l[D]->rows == m && l[D]->cols == n &&
           l[C]->type == l[D]->type;
}

static size_t size_of(int type)
{
    return type == R_32F ? sizeof(float) : sizeof(uint16_t);
}

SIM_EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                              void *preference, int most, struct sim_heuristic *out,
                                              int *count)
{
    struct sim_layout *const l[OPERANDS] = {a, b, c, d};
    const struct sim_preference *p = preference;

    *count = 0;
    if (!handle || most < 1 || !do_sizes_fit(desc, l))
        return INVALID_VALUE;
    for (int i = 0; i < OPERANDS; i++)
        if ((size_t)l[i]->ld * size_of(l[i]->type) % COLUMN_BYTES)
            return BLAS_NOT_SUPPORTED;
    sim_module_load("an algorithm for a product");
    *out = (struct sim_heuristic){.algorithm.workspace_bytes = p->workspace_bytes,
                                  .workspace_bytes = p->workspace_bytes};
    memcpy(out->algorithm.alignment, p->alignment, sizeof(p->alignment));
    *count = 1;
    return 0;
}

static double load(const void *data, int type, uint64_t at)
{
    return type == R_32F ? (double)((const float *)data)[at]
                         : (double)dp_bfloat16_load(((const uint16_t *)data)[at]);
}

static double element(const struct product *p, int which, uint64_t row, uint64_t col)
{
    const struct sim_layout *l = &p->layout[which];

    return load(p->data[which], l->type, row + col * (uint64_t)l->ld);
}

static double dot(const struct product *p, uint64_t row, uint64_t col)
{
    double sum = 0;

    for (uint64_t i = 0; i < p->inner; i++)
        sum += (p->desc.transa ? element(p, A, i, row) : element(p, A, row, i)) *
               (p->desc.transb ? element(p, B, col, i) : element(p, B, i, col));
    return sum;
}

static void multiply(void *arg)
{
    const struct product *p = arg;
    const struct sim_layout *l = &p->layout[D];

    for (uint64_t col = 0; col < l->cols; col++)
        for (uint64_t row = 0; row < l->rows; row++) {
            const uint64_t at = row + col * (uint64_t)l->ld;
            double x = (double)p->alpha * dot(p, row, col);
            if (p->beta != 0)
                x += (double)p->beta * element(p, C, row, col);
            if (p->desc.bias)
                x += load(p->desc.bias, p->desc.bias_type, row);
            if (l->type == R_32F)
                ((float *)(uintptr_t)p->data[D])[at] = (float)x;
            else
                ((uint16_t *)(uintptr_t)p->data[D])[at] = dp_bfloat16_store((float)x);
        }
}

static bool is_aligned(const void *ptr, uint32_t to)
{
    return !((uintptr_t)ptr % to);
}

SIM_EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                              const void *b, void *b_layout, const void *beta, const void *c,
                              void *c_layout, void *d, void *d_layout,
                              const struct sim_algorithm *algorithm, void *workspace,
                              size_t workspace_bytes, struct sim_stream *stream)
{
    struct sim_layout *const l[OPERANDS] = {a_layout, b_layout, c_layout, d_layout};
    struct product p = {.desc = *(const struct sim_matmul *)desc, .data = {a, b, c, d},
                        .alpha = *(const float *)alpha, .beta = *(const float *)beta};

    SIM_BEGIN();
    sim_queued();
    if (!handle || !do_sizes_fit(desc, l) || workspace_bytes < algorithm->workspace_bytes ||
        !is_aligned(workspace, DEFAULT_ALIGNMENT) || !is_aligned(p.desc.bias, BIAS_ALIGNMENT))
        return INVALID_VALUE;
    for (int i = 0; i < OPERANDS; i++) {
        if (!is_aligned(p.data[i], algorithm->alignment[i]))
            return INVALID_VALUE;
        p.layout[i] = *l[i];
    }
    p.inner = p.desc.transa ? p.layout[A].rows : p.layout[A].cols;
    sim_stream_give(stream, multiply, &p, sizeof(p));
    return 0;
}
