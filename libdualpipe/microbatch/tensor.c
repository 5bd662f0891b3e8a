/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "microbatch/internal.h"
#include "microbatch/tree.h"

#include <stdlib.h>
#include <string.h>

/* Whether data is an address; elsewhere it is a handle that only byte_offset moves. */
static bool has_addresses(const DLTensor *t)
{
    int type = (int)t->device.device_type;
    return dp_tensor_on_host(t) || type == kDLCUDA || type == kDLROCM;
}

void dp_tensor_view(const DLTensor *t, int dim, int64_t begin, int64_t size, int64_t *dims,
                    DLTensor *out)
{
    DLTensor view = *t;

    view.shape = dims;
    view.strides = dims + t->ndim;
    memcpy(view.shape, t->shape, (size_t)t->ndim * sizeof(*dims));
    dp_tensor_strides(t, view.strides);
    view.shape[dim] = size;

    /* As unsigned, since strides may be negative. */
    uint64_t offset = (uint64_t)begin * (uint64_t)view.strides[dim] * dp_tensor_element_bytes(t);
    if (has_addresses(t) && t->data)
        view.data = (void *)((uintptr_t)t->data + (uintptr_t)offset);
    else if (t->data)
        view.byte_offset += offset;
    if (dp_tensor_compact(&view))
        view.strides = NULL;
    *out = view;
}

int dp_tensor_window(const DLTensor *t, int dim, int64_t begin, int64_t size, int64_t *dims,
                     DLTensor *out)
{
    const char *fault = t ? dp_tensor_fault(t) : "is NULL";

    if (fault)
        return dp_fail(DP_EINVAL, "the tensor %s", fault);
    if (dim < -t->ndim || dim >= t->ndim)
        return dp_fail(DP_EINVAL, "dim: %d, of a tensor with %d dimensions", dim, t->ndim);
    dim += dim < 0 ? t->ndim : 0;
    if (begin < 0 || size < 0 || begin > t->shape[dim] || size > t->shape[dim] - begin)
        return dp_fail(DP_EINVAL, "window: %lld rows from %lld on, of a tensor with %lld",
                       (long long)size, (long long)begin, (long long)t->shape[dim]);
    if (!dp_tensor_element_bytes(t))
        return dp_fail(DP_EUNSUPPORTED, "elements of %d bits, expected whole bytes",
                       t->dtype.bits * t->dtype.lanes);
    dp_tensor_view(t, dim, begin, size, dims, out);
    return 0;
}

DLTensor *dp_tensor_new(struct dp_arena *arena, DLDataType dtype, int ndim, const int64_t *shape)
{
    DLTensor *t = dp_arena_array(arena, 1, sizeof(*t));
    int64_t *dims = dp_arena_array(arena, (size_t)ndim, sizeof(*dims));
    if (!t || !dims)
        return NULL;

    *t = (DLTensor){.device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = dims};
    if (ndim)
        memcpy(dims, shape, (size_t)ndim * sizeof(*dims));
    t->data = dp_arena_data(arena, (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
    return t->data ? t : NULL;
}

/* ---- walk ------------------------------------------------------------------------------------ */

/* Take the dimensions over, without those of extent 1, sorted by a's step, the longest first. */
static void take_dims(struct dp_walk *w, const DLTensor *a, const DLTensor *b)
{
    int64_t a_strides[DP_TREE_MAX_NDIM], b_strides[DP_TREE_MAX_NDIM];

    dp_tensor_strides(a, a_strides);
    dp_tensor_strides(b, b_strides);
    w->ndim = 0;
    for (int i = 0; i < a->ndim; i++) {
        int64_t step = a_strides[i] * (int64_t)w->bytes;
        int to = w->ndim;
        if (a->shape[i] == 1)
            continue;
        for (; to > 0 && llabs(w->a_step[to - 1]) < llabs(step); to--) {
            w->shape[to] = w->shape[to - 1];
            w->a_step[to] = w->a_step[to - 1];
            w->b_step[to] = w->b_step[to - 1];
        }
        w->shape[to] = a->shape[i];
        w->a_step[to] = step;
        w->b_step[to] = b_strides[i] * (int64_t)w->bytes;
        w->ndim++;
    }
}

/* Two dimensions are one where the outer one steps over exactly what the inner one covers. */
static void join_dims(struct dp_walk *w)
{
    int last = 0;

    for (int i = 1; i < w->ndim; i++) {
        if (w->a_step[last] == w->shape[i] * w->a_step[i] &&
            w->b_step[last] == w->shape[i] * w->b_step[i])
            w->shape[last] *= w->shape[i];
        else
            w->shape[++last] = w->shape[i];
        w->a_step[last] = w->a_step[i];
        w->b_step[last] = w->b_step[i];
    }
    if (w->ndim)
        w->ndim = last + 1;
}

static void swap(int64_t *values, int i, int j)
{
    int64_t v = values[i];
    values[i] = values[j];
    values[j] = v;
}

/* Make the dimension along which b's memory is densest the innermost one. */
static void densest_inner(struct dp_walk *w)
{
    int last = w->ndim - 1, densest = last;

    for (int i = last - 1; i >= 0; i--)
        if (llabs(w->b_step[i]) < llabs(w->b_step[densest]))
            densest = i;
    if (densest == last)
        return;
    swap(w->shape, densest, last);
    swap(w->a_step, densest, last);
    swap(w->b_step, densest, last);
}

/* Take the innermost dimension out of the loop. */
static void take_inner(struct dp_walk *w, int64_t *count, int64_t *a_step, int64_t *b_step)
{
    *count = 1;
    *a_step = *b_step = 0;
    if (!w->ndim)
        return;
    w->ndim--;
    *count = w->shape[w->ndim];
    *a_step = w->a_step[w->ndim];
    *b_step = w->b_step[w->ndim];
}

bool dp_walk_begin(struct dp_walk *w, const DLTensor *a, const DLTensor *b)
{
    if (!dp_tensor_numel(a))
        return false;
    w->a = dp_tensor_address(a);
    w->b = dp_tensor_address(b);
    w->bytes = dp_tensor_element_bytes(a);
    take_dims(w, a, b);
    join_dims(w);
    take_inner(w, &w->columns, &w->a_column, &w->b_column);
    densest_inner(w); /* a's order gave the columns; this one gives the rows of a transposition */
    take_inner(w, &w->rows, &w->a_row, &w->b_row);
    for (int i = 0; i < w->ndim; i++)
        w->at[i] = 0;
    return true;
}

bool dp_walk_next(struct dp_walk *w)
{
    for (int i = w->ndim - 1; i >= 0; i--) {
        w->a += w->a_step[i];
        w->b += w->b_step[i];
        if (++w->at[i] < w->shape[i])
            return true;
        w->at[i] = 0;
        w->a -= w->a_step[i] * w->shape[i];
        w->b -= w->b_step[i] * w->shape[i];
    }
    return false;
}
