/* SPDX-License-Identifier: Apache-2.0
 *
 * combine.c - the predefined reducers (sum, mean, weighted mean), and how the leaves of
 * micro-batches become one: folded, or side by side.
 */

#include "base/fail.h"
#include "base/fp16.h"
#include "microbatch/tree.h"

#include <dualpipe/microbatch.h>

#include <math.h>
#include <string.h>

/* ---- kernels: a row of `n` elements of `parts` numbers each --------------------------------- */

/* acc = (acc + weight * value) / divisor; integers know no other weight and divisor than 1. */
struct factors {
    double weight, divisor;
};
typedef void (*kernel_fn)(char *acc, int64_t acc_step, const char *value, int64_t value_step,
                          int64_t n, int parts, struct factors f);

/* (name, type in memory, type of arithmetic, load, store, result). Signed integers are added as
 * unsigned ones, which gives the same bits and wraps. */
#define KERNELS(K)                                                                                 \
    K(u8, uint8_t, uint32_t, (uint32_t), (uint8_t), a + v)                                         \
    K(u16, uint16_t, uint32_t, (uint32_t), (uint16_t), a + v)                                      \
    K(u32, uint32_t, uint32_t, (uint32_t), (uint32_t), a + v)                                      \
    K(u64, uint64_t, uint64_t, (uint64_t), (uint64_t), a + v)                                      \
    K(f16, uint16_t, double, dp_float16_load, dp_float16_store, (float)AVERAGE)                    \
    K(bf16, uint16_t, double, dp_bfloat16_load, dp_bfloat16_store, (float)AVERAGE)                 \
    K(f32, float, double, (double), (float), AVERAGE)                                              \
    K(f64, double, double, (double), (double), AVERAGE)
#define AVERAGE ((a + f.weight * v) / f.divisor)

#define KERNEL(name, memory, arithmetic, load, store, result)                                      \
    static void add_##name(char *acc, int64_t acc_step, const char *value, int64_t value_step,     \
                           int64_t n, int parts, struct factors f)                                 \
    {                                                                                              \
        (void)f;                                                                                   \
        for (int64_t i = 0; i < n; i++, acc += acc_step, value += value_step)                      \
            for (size_t p = 0; p < (size_t)parts; p++) {                                           \
                memory to, from;                                                                   \
                memcpy(&to, acc + p * sizeof(to), sizeof(to));                                     \
                memcpy(&from, value + p * sizeof(from), sizeof(from));                             \
                arithmetic a = load(to), v = load(from);                                           \
                to = store(result);                                                                \
                memcpy(acc + p * sizeof(to), &to, sizeof(to));                                     \
            }                                                                                      \
    }
KERNELS(KERNEL)

/* NULL: cannot be added. *parts: numbers in an element. */
static kernel_fn find_kernel(DLDataType type, bool weighted, int *parts)
{
    int bits = type.bits;
    bool brain = type.code == kDLBfloat;

    *parts = type.lanes;
    switch (type.code) {
    case kDLInt:
    case kDLUInt:
        if (weighted)
            return NULL;
        return bits == 8 ? add_u8 : bits == 16 ? add_u16 : bits == 32 ? add_u32
             : bits == 64 ? add_u64 : NULL;
    case kDLComplex:
        *parts *= 2;
        bits /= 2;
        /* fall through */
    case kDLFloat:
    case kDLBfloat:
        if (bits == 16)
            return brain ? add_bf16 : add_f16;
        return brain ? NULL : bits == 32 ? add_f32 : bits == 64 ? add_f64 : NULL;
    default:
        return NULL;
    }
}

static int add(const struct dp_tree *acc, const struct dp_tree *value, bool weighted,
               struct factors f)
{
    struct dp_walk w;
    int parts;

    if (acc->kind != DP_TREE_TENSOR || value->kind != DP_TREE_TENSOR)
        return DP_EUNSUPPORTED;
    if (!dp_tensor_same_dtype(acc->tensor, value->tensor) ||
        !dp_tensor_same_shape(acc->tensor, value->tensor))
        return DP_EMISMATCH;
    kernel_fn kernel = find_kernel(acc->tensor->dtype, weighted, &parts);
    if (!kernel || !dp_tensor_on_host(value->tensor))
        return DP_EUNSUPPORTED;
    for (bool more = dp_walk_begin(&w, acc->tensor, value->tensor); more; more = dp_walk_next(&w))
        for (int64_t r = 0; r < w.rows; r++)
            kernel(w.a + r * w.a_row, w.a_column, w.b + r * w.b_row, w.b_column, w.columns, parts,
                   f);
    return 0;
}

/* ---- reducers ------------------------------------------------------------------------------- */

static int fold_sum(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                    int32_t count)
{
    (void)user, (void)mb, (void)count;
    return add(acc, value, false, (struct factors){1, 1});
}

/* The division is part of the last addition, so that nothing is rounded in between. */
static int fold_mean(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                     int32_t count)
{
    (void)user;
    return add(acc, value, true, (struct factors){1, mb == count - 1 ? count : 1});
}

static double total(const struct dp_weights *w)
{
    double sum = 0;

    for (int32_t i = 0; i < w->count; i++)
        sum += w->weights[i];
    return sum;
}

static int fold_weighted(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                         int32_t count)
{
    const struct dp_weights *w = user;
    return add(acc, value, true, (struct factors){w->weights[mb], mb == count - 1 ? total(w) : 1});
}

/* Whether its user data fits `count` micro-batches, where that is known. DP_EINVAL. */
static int reducer_check(const struct dp_reducer *r, int32_t count)
{
    const struct dp_weights *w = r->user;

    if (r->fold != fold_weighted)
        return 0;
    if (!w || !w->weights || w->count != count)
        return dp_fail(DP_EINVAL, "weighted mean: %d weights for %d micro-batches",
                       w && w->weights ? w->count : 0, count);
    if (!isfinite(total(w)) || total(w) == 0)
        return dp_fail(DP_EINVAL, "weighted mean: the weights sum up to %g, expected a finite "
                       "number other than 0", total(w));
    return 0;
}

const struct dp_reducer *dp_reducer_sum(void)
{
    static const struct dp_reducer sum = {.name = "sum", .fold = fold_sum};
    return &sum;
}

const struct dp_reducer *dp_reducer_mean(void)
{
    static const struct dp_reducer mean = {.name = "mean", .fold = fold_mean};
    return &mean;
}

struct dp_reducer dp_reducer_weighted_mean(const struct dp_weights *weights)
{
    return (struct dp_reducer){
        .name = "weighted mean", .fold = fold_weighted, .user = (void *)(uintptr_t)weights};
}

#define fail_here(c, err, ...) dp_fail_at((c)->tree, "result", (c)->leaf, err, __VA_ARGS__)

static int no_memory(const struct dp_column *c)
{
    return fail_here(c, DP_ENOMEM, "no memory to merge %d micro-batches", c->count);
}

/* "float32[4]", "an opaque value", "nothing" */
static const char *value_text(const struct dp_tree *value, char *text)
{
    switch (value->kind) {
    case DP_TREE_TENSOR:
        return dp_tensor_text(value->tensor, text);
    case DP_TREE_OPAQUE:
        return "an opaque value";
    case DP_TREE_BLOCK_MASK:
        return "a mask of attention";
    default:
        return "nothing";
    }
}

/* ---- checks --------------------------------------------------------------------------------- */

static int check_formed(const struct dp_column *c, int32_t mb)
{
    const struct dp_tree *v = c->values[mb];
    const char *fault = v->kind == DP_TREE_TENSOR ? dp_tensor_fault(v->tensor) : NULL;

    return fault ? fail_here(c, DP_EINVAL, "the tensor of micro-batch %d %s", mb, fault) : 0;
}

static int check_readable(const struct dp_column *c, int32_t mb)
{
    const DLTensor *t = c->values[mb]->tensor;
    char text[DP_TENSOR_TEXT];

    if (!dp_tensor_element_bytes(t))
        return fail_here(c, DP_EUNSUPPORTED,
                         "micro-batch %d has %s, expected elements of whole bytes", mb,
                         dp_tensor_text(t, text));
    if (!dp_tensor_on_host(t))
        return fail_here(c, DP_EUNSUPPORTED,
                         "micro-batch %d has %s on device type %d, expected memory that the CPU "
                         "reaches",
                         mb, dp_tensor_text(t, text), (int)t->device.device_type);
    return 0;
}

/* Tensors everywhere, all fit to be copied; `how` says what is to be done with them. */
static int check_tensors(const struct dp_column *c, const char *how)
{
    char text[DP_TENSOR_TEXT];
    int err = 0;

    for (int32_t mb = 0; !err && mb < c->count; mb++) {
        if (c->values[mb]->kind != DP_TREE_TENSOR)
            return fail_here(c, DP_EINVAL,
                             "micro-batch %d has %s, %s wants tensors (expected Replicate or a "
                             "reducer as its spec)",
                             mb, value_text(c->values[mb], text), how);
        err = check_formed(c, mb);
        if (!err)
            err = check_readable(c, mb);
    }
    return err;
}

/* The dtype and shape of micro-batch 0, but for dimension `but` (-1: all of it). */
static int check_alike(const struct dp_column *c, const char *how, int but)
{
    const DLTensor *first = c->values[0]->tensor;
    char text[DP_TENSOR_TEXT], first_text[DP_TENSOR_TEXT];

    for (int32_t mb = 1; mb < c->count; mb++) {
        const DLTensor *t = c->values[mb]->tensor;
        bool alike = dp_tensor_same_dtype(first, t) && first->ndim == t->ndim;
        for (int i = 0; alike && i < t->ndim; i++)
            alike = i == but || first->shape[i] == t->shape[i];
        if (!alike)
            return fail_here(c, DP_EMISMATCH,
                             "micro-batch %d has %s and micro-batch 0 %s, which do not fit under "
                             "%s",
                             mb, dp_tensor_text(t, text), dp_tensor_text(first, first_text), how);
    }
    return 0;
}

/* Count *dim, one of `ndim`, from the front. */
static int check_dim(const struct dp_column *c, const char *how, int ndim, int *dim)
{
    char text[DP_TENSOR_TEXT];

    if (!ndim)
        return fail_here(c, DP_EINVAL,
                         "%s(%d) of tensors without dimensions, expected Stack or a reducer such "
                         "as sum",
                         how, *dim);
    if (*dim < -ndim || *dim >= ndim)
        return fail_here(c, DP_EINVAL, "%s(%d) of %s, expected a dimension from %d to %d", how,
                         *dim, value_text(c->values[0], text), -ndim, ndim - 1);
    *dim += *dim < 0 ? ndim : 0;
    return 0;
}

/* The result may be too large even if no part of it is. */
static int new_tensor(const struct dp_column *c, int ndim, int64_t *shape, DLTensor **out)
{
    DLTensor plan = {.data = "", .ndim = ndim, .dtype = c->values[0]->tensor->dtype,
                     .shape = shape};
    const char *fault = dp_tensor_fault(&plan);

    if (fault)
        return fail_here(c, DP_EINVAL, "the merged tensor %s", fault);
    *out = dp_tensor_new(c->arena, plan.dtype, ndim, shape);
    return *out ? 0 : no_memory(c);
}

/* ---- tensors side by side ------------------------------------------------------------------- */

static int total_rows(const struct dp_column *c, int dim, int64_t *rows)
{
    *rows = 0;
    for (int32_t mb = 0; mb < c->count; mb++)
        if (__builtin_add_overflow(*rows, c->values[mb]->tensor->shape[dim], rows))
            return fail_here(c, DP_EINVAL, "more rows than can be counted");
    return 0;
}

int dp_combine_chunk(const struct dp_column *c, int dim, struct dp_tree *out)
{
    int64_t shape[DP_TREE_MAX_NDIM], dims[2 * DP_TREE_MAX_NDIM], at = 0;
    const DLTensor *first = c->values[0]->tensor;
    DLTensor *whole, window;
    int err;

    if ((err = check_tensors(c, "Chunk")) || (err = check_dim(c, "Chunk", first->ndim, &dim)) ||
        (err = check_alike(c, "Chunk", dim)))
        return err;
    memcpy(shape, first->shape, (size_t)first->ndim * sizeof(*shape));
    if ((err = total_rows(c, dim, &shape[dim])) ||
        (err = new_tensor(c, first->ndim, shape, &whole)))
        return err;
    for (int32_t mb = 0; mb < c->count; mb++) {
        const DLTensor *t = c->values[mb]->tensor;
        dp_tensor_view(whole, dim, at, t->shape[dim], dims, &window);
        dp_tensor_copy_elements(&window, t);
        at += t->shape[dim];
    }
    *out = dp_tensor(whole);
    return 0;
}

int dp_combine_masked(const struct dp_column *c, int dim, enum dp_cut_rule rule,
                      struct dp_tree *out)
{
    int64_t from_dims[2 * DP_TREE_MAX_NDIM], to_dims[2 * DP_TREE_MAX_NDIM], begin, size;
    const DLTensor *first = c->values[0]->tensor;
    DLTensor *whole, from, to;
    int err;

    if ((err = check_tensors(c, "a mask")) || (err = check_dim(c, "Chunk", first->ndim, &dim)) ||
        (err = check_alike(c, "a mask", -1)) ||
        (err = new_tensor(c, first->ndim, first->shape, &whole)))
        return err;
    for (int32_t mb = 0; mb < c->count; mb++) {
        dp_cut_window(rule, first->shape[dim], c->count, mb, &begin, &size);
        dp_tensor_view(c->values[mb]->tensor, dim, begin, size, from_dims, &from);
        dp_tensor_view(whole, dim, begin, size, to_dims, &to);
        dp_tensor_copy_elements(&to, &from);
    }
    *out = dp_tensor(whole);
    return 0;
}

/* dst with dims[0 .. ndim] and an extent more at `dim` than src. */
static void insert_extent(int64_t *dst, const int64_t *src, int ndim, int dim, int64_t extent)
{
    for (int i = 0; i < ndim; i++)
        dst[i + (i >= dim)] = src[i];
    dst[dim] = extent;
}

int dp_combine_stack(const struct dp_column *c, int dim, struct dp_tree *out)
{
    int64_t shape[DP_TREE_MAX_NDIM], dims[2 * DP_TREE_MAX_NDIM], strides[DP_TREE_MAX_NDIM];
    int64_t row_shape[DP_TREE_MAX_NDIM], row_strides[DP_TREE_MAX_NDIM];
    const DLTensor *first = c->values[0]->tensor;
    DLTensor *whole, window;
    int err;

    if ((err = check_tensors(c, "Stack")) ||
        (err = check_dim(c, "Stack", first->ndim + 1, &dim)) ||
        (err = check_alike(c, "Stack", -1)))
        return err;
    if (first->ndim == DP_TREE_MAX_NDIM)
        return fail_here(c, DP_EINVAL, "Stack(%d) of %d dimensions, expected fewer than %d", dim,
                         first->ndim, DP_TREE_MAX_NDIM);
    insert_extent(shape, first->shape, first->ndim, dim, c->count);
    if ((err = new_tensor(c, first->ndim + 1, shape, &whole)))
        return err;
    insert_extent(row_shape, first->shape, first->ndim, dim, 1);
    for (int32_t mb = 0; mb < c->count; mb++) {
        DLTensor row = *c->values[mb]->tensor;
        dp_tensor_strides(&row, strides);
        insert_extent(row_strides, strides, row.ndim, dim, 0);
        row.ndim++;
        row.shape = row_shape;
        row.strides = row_strides;
        dp_tensor_view(whole, dim, mb, 1, dims, &window);
        dp_tensor_copy_elements(&window, &row);
    }
    *out = dp_tensor(whole);
    return 0;
}

/* ---- fold ----------------------------------------------------------------------------------- */

/* The tensor that the accumulator begins as, or NULL for a leaf of another kind. */
static const DLTensor *fold_begin(const struct dp_column *c, const struct dp_reducer *r)
{
    if (r->init.kind == DP_TREE_ABSENT && c->values[0]->kind == DP_TREE_TENSOR)
        return c->values[0]->tensor;
    return r->init.kind == DP_TREE_TENSOR ? r->init.tensor : NULL;
}

static int fold_init(const struct dp_column *c, const struct dp_reducer *r, struct dp_tree *acc)
{
    const DLTensor *like = fold_begin(c, r);
    const char *fault = like ? dp_tensor_fault(like) : NULL;

    *acc = r->init;
    if (!like)
        return 0;
    if (fault)
        return fail_here(c, DP_EINVAL, "the tensor that reducer '%s' begins with %s", r->name,
                         fault);
    if (!dp_tensor_element_bytes(like) || !dp_tensor_on_host(like))
        return fail_here(c, DP_EUNSUPPORTED,
                         "the tensor that reducer '%s' begins with: expected whole bytes in memory "
                         "that the CPU reaches",
                         r->name);
    DLTensor *t = dp_tensor_new(c->arena, like->dtype, like->ndim, like->shape);
    if (!t)
        return no_memory(c);
    if (r->init.kind == DP_TREE_TENSOR)
        dp_tensor_copy_elements(t, like);
    else
        memset(t->data, 0, (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
    *acc = dp_tensor(t);
    return 0;
}

static int fold_failed(const struct dp_column *c, const struct dp_reducer *r, int32_t mb,
                       const struct dp_tree *acc, int err)
{
    char text[DP_TENSOR_TEXT], acc_text[DP_TENSOR_TEXT];
    const char *value = value_text(c->values[mb], text);

    if (err == DP_EMISMATCH)
        return fail_here(c, err, "micro-batch %d has %s, which reducer '%s' cannot fit to %s", mb,
                         value, r->name, value_text(acc, acc_text));
    if (err == DP_EUNSUPPORTED)
        return fail_here(c, err, "micro-batch %d has %s, which reducer '%s' cannot take", mb, value,
                         r->name);
    return fail_here(c, DP_ECALLBACK, "reducer '%s' failed with %d at micro-batch %d", r->name, err,
                     mb);
}

int dp_combine_fold(const struct dp_column *c, const struct dp_reducer *r, struct dp_tree *out)
{
    struct dp_reducer named = *r;
    struct dp_tree acc;
    int err = reducer_check(r, c->count);

    named.name = r->name ? r->name : "?";
    for (int32_t mb = 0; !err && mb < c->count; mb++)
        err = check_formed(c, mb);
    if (err || (err = fold_init(c, &named, &acc)))
        return err;
    for (int32_t mb = 0; mb < c->count; mb++)
        if ((err = r->fold(r->user, &acc, c->values[mb], mb, c->count)))
            return fold_failed(c, &named, mb, &acc, err);
    *out = acc;
    return 0;
}

/* ---- equality ------------------------------------------------------------------------------- */

/* Whether no element need be read: one and the same memory, seen in the same way. */
static bool same_view(const DLTensor *a, const DLTensor *b)
{
    int64_t a_strides[DP_TREE_MAX_NDIM], b_strides[DP_TREE_MAX_NDIM];

    if (a->device.device_type != b->device.device_type ||
        a->device.device_id != b->device.device_id || a->data != b->data ||
        a->byte_offset != b->byte_offset)
        return false;
    dp_tensor_strides(a, a_strides);
    dp_tensor_strides(b, b_strides);
    return !a->ndim || !memcmp(a_strides, b_strides, (size_t)a->ndim * sizeof(*a_strides));
}

static int equal_tensors(const struct dp_column *c, int32_t mb, bool *equal)
{
    const DLTensor *a = c->values[0]->tensor, *b = c->values[mb]->tensor;
    int err;

    *equal = a == b;
    if (a == b)
        return 0;
    if ((err = check_formed(c, 0)) || (err = check_formed(c, mb)))
        return err;
    if (!dp_tensor_same_dtype(a, b) || !dp_tensor_same_shape(a, b))
        return 0;
    *equal = same_view(a, b);
    if (*equal)
        return 0;
    if ((err = check_readable(c, 0)) || (err = check_readable(c, mb)))
        return err;
    *equal = dp_tensor_same_elements(a, b);
    return 0;
}

static int equal_values(const struct dp_column *c, int32_t mb, const struct dp_merge_options *o,
                        bool *equal)
{
    const struct dp_tree *a = c->values[0], *b = c->values[mb];

    *equal = a->kind == b->kind;
    if (!*equal)
        return 0;
    if (a->kind == DP_TREE_TENSOR)
        return equal_tensors(c, mb, equal);
    if (a->kind == DP_TREE_BLOCK_MASK)
        *equal = a->block_mask == b->block_mask;
    if (a->kind == DP_TREE_OPAQUE)
        *equal = o->equal ? o->equal(o->user, a->opaque, b->opaque) : a->opaque == b->opaque;
    return 0;
}

int dp_combine_equal(const struct dp_column *c, const struct dp_merge_options *options,
                     struct dp_tree *out)
{
    char text[DP_TENSOR_TEXT], first[DP_TENSOR_TEXT];
    bool equal;

    for (int32_t mb = 1; mb < c->count; mb++) {
        int err = equal_values(c, mb, options, &equal);
        if (err)
            return err;
        if (!equal)
            return fail_here(c, DP_EMISMATCH,
                             "micro-batch %d has another value (%s) than micro-batch 0 (%s), "
                             "expected equal ones under Replicate",
                             mb, value_text(c->values[mb], text),
                             value_text(c->values[0], first));
    }
    *out = *c->values[0];
    return 0;
}
