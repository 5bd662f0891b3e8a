/* SPDX-License-Identifier: Apache-2.0
 *
 * blas.c - cuBLASLt's interface as far as it is used, in our words: names and numbers as NVIDIA's manual
 * of cuBLAS gives them, the same in CUDA 12 and 13.
 *
 * cuBLASLt's matrices are in column order. Read so, our row-major c[m][n] = a b is its c(n x m) = b a:
 * the factors change places, and one that lies in memory as its transpose is transposed.
 */
#include "train/cuda/cuda_rank.h"

#include <dualpipe/library.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPUTE_32F = 68, R_32F = 0, R_16BF = 14 };
enum { DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS = 8, DESC_BIAS_TYPE = 26 };
enum { EPILOGUE_BIAS = 4, PREFERENCE_WORKSPACE = 1, PREFERENCE_ALIGNMENT_A = 5 };
enum { MAX_PLANS = 64, STREAMS = 2, OPERANDS = 4, MAX_ALIGNMENT = 256, BIAS_ALIGNMENT = 16 };

static const size_t workspace_bytes = (size_t)32 << 20;

struct algorithm {
    uint64_t data[8];
};

struct heuristic {
    struct algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct heuristic) == 96, "cublasLtMatmulHeuristicResult_t");

#define FUNCTIONS(X)                                                                               \
    X(Create, (void **handle))                                                                     \
    X(Destroy, (void *handle))                                                                     \
    X(MatmulDescCreate, (void **desc, int compute, int scale))                                     \
    X(MatmulDescDestroy, (void *desc))                                                             \
    X(MatmulDescSetAttribute, (void *desc, int attribute, const void *value, size_t bytes))        \
    X(MatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld))     \
    X(MatrixLayoutDestroy, (void *layout))                                                         \
    X(MatmulPreferenceCreate, (void **preference))                                                 \
    X(MatmulPreferenceDestroy, (void *preference))                                                 \
    X(MatmulPreferenceSetAttribute,                                                                \
      (void *preference, int attribute, const void *value, size_t bytes))                          \
    X(MatmulAlgoGetHeuristic, (void *handle, void *desc, void *a, void *b, void *c, void *d,       \
                               void *preference, int most, struct heuristic *out, int *count))     \
    X(Matmul, (void *handle, void *desc, const void *alpha, const void *a, void *a_layout,         \
               const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,     \
               void *d, void *d_layout, const struct algorithm *algorithm, void *workspace,        \
               size_t workspace_bytes, void *stream))

/* A product of some shape, ready to be queued again. Algorithms are chosen for the alignment that the
 * operands have, in cuBLASLt's order (its a is our b): parameters are packed, and the library would
 * take 256 bytes for granted. */
struct plan {
    struct product_args shape; /* pointers NULL */
    uint32_t alignment[OPERANDS];
    bool is_missing; /* no algorithm takes this shape at this alignment */
    void *desc, *a, *b, *c;
    struct heuristic how;
};

struct blas {
    struct dp_device *dev;
    bool bf16;
    void *library, *handle, *preference;
    void *workspaces[STREAMS], *streams[STREAMS]; /* one each: products of two run at once */
#define MEMBER(name, args) int(*name) args;
    FUNCTIONS(MEMBER)
#undef MEMBER
    struct plan plans[MAX_PLANS];
    int count;
};

static int load(struct blas *b)
{
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        NULL};

    if (dp_library_open(files, &b->library, NULL))
        return DP_ENOENT;
#define LOAD(name, args)                                                                           \
    *(void **)&b->name = dlsym(b->library, "cublasLt" #name);                                      \
    if (!b->name)                                                                                  \
        return DP_ENOENT;
    FUNCTIONS(LOAD)
#undef LOAD
    return 0;
}

static int prepare(struct blas *b)
{
    if (b->Create(&b->handle) || b->MatmulPreferenceCreate(&b->preference) ||
        b->MatmulPreferenceSetAttribute(b->preference, PREFERENCE_WORKSPACE, &workspace_bytes,
                                        sizeof(workspace_bytes)))
        return DP_EIO;
    int err = 0;
    for (int i = 0; i < STREAMS && !err; i++)
        err = dp_device_alloc(b->dev, DP_MEMORY_DEVICE, workspace_bytes, &b->workspaces[i]);
    return err;
}

int blas_open(struct dp_device *dev, bool bf16, struct blas **out)
{
    struct blas *b = calloc(1, sizeof(*b));

    if (!b)
        return DP_ENOMEM;
    b->dev = dev;
    b->bf16 = bf16;
    int err = load(b);
    if (!err)
        err = dp_device_enter(dev);
    if (!err) {
        err = prepare(b);
        dp_device_leave(dev);
    }
    if (err)
        blas_close(b);
    else
        *out = b;
    return err;
}

void blas_close(struct blas *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->count; i++) {
        void *const layouts[] = {b->plans[i].a, b->plans[i].b, b->plans[i].c};
        if (b->plans[i].desc)
            b->MatmulDescDestroy(b->plans[i].desc);
        for (int k = 0; k < 3; k++)
            if (layouts[k])
                b->MatrixLayoutDestroy(layouts[k]);
    }
    if (b->preference)
        b->MatmulPreferenceDestroy(b->preference);
    if (b->handle)
        b->Destroy(b->handle);
    for (int i = 0; i < STREAMS; i++)
        dp_device_free(b->dev, DP_MEMORY_DEVICE, b->workspaces[i]);
    free(b); /* the library stays: it may have threads */
}

static bool same_shape(const struct product_args *x, const struct product_args *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->a_row == y->a_row &&
           x->a_column == y->a_column && x->b_row == y->b_row && x->b_column == y->b_column &&
           x->wide == y->wide && !x->bias == !y->bias;
}

static uint32_t alignment_of(const void *data)
{
    const uintptr_t at = (uintptr_t)data | MAX_ALIGNMENT;

    return (uint32_t)(at & -at);
}

static int describe(struct blas *b, const struct product_args *p, struct plan *plan)
{
    const int type = b->bf16 ? R_16BF : R_32F, out = p->wide ? R_32F : type;
    const bool a_turned = p->a_column != 1, b_turned = p->b_column != 1;
    const int turn_first = b_turned, turn_second = a_turned, bias = EPILOGUE_BIAS;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    const int64_t a_ld = a_turned ? p->a_column : p->a_row, b_ld = b_turned ? p->b_column : p->b_row;
    int bad = b->MatmulDescCreate(&plan->desc, COMPUTE_32F, R_32F) ||
              b->MatmulDescSetAttribute(plan->desc, DESC_TRANSA, &turn_first, sizeof(int)) ||
              b->MatmulDescSetAttribute(plan->desc, DESC_TRANSB, &turn_second, sizeof(int)) ||
              b->MatrixLayoutCreate(&plan->b, type, b_turned ? k : n, b_turned ? n : k, b_ld) ||
              b->MatrixLayoutCreate(&plan->a, type, a_turned ? m : k, a_turned ? k : m, a_ld) ||
              b->MatrixLayoutCreate(&plan->c, out, n, m, p->n);

    if (!bad && p->bias)
        bad = b->MatmulDescSetAttribute(plan->desc, DESC_EPILOGUE, &bias, sizeof(int)) ||
              b->MatmulDescSetAttribute(plan->desc, DESC_BIAS, &p->bias, sizeof(p->bias)) ||
              b->MatmulDescSetAttribute(plan->desc, DESC_BIAS_TYPE, &type, sizeof(int));
    for (int i = 0; i < OPERANDS && !bad; i++)
        bad = b->MatmulPreferenceSetAttribute(b->preference, PREFERENCE_ALIGNMENT_A + i,
                                              &plan->alignment[i], sizeof(uint32_t));
    return bad ? DP_EIO : 0;
}

/* The plan of a shape, made when it is first asked for: the first step makes them all. */
static struct plan *plan_of(struct blas *b, const struct product_args *p)
{
    const uint32_t alignment[OPERANDS] = {alignment_of(p->b), alignment_of(p->a),
                                          alignment_of(p->c), alignment_of(p->c)};
    int count = 0;

    for (int i = 0; i < b->count; i++)
        if (same_shape(&b->plans[i].shape, p) &&
            !memcmp(b->plans[i].alignment, alignment, sizeof(alignment)))
            return &b->plans[i];
    if (b->count == MAX_PLANS)
        return NULL;
    struct plan *plan = &b->plans[b->count++];
    *plan = (struct plan){.shape = *p};
    memcpy(plan->alignment, alignment, sizeof(alignment));
    plan->is_missing = describe(b, p, plan) ||
                       b->MatmulAlgoGetHeuristic(b->handle, plan->desc, plan->b, plan->a, plan->c,
                                                 plan->c, b->preference, 1, &plan->how, &count) ||
                       !count;
    return plan;
}

/* NULL: more streams than there is workspace for. */
static void *workspace_of(struct blas *b, void *stream)
{
    int i = 0;

    while (i < STREAMS && b->streams[i] && b->streams[i] != stream)
        i++;
    if (i == STREAMS)
        return NULL;
    b->streams[i] = stream;
    return b->workspaces[i];
}

static int queue(struct blas *b, const struct product_args *p, void *stream)
{
    const float one = 1, beta = p->accumulate ? 1 : 0;
    struct plan *plan = (uintptr_t)p->bias % BIAS_ALIGNMENT ? NULL : plan_of(b, p);
    void *workspace = workspace_of(b, stream);

    if (!plan || plan->is_missing || !workspace)
        return DP_EUNSUPPORTED;
    if (p->bias &&
        b->MatmulDescSetAttribute(plan->desc, DESC_BIAS, &p->bias, sizeof(p->bias)))
        return DP_EIO;
    return b->Matmul(b->handle, plan->desc, &one, p->b, plan->b, p->a, plan->a, &beta, p->c, plan->c,
                     p->c, plan->c, &plan->how.algorithm, workspace, workspace_bytes, stream)
               ? DP_EIO
               : 0;
}

int blas_product(struct blas *b, const struct product_args *p, void *stream)
{
    int err = dp_device_enter(b->dev);

    if (err)
        return err;
    err = queue(b, p, stream);
    dp_device_leave(b->dev);
    return err;
}
