/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch/internal.h"
#include "trainer/batch.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "trainer/model.h"

#include <dualpipe/microbatch.h>

#include <stdlib.h>
#include <string.h>

int64_t batch_rows(int64_t rows, int32_t microbatches, int32_t mb)
{
    return rows / microbatches + (mb < rows % microbatches);
}

int64_t batch_rows_before(int64_t rows, int32_t microbatches, int32_t mb)
{
    const int64_t more = rows % microbatches;

    return rows / microbatches * mb + (mb < more ? mb : more);
}

/* A micro-batch of a loader's, as the device has it. */
struct landed {
    DLTensor tensors[DP_MAX_TENSORS];
    struct dp_tree leaves[DP_MAX_TENSORS], args;
};

struct batch_part {
    struct batch_part_config config;
    struct dp_microbatches *cut;
    struct dp_tree leaves[DP_MAX_TENSORS];
    DLTensor tensors[DP_MAX_TENSORS];
    int64_t dims[DP_MAX_TENSORS][2 * DP_TREE_MAX_NDIM];
    struct dp_loader shifted;
    const struct dp_loader *loader; /* of all replicas; NULL: none */
    int32_t first;
    /* A device's, where what is in the host's memory goes: the micro-batches of each tensor. */
    void *there, *pinned;          /* NULL: nothing has come so far */
    size_t at[DP_MAX_TENSORS + 1]; /* of each tensor, and the end */
    struct landed *landed;         /* [config.most] */
};

/* ---- to a device ----------------------------------------------------------------------------- */

static size_t bytes_of_mb(const struct batch_part *p, int32_t k)
{
    return model_spec_bytes(&p->config.border->tensors[k]);
}

static int make_room(struct batch_part *p)
{
    int err = 0;

    for (int32_t k = 0; k < p->config.border->count; k++)
        p->at[k + 1] = p->at[k] + place_aligned(bytes_of_mb(p, k) * (size_t)p->config.most);
    p->landed = calloc((size_t)p->config.most, sizeof(*p->landed));
    if (!p->landed)
        return dp_fail(DP_ENOMEM, "no memory for %s", p->config.what);
    err = place_alloc(p->config.place, DP_MEMORY_DEVICE, p->at[p->config.border->count], &p->there);
    if (!err)
        err = place_alloc(p->config.place, DP_MEMORY_PINNED, p->at[p->config.border->count],
                          &p->pinned);
    return err ? err : place_wait(p->config.place);
}

/* *t becomes a copy in the device's memory, `offset` bytes behind where tensor k begins. */
static int land(struct batch_part *p, int32_t k, size_t offset, size_t room, DLTensor *t)
{
    struct place *place = p->config.place;
    const size_t bytes = (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t);
    int err = 0;

    if (!place_device(place) || place_has(place, t))
        return 0;
    if (k >= p->config.border->count || bytes > room)
        return dp_fail(DP_EMISMATCH,
                       "%s, tensor %d: %zu bytes, expected %d tensors of at most %zu here",
                       p->config.what, k, bytes, p->config.border->count, room);
    if (!p->there)
        err = make_room(p);
    if (err)
        return err;
    DLTensor pinned = *t;
    pinned.data = (char *)p->pinned + p->at[k] + offset;
    pinned.byte_offset = 0;
    pinned.strides = NULL;
    err = dp_tensor_copy(&pinned, t);
    *t = pinned;
    t->data = (char *)p->there + p->at[k] + offset;
    t->device = place_dl(place);
    return err ? err : place_copy(place, t->data, pinned.data, bytes);
}

/* ---- loaders --------------------------------------------------------------------------------- */

static int land_args(struct batch_part *p, int32_t mb, const struct dp_tree **args,
                     const struct dp_tree *kwargs)
{
    struct landed *l = &p->landed[mb];
    int err = 0;

    if (kwargs || !*args || (*args)->count > DP_MAX_TENSORS)
        return dp_callback_error(DP_EUNSUPPORTED,
                                 "%s for a device: expected a tuple or list of up to %d tensors",
                                 p->config.what, DP_MAX_TENSORS);
    for (int32_t k = 0; k < (*args)->count && !err; k++) {
        if ((*args)->items[k].kind != DP_TREE_TENSOR)
            return dp_callback_error(DP_EINVAL, "%s, %d: expected a tensor", p->config.what, k);
        l->tensors[k] = *(*args)->items[k].tensor;
        err = land(p, k, bytes_of_mb(p, k) * (size_t)mb, bytes_of_mb(p, k), &l->tensors[k]);
        l->leaves[k] = dp_tensor(&l->tensors[k]);
    }
    l->args = dp_tuple((*args)->count, l->leaves);
    *args = &l->args;
    return err ? dp_callback_error(err, "%s", dp_last_error()) : 0;
}

static int load(void *user, int32_t mb, const struct dp_tree **args, const struct dp_tree **kwargs)
{
    struct batch_part *p = user;
    const int err = p->loader->load(p->loader->user, p->first + mb, args, kwargs);

    return err || !place_device(p->config.place) ? err : land_args(p, mb, args, *kwargs);
}

static void release(void *user, int32_t mb)
{
    const struct batch_part *p = user;

    if (p->loader->release)
        p->loader->release(p->loader->user, p->first + mb);
}

/* ---- all rows -------------------------------------------------------------------------------- */

static int cut(struct batch_part *p, const struct dp_tree *tree, int64_t rows, int32_t count)
{
    const int32_t m = p->config.microbatches;
    const int64_t begin = batch_rows_before(rows, m, p->first);
    const int64_t size = batch_rows_before(rows, m, p->first + count) - begin;
    const char *what = p->config.what;
    int err = 0;

    if ((tree->kind != DP_TREE_TUPLE && tree->kind != DP_TREE_LIST) || tree->count < 1 ||
        tree->count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "%s: expected a tuple or list of 1 to %d tensors", what,
                       DP_MAX_TENSORS);
    for (int32_t k = 0; k < tree->count && !err; k++) {
        const DLTensor *t = tree->items[k].kind == DP_TREE_TENSOR ? tree->items[k].tensor : NULL;
        if (!t || t->ndim < 1 || t->shape[0] != rows)
            return dp_fail(DP_EINVAL, "%s, tensor %d: expected one of %lld rows", what, k,
                           (long long)rows);
        err = dp_tensor_window(t, 0, begin, size, p->dims[k], &p->tensors[k]);
        if (!err)
            err = land(p, k, 0, bytes_of_mb(p, k) * (size_t)count, &p->tensors[k]);
        p->leaves[k] = dp_tensor(&p->tensors[k]);
    }
    const struct dp_tree args = dp_tuple(tree->count, p->leaves);
    return err ? err : dp_split(&args, NULL, &(struct dp_split_options){.count = count}, &p->cut);
}

int batch_part_begin(struct batch_part *p, const struct dp_tree *tree,
                     const struct dp_loader *loader, int64_t rows, int32_t first, int32_t count)
{
    p->first = first;
    if (loader) {
        p->loader = loader;
        p->shifted = (struct dp_loader){load, release, p};
        return place_device(p->config.place) && !p->there ? make_room(p) : 0;
    }
    return tree ? cut(p, tree, rows, count) : 0; /* the pipeline says that it is missing */
}

const struct dp_microbatches *batch_part_cut(const struct batch_part *p)
{
    return p ? p->cut : NULL;
}

const struct dp_loader *batch_part_loader(const struct batch_part *p)
{
    return p && p->loader ? &p->shifted : NULL;
}

void batch_part_end(struct batch_part *p)
{
    if (!p)
        return;
    dp_microbatches_free(p->cut);
    p->cut = NULL;
    p->loader = NULL;
}

int batch_part_new(const struct batch_part_config *config, struct batch_part **out)
{
    struct batch_part *p = calloc(1, sizeof(*p));

    if (!p)
        return dp_fail(DP_ENOMEM, "no memory for %s", config->what);
    p->config = *config;
    *out = p;
    return 0;
}

void batch_part_free(struct batch_part *p)
{
    batch_part_end(p);
    if (!p)
        return;
    place_release(p->config.place, DP_MEMORY_DEVICE, p->there);
    place_release(p->config.place, DP_MEMORY_PINNED, p->pinned);
    free(p->landed);
    free(p);
}
