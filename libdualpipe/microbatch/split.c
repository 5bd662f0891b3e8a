/* SPDX-License-Identifier: Apache-2.0
 *
 * split.c - from whole arguments to micro-batches: pair every leaf with its spec, find the number
 * of micro-batches and the sizes, make the views.
 */
#include "microbatch/tree.h"

#include "base/fail.h"
#include "base/sized.h"

#include <dualpipe/microbatch.h>

#include <stdlib.h>
#include <string.h>

/* ---- sizes ----------------------------------------------------------------------------------- */

static int check_cut(int64_t extent, int32_t count)
{
    if (extent < 0)
        return dp_fail(DP_EINVAL, "extent: %lld, expected 0 or more", (long long)extent);
    if (count < 1)
        return dp_fail(DP_EINVAL, "number of pieces: %d, expected at least 1", count);
    return 0;
}

int dp_cut_window(enum dp_cut_rule rule, int64_t extent, int32_t count, int32_t piece,
                  int64_t *begin, int64_t *size)
{
    int err = check_cut(extent, count);
    if (err)
        return err;
    if (piece < 0 || piece >= count)
        return dp_fail(DP_EINVAL, "piece: %d, expected 0 to %d", piece, count - 1);

    const bool chunks = rule != DP_CUT_TENSOR_SPLIT;
    const int64_t longer = extent % count, each = extent / count + (chunks && longer);
    const int64_t whole = each ? extent / each : count;
    if (!chunks) {
        *begin = each * piece + (piece < longer ? piece : longer);
        *size = each + (piece < longer);
        return 0;
    }
    *begin = piece <= whole ? each * piece : extent;
    *size = extent - *begin < each ? extent - *begin : each;
    return 0;
}

int dp_cut_sizes(enum dp_cut_rule rule, int64_t extent, int32_t count, int64_t *sizes, int32_t *made)
{
    int err = check_cut(extent, count);
    if (err)
        return err;

    const bool chunks = rule != DP_CUT_TENSOR_SPLIT;
    const int64_t each = extent / count + (chunks && extent % count);
    const int32_t n = chunks && each ? (int32_t)((extent - 1) / each + 1) : count;
    for (int32_t i = 0; i < n; i++)
        sizes[i] = !chunks ? each + (i < extent % count) : i < n - 1 ? each : extent - each * (n - 1);
    *made = n;
    return 0;
}

/* ---- masks of attention, by blocks ----------------------------------------------------------- */

/* As leaves of an argument tree: the tables are cut, and the function of a mask goes on counting
 * samples as in the whole batch. */

enum { TABLES = 4 };

static const DLTensor *table_of(const struct dp_block_mask *mask, int i)
{
    const DLTensor *const tables[TABLES] = {mask->kv_num_blocks, mask->kv_indices,
                                            mask->full_kv_num_blocks, mask->full_kv_indices};
    return tables[i];
}

/* What is wrong with the mask, or NULL. */
static const char *block_mask_fault(const struct dp_block_mask *mask)
{
    if (!mask)
        return "is NULL, expected a struct dp_block_mask";
    if (!mask->kv_num_blocks || !mask->kv_indices)
        return "has no kv_num_blocks or no kv_indices";
    if (!mask->full_kv_num_blocks != !mask->full_kv_indices)
        return "has one of full_kv_num_blocks and full_kv_indices, expected both or none";
    for (int i = 0; i < TABLES; i++) {
        const DLTensor *t = table_of(mask, i);
        if (!t)
            continue;
        if (dp_tensor_fault(t))
            return dp_tensor_fault(t);
        if (!t->ndim || !dp_tensor_element_bytes(t))
            return "has a table without dimensions, or of elements that are not whole bytes";
        if (t->shape[0] != mask->kv_num_blocks->shape[0])
            return "has tables of different numbers of samples";
    }
    return NULL;
}

/* Samples that it is of; 1: it may be of any number, which share it. */
static int64_t block_mask_samples(const struct dp_block_mask *mask)
{
    return mask->kv_num_blocks->shape[0];
}

/* Whether a copy of a window of it (pack) would have to read memory that the CPU does not reach. */
static bool block_mask_is_out_of_reach(const struct dp_block_mask *mask)
{
    bool out = false;

    for (int i = 0; i < TABLES && !out; i++) {
        const DLTensor *t = table_of(mask, i);
        out = t && !dp_tensor_on_host(t) && !dp_tensor_compact(t);
    }
    return out;
}

static bool window_of(struct dp_arena *arena, const DLTensor *t, int64_t begin, int64_t size,
                      bool pack, const DLTensor **out)
{
    if (!t)
        return true;
    DLTensor *view = dp_arena_array(arena, 1, sizeof(*view));
    int64_t *dims = dp_arena_array(arena, 2 * (size_t)t->ndim, sizeof(*dims));
    if (!view || !dims)
        return false;
    dp_tensor_view(t, 0, begin, size, dims, view);
    *out = view;
    if (!pack || dp_tensor_compact(view))
        return true;
    DLTensor *copy = dp_tensor_new(arena, view->dtype, view->ndim, view->shape);
    if (copy)
        dp_tensor_copy_elements(copy, view);
    *out = copy;
    return copy != NULL;
}

/* Samples begin .. begin + size - 1 of a mask without fault: views, or compact copies where `pack`
 * is set and a view would not be compact. NULL: no memory. */
static const struct dp_block_mask *block_mask_window(struct dp_arena *arena,
                                                 const struct dp_block_mask *mask, int64_t begin,
                                                 int64_t size, bool pack)
{
    struct dp_block_mask *window = dp_arena_array(arena, 1, sizeof(*window));

    if (!window)
        return NULL;
    *window = *mask;
    window->first_sample = mask->first_sample + begin;
    bool made =
        window_of(arena, mask->kv_num_blocks, begin, size, pack, &window->kv_num_blocks) &&
        window_of(arena, mask->kv_indices, begin, size, pack, &window->kv_indices) &&
        window_of(arena, mask->full_kv_num_blocks, begin, size, pack,
                  &window->full_kv_num_blocks) &&
        window_of(arena, mask->full_kv_indices, begin, size, pack, &window->full_kv_indices);
    return made ? window : NULL;
}

/* A leaf of args or kwargs, and what is to happen to it. */
struct leaf {
    const struct dp_tree *value;
    bool cut; /* along dim; else the same for all */
    int dim;
};

/* args or kwargs. */
struct side {
    const char *name;
    const struct dp_tree *tree;
    const struct dp_split_options *options;
    struct leaf *leaves;
    int32_t count;
};

static const struct dp_tree no_args = {.kind = DP_TREE_TUPLE};
static const struct dp_tree no_kwargs = {.kind = DP_TREE_DICT};
static const struct dp_tree chunk_0 = {.kind = DP_TREE_CHUNK};
static const struct dp_tree replicate = {.kind = DP_TREE_REPLICATE};

/* ---- pair values with specs ----------------------------------------------------------------- */

static const char *spec_text(const struct dp_tree *spec)
{
    switch (spec->kind) {
    case DP_TREE_ABSENT:
        return "nothing";
    case DP_TREE_REDUCE:
        return "a reducer, which says how to merge";
    case DP_TREE_STACK:
        return "Stack, which says how to merge";
    default:
        return "a value";
    }
}

static int resolve_cut(const struct side *s, int32_t at, int dim)
{
    const DLTensor *t = s->leaves[at].value->tensor;
    const char *fault = dp_tensor_fault(t);
    char text[DP_TENSOR_TEXT];

    if (fault)
        return dp_fail_at(s->tree, s->name, at, DP_EINVAL, "the tensor %s", fault);
    if (!t->ndim)
        return dp_fail_at(s->tree, s->name, at, DP_EINVAL,
                          "Chunk(%d) of a tensor without dimensions, expected Replicate", dim);
    if (dim < -t->ndim || dim >= t->ndim)
        return dp_fail_at(s->tree, s->name, at, DP_EINVAL,
                          "Chunk(%d) of %s, expected a dimension from %d to %d", dim,
                          dp_tensor_text(t, text), -t->ndim, t->ndim - 1);
    if (!dp_tensor_element_bytes(t))
        return dp_fail_at(s->tree, s->name, at, DP_EUNSUPPORTED,
                          "Chunk(%d) of %s, expected elements of whole bytes", dim,
                          dp_tensor_text(t, text));
    if (s->options->mask && !dp_tensor_on_host(t))
        return dp_fail_at(s->tree, s->name, at, DP_EUNSUPPORTED,
                          "a mask of %s on device type %d, expected memory that the CPU reaches",
                          dp_tensor_text(t, text), (int)t->device.device_type);
    s->leaves[at].cut = true;
    s->leaves[at].dim = dim < 0 ? dim + t->ndim : dim;
    return 0;
}

/* One that all samples share has nothing to cut, nor has any where rows stay where they are. */
static int resolve_block_mask(const struct side *s, int32_t at, const struct dp_tree *spec)
{
    const struct dp_block_mask *mask = s->leaves[at].value->block_mask;
    const char *fault = block_mask_fault(mask);

    if (spec->kind == DP_TREE_REPLICATE)
        return 0;
    if (spec->kind != DP_TREE_CHUNK)
        return dp_fail_at(s->tree, s->name, at, DP_EINVAL,
                          "the spec of a mask of attention is %s, expected Chunk(0) or Replicate",
                          spec_text(spec));
    if (spec->dim)
        return dp_fail_at(s->tree, s->name, at, DP_EINVAL,
                          "Chunk(%d) of a mask of attention, expected Chunk(0), its samples",
                          spec->dim);
    if (fault)
        return dp_fail_at(s->tree, s->name, at, DP_EINVAL, "the mask of attention %s", fault);
    if (s->options->contiguous && block_mask_is_out_of_reach(mask))
        return dp_fail_at(s->tree, s->name, at, DP_EUNSUPPORTED,
                          "packing a mask of attention, expected memory that the CPU reaches");
    s->leaves[at].cut = block_mask_samples(mask) != 1 && !s->options->mask;
    return 0;
}

static int resolve(const struct side *s, int32_t at, const struct dp_tree *spec)
{
    enum dp_tree_kind kind = s->leaves[at].value->kind;

    if (kind == DP_TREE_BLOCK_MASK)
        return resolve_block_mask(s, at, spec);

    if (kind == DP_TREE_OPAQUE && spec->kind == DP_TREE_CHUNK && s->options->strict)
        return dp_fail_at(s->tree, s->name, at, DP_EINVAL,
                          "Chunk(%d) of an opaque value, expected Replicate", spec->dim);
    if (kind != DP_TREE_TENSOR || spec->kind == DP_TREE_REPLICATE)
        return 0;
    if (spec->kind == DP_TREE_CHUNK)
        return resolve_cut(s, at, spec->dim);
    return dp_fail_at(s->tree, s->name, at, DP_EINVAL,
                      "the spec of a tensor is %s, expected Chunk or Replicate", spec_text(spec));
}

static int resolve_default(const struct side *s, int32_t at)
{
    const enum dp_tree_kind kind = s->leaves[at].value->kind;
    const bool rows = kind == DP_TREE_TENSOR || kind == DP_TREE_BLOCK_MASK;
    return resolve(s, at, rows ? &chunk_0 : &replicate);
}

/* Argument i, whose leaves begin at `first`. */
static int pair_argument(const struct side *s, int32_t i, int32_t first, const struct dp_tree *spec)
{
    const struct dp_tree *value = &s->tree->items[i];
    int32_t leaves = dp_tree_leaves(value), specs = dp_tree_leaves(spec);

    if (spec->kind == DP_TREE_ABSENT)
        return 0; /* Replicate */
    if (leaves != specs)
        return dp_fail_at_item(s->tree, s->name, i, DP_EINVAL,
                               "%d leaves and %d leaves in its spec, expected a spec for each leaf",
                               leaves, specs);

    const struct dp_tree **flat = malloc(((size_t)specs + 1) * sizeof(*flat));
    if (!flat)
        return dp_fail(DP_ENOMEM, "%s: no memory for %d specs", s->name, specs);
    int err = dp_tree_flatten(spec, value, s->name, flat);
    for (int32_t k = 0; !err && k < leaves; k++)
        err = resolve(s, first + k, flat[k]);
    free(flat);
    return err;
}

/* The spec of argument i, or NULL for the default. */
static int find_spec(const struct side *s, const struct dp_tree *specs, int32_t i,
                     const struct dp_tree **out)
{
    *out = NULL;
    if (!specs)
        return 0;
    int32_t at = i;
    if (s->tree->kind == DP_TREE_DICT) {
        at = dp_tree_find(specs, s->tree->names[i], i);
        if (at < 0)
            return dp_fail(DP_EINVAL, "%s: no spec for \"%.64s\", expected one for each name",
                           s->name, s->tree->names[i]);
    }
    *out = &specs->items[at];
    return 0;
}

static int check_specs(const struct side *s, const struct dp_tree *specs)
{
    bool dict = s->tree->kind == DP_TREE_DICT;
    char name[32];
    int32_t leaves;

    if (!specs)
        return 0;
    strcat(strcpy(name, s->name), "_spec");
    int err = dp_tree_check(specs, name, false, &leaves);
    if (err)
        return err;
    if (dp_tree_is_leaf(specs) || (specs->kind == DP_TREE_DICT) != dict)
        return dp_fail(DP_EINVAL, "%s: expected a %s with a spec for each value", name,
                       dict ? "dict" : "tuple");
    if (specs->count != s->tree->count)
        return dp_fail(DP_EINVAL, "%s: %d values and %d specs, expected as many", s->name,
                       s->tree->count, specs->count);
    return 0;
}

static int pair_side(struct side *s, const struct dp_tree *specs)
{
    int err = check_specs(s, specs);

    for (int32_t i = 0, first = 0; !err && i < s->tree->count; i++) {
        const struct dp_tree *spec;
        int32_t leaves = dp_tree_leaves(&s->tree->items[i]);
        err = find_spec(s, specs, i, &spec);
        if (!err && (spec || s->options->default_spec == DP_DEFAULT_CHUNK))
            err = pair_argument(s, i, first, spec ? spec : &chunk_0);
        else
            for (int32_t k = 0; !err && k < leaves; k++)
                err = resolve_default(s, first + k);
        first += leaves;
    }
    return err;
}

static int side_init(struct side *s, const struct dp_tree *specs)
{
    int err = dp_tree_check(s->tree, s->name, true, &s->count);

    if (err)
        return err;
    const struct dp_tree **flat = malloc(((size_t)s->count + 1) * sizeof(*flat));
    s->leaves = calloc((size_t)s->count + 1, sizeof(*s->leaves));
    if (!flat || !s->leaves) {
        free(flat);
        return dp_fail(DP_ENOMEM, "%s: no memory for %d leaves", s->name, s->count);
    }
    err = dp_tree_flatten(s->tree, NULL, s->name, flat);
    for (int32_t i = 0; i < s->count; i++)
        s->leaves[i].value = flat[i];
    free(flat);
    return err ? err : pair_side(s, specs);
}

/* ---- the number of micro-batches ------------------------------------------------------------ */

/* Of a leaf that is cut. */
static int64_t rows_of(const struct leaf *l)
{
    return l->value->kind == DP_TREE_BLOCK_MASK ? block_mask_samples(l->value->block_mask)
                                                : l->value->tensor->shape[l->dim];
}

static void warn_shrunk(const struct side *s, int32_t at, int32_t count, int64_t rows)
{
    char path[DP_TREE_PATH];

    dp_log(DP_LOG_WARN, "%s: %lld rows along dimension %d, so %lld micro-batches instead of %d",
           dp_tree_path(s->tree, s->name, at, path), (long long)rows, s->leaves[at].dim,
           (long long)rows, count);
}

/* By the chunk rule: all tensors make as many pieces of `asked`, *made once one is found; 0: none has
 * been. */
static int side_made(const struct side *s, int32_t asked, int32_t *made)
{
    for (int32_t i = 0; i < s->count; i++) {
        if (!s->leaves[i].cut)
            continue;
        const int64_t rows = rows_of(&s->leaves[i]);
        if (asked < 1 || !rows)
            return dp_fail_at(s->tree, s->name, i, DP_EINVAL,
                              "%lld rows along dimension %d for %d micro-batches, expected at "
                              "least 1 of each",
                              (long long)rows, s->leaves[i].dim, asked);
        const int64_t each = rows / asked + (rows % asked != 0);
        const int32_t own = (int32_t)((rows - 1) / each + 1);
        if (*made && own != *made)
            return dp_fail_at(s->tree, s->name, i, DP_EINVAL,
                              "%lld rows along dimension %d are %d micro-batches of %lld, expected "
                              "%d, as many as of the tensors before",
                              (long long)rows, s->leaves[i].dim, own, (long long)each, *made);
        *made = own;
    }
    return 0;
}

/* Lower *count, if the policy lets this side do so. */
static int side_count(const struct side *s, int32_t *count)
{
    enum dp_shrink shrink = s->options->shrink;
    bool first = true;

    for (int32_t i = 0; i < s->count; i++) {
        if (!s->leaves[i].cut)
            continue;
        int64_t rows = rows_of(&s->leaves[i]);
        bool may = shrink == DP_SHRINK_MIN || (shrink == DP_SHRINK_FIRST && first);
        if (*count < 1)
            return dp_fail_at(s->tree, s->name, i, DP_EINVAL,
                              "a tensor to cut into 0 micro-batches, expected at least 1");
        if (rows < *count && rows && may) {
            if (shrink == DP_SHRINK_FIRST)
                warn_shrunk(s, i, *count, rows);
            *count = (int32_t)rows;
        } else if (rows < *count) {
            return dp_fail_at(s->tree, s->name, i, DP_EINVAL,
                              "%lld rows along dimension %d for %d micro-batches, expected at "
                              "least %d",
                              (long long)rows, s->leaves[i].dim, *count, may ? 1 : *count);
        }
        first = false;
    }
    return 0;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static const DLTensor *piece_view(struct dp_arena *arena, const struct leaf *l, int64_t begin,
                                  int64_t size)
{
    const DLTensor *t = l->value->tensor;
    DLTensor *view = dp_arena_array(arena, 1, sizeof(*view));
    int64_t *dims = dp_arena_array(arena, 2 * (size_t)t->ndim, sizeof(*dims));

    if (!view || !dims)
        return NULL;
    dp_tensor_view(t, l->dim, begin, size, dims, view);
    return view;
}

static const DLTensor *piece_compact(struct dp_arena *arena, const DLTensor *view)
{
    if (!view || dp_tensor_compact(view))
        return view;
    DLTensor *copy = dp_tensor_new(arena, view->dtype, view->ndim, view->shape);
    if (copy)
        dp_tensor_copy_elements(copy, view);
    return copy;
}

/* The whole tensor, zero but for the view's rows. */
static const DLTensor *piece_masked(struct dp_arena *arena, const struct leaf *l,
                                    const DLTensor *view, int64_t begin)
{
    const DLTensor *t = l->value->tensor;
    int64_t dims[2 * DP_TREE_MAX_NDIM];
    DLTensor window, *whole = dp_tensor_new(arena, t->dtype, t->ndim, t->shape);

    if (!view || !whole)
        return NULL;
    memset(whole->data, 0, (size_t)dp_tensor_numel(whole) * dp_tensor_element_bytes(whole));
    dp_tensor_view(whole, l->dim, begin, view->shape[l->dim], dims, &window);
    dp_tensor_copy_elements(&window, view);
    return whole;
}

static int piece_block_mask(struct dp_arena *arena, const struct side *s, int32_t at, int32_t mb,
                            int32_t count, struct dp_tree *out)
{
    const struct leaf *l = &s->leaves[at];
    int64_t begin, size;

    dp_cut_window(s->options->rule, rows_of(l), count, mb, &begin, &size);
    out->block_mask = block_mask_window(arena, l->value->block_mask, begin, size,
                                           s->options->contiguous);
    return out->block_mask
               ? 0
               : dp_fail_at(s->tree, s->name, at, DP_ENOMEM, "no memory for micro-batch %d", mb);
}

static int piece(struct dp_arena *arena, const struct side *s, int32_t at, int32_t mb,
                 int32_t count, struct dp_tree *out)
{
    const struct leaf *l = &s->leaves[at];
    int64_t begin, size;

    *out = *l->value;
    if (!l->cut)
        return 0;
    if (l->value->kind == DP_TREE_BLOCK_MASK)
        return piece_block_mask(arena, s, at, mb, count, out);
    dp_cut_window(s->options->rule, l->value->tensor->shape[l->dim], count, mb, &begin, &size);
    const DLTensor *t = piece_view(arena, l, begin, size);
    if (t && s->options->contiguous && !s->options->mask && !dp_tensor_compact(t) &&
        !dp_tensor_on_host(t))
        return dp_fail_at(s->tree, s->name, at, DP_EUNSUPPORTED,
                          "packing on device type %d, expected memory that the CPU reaches",
                          (int)t->device.device_type);
    if (s->options->mask)
        t = piece_masked(arena, l, t, begin);
    else if (s->options->contiguous)
        t = piece_compact(arena, t);
    if (!t)
        return dp_fail_at(s->tree, s->name, at, DP_ENOMEM, "no memory for micro-batch %d", mb);
    out->tensor = t;
    return 0;
}

static int side_build(struct dp_arena *arena, const struct side *s, int32_t count,
                      const struct dp_tree **out)
{
    struct dp_tree *trees = dp_arena_array(arena, (size_t)count, sizeof(*trees));
    struct dp_tree *leaves = malloc(((size_t)s->count + 1) * sizeof(*leaves));
    int err = 0;

    if (!trees || !leaves)
        err = dp_fail(DP_ENOMEM, "%s: no memory for %d micro-batches", s->name, count);
    for (int32_t mb = 0; !err && mb < count; mb++) {
        for (int32_t i = 0; !err && i < s->count; i++)
            err = piece(arena, s, i, mb, count, &leaves[i]);
        /* All share the names that the first one has copied. */
        const struct dp_tree *like = mb ? &trees[0] : s->tree;
        if (!err && !dp_tree_rebuild(arena, like, leaves, mb == 0, &trees[mb]))
            err = dp_fail(DP_ENOMEM, "%s: no memory for micro-batch %d", s->name, mb);
    }
    free(leaves);
    *out = trees;
    return err;
}

static int build(const struct side *args, const struct side *kwargs, int32_t count,
                 struct dp_microbatches **out)
{
    struct dp_arena *arena;
    struct dp_microbatches *mbs = dp_arena_object_new(sizeof(*mbs), &arena);

    if (!mbs)
        return dp_fail(DP_ENOMEM, "no memory for %d micro-batches", count);
    mbs->count = count;
    int err = side_build(arena, args, count, &mbs->args);
    if (!err)
        err = side_build(arena, kwargs, count, &mbs->kwargs);
    if (err)
        dp_microbatches_free(mbs);
    else
        *out = mbs;
    return err;
}

void dp_microbatches_free(struct dp_microbatches *mbs)
{
    dp_arena_object_free(mbs);
}

/* ---- the functions people came for ---------------------------------------------------------- */

static int check_sides(const struct dp_tree *args, const struct dp_tree *kwargs)
{
    if (args && args->kind != DP_TREE_TUPLE && args->kind != DP_TREE_LIST)
        return dp_fail(DP_EINVAL, "args: expected a tuple or a list of arguments");
    if (kwargs && kwargs->kind != DP_TREE_DICT)
        return dp_fail(DP_EINVAL, "kwargs: expected a dict of arguments");
    return 0;
}

static int check_options(const struct dp_split_options *o)
{
    if (!o)
        return dp_fail(DP_EINVAL, "options: NULL, expected at least the number of micro-batches");
    DP_RESERVED(o, "options");
    if (o->count < 0 || o->count > DP_MAX_MICROBATCHES)
        return dp_fail(DP_EINVAL, "count: %d micro-batches, expected 0 to %d", o->count,
                       DP_MAX_MICROBATCHES);
    if ((int)o->shrink < DP_SHRINK_NEVER || o->shrink > DP_SHRINK_MIN)
        return dp_fail(DP_EINVAL, "shrink: %d, expected a DP_SHRINK_ policy", (int)o->shrink);
    if ((int)o->rule < DP_CUT_TENSOR_SPLIT || o->rule > DP_CUT_CHUNK)
        return dp_fail(DP_EINVAL, "rule: %d, expected a DP_CUT_ rule", (int)o->rule);
    if (o->rule == DP_CUT_CHUNK && o->shrink != DP_SHRINK_NEVER)
        return dp_fail(DP_EINVAL,
                       "shrink: %d with DP_CUT_CHUNK, expected DP_SHRINK_NEVER; the rule says how "
                       "many micro-batches there are", (int)o->shrink);
    if ((int)o->default_spec < DP_DEFAULT_CHUNK || o->default_spec > DP_DEFAULT_BY_LEAF)
        return dp_fail(DP_EINVAL, "default_spec: %d, expected DP_DEFAULT_CHUNK or "
                       "DP_DEFAULT_BY_LEAF", (int)o->default_spec);
    return 0;
}

static int find_count(const struct side *args, const struct side *kwargs, int32_t *count)
{
    const int32_t asked = *count;
    int32_t made = 0;
    int err;

    if (args->options->rule == DP_CUT_TENSOR_SPLIT) {
        err = side_count(args, count);
        return err ? err : side_count(kwargs, count);
    }
    err = side_made(args, asked, &made);
    if (!err)
        err = side_made(kwargs, asked, &made);
    if (made)
        *count = made;
    return err;
}

/* Views cost nothing to make late, so args, whose number kwargs may still lower, are cut once,
 * with the final number. */
int dp_split(const struct dp_tree *args, const struct dp_tree *kwargs,
             const struct dp_split_options *options, struct dp_microbatches **out)
{
    struct side a = {"args", args ? args : &no_args, options, NULL, 0};
    struct side k = {"kwargs", kwargs ? kwargs : &no_kwargs, options, NULL, 0};
    int32_t count;
    int err = check_options(options);

    if (err || (err = check_sides(args, kwargs)))
        return err;
    count = options->count;
    if (!(err = side_init(&a, options->args_spec)) &&
        !(err = side_init(&k, options->kwargs_spec)) && !(err = find_count(&a, &k, &count)))
        err = build(&a, &k, count, out);
    free(a.leaves);
    free(k.leaves);
    return err;
}
