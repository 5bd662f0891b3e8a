/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.h - argument and spec trees as lists of their leaves, and back.
 *
 * Everything below dp_tree_check wants a tree that passed it.
 */
#ifndef DP_MICROBATCH_TREE_H
#define DP_MICROBATCH_TREE_H

#include "base/tensor.h"
#include <dualpipe/microbatch.h>

#include <stddef.h>

/* ---- arena ----------------------------------------------------------------------------------- */

/* Memory that is freed all at once. Zeroed memory is an empty arena.
 *
 * What the user gets is an object with a arena of its own:
 *
 *      struct dp_arena *arena;
 *      struct dp_tree *root = dp_arena_object_new(sizeof(*root), &arena);
 *      ... everything below root is laid into the arena ...
 *      dp_arena_object_free(root); */

struct dp_arena_block;

struct dp_arena {
    struct dp_arena_block *blocks; /* the newest first */
};

/* count * size bytes for structs, aligned for any of them, or NULL (nothing is logged). */
void *dp_arena_array(struct dp_arena *arena, size_t count, size_t size);
/* Bytes for tensor data, 256-byte aligned. */
void *dp_arena_data(struct dp_arena *arena, size_t bytes);
void dp_arena_fini(struct dp_arena *arena);

/* `size` zeroed bytes and an empty arena, or NULL. */
void *dp_arena_object_new(size_t size, struct dp_arena **arena);
/* Both, and all that the arena holds. object may be NULL. */
void dp_arena_object_free(void *object);

/* ---- tensor ---------------------------------------------------------------------------------- */

/* Views, copies and new tensors for split and merge. */

/* dp_tensor_window of a tensor, dimension and window known to be good. */
void dp_tensor_view(const DLTensor *t, int dim, int64_t begin, int64_t size, int64_t *dims,
                    DLTensor *out);
/* A compact tensor in host memory of the arena, its elements not set; NULL: no memory. */
DLTensor *dp_tensor_new(struct dp_arena *arena, DLDataType dtype, int ndim, const int64_t *shape);

/* Both on the host, of the same shape, elements of the same whole number of bytes. */
void dp_tensor_copy_elements(const DLTensor *dst, const DLTensor *src);
bool dp_tensor_same_elements(const DLTensor *a, const DLTensor *b);

/* ---- combine --------------------------------------------------------------------------------- */

/* The ways in which the values that one leaf has in all micro-batches become one.
 *
 * New tensors go to the arena; each element is copied once. Errors name the leaf. */

struct dp_column {
    const struct dp_tree **values; /* [count], leaves */
    int32_t count;                 /* of micro-batches, at least 1 */
    struct dp_arena *arena;      /* of the result */
    const struct dp_tree *tree;    /* where the leaf is, for sentences */
    int32_t leaf;
};

/* As they come, along dim. */
int dp_combine_chunk(const struct dp_column *c, int dim, struct dp_tree *out);
/* All have the full size; each gives the rows that dp_split with mask left it, by the same rule. */
int dp_combine_masked(const struct dp_column *c, int dim, enum dp_cut_rule rule,
                      struct dp_tree *out);
/* As rows of a new dimension. */
int dp_combine_stack(const struct dp_column *c, int dim, struct dp_tree *out);
int dp_combine_fold(const struct dp_column *c, const struct dp_reducer *r, struct dp_tree *out);
/* All are equal: the first. */
int dp_combine_equal(const struct dp_column *c, const struct dp_merge_options *options,
                     struct dp_tree *out);

/* ---- walk ------------------------------------------------------------------------------------ */

/* Two tensors of one shape, visited together, plane by plane.
 *
 * Dimensions are put into the order of a's memory and neighbours that are one run in both tensors
 * become one dimension; what is left is a loop over planes of rows x columns:
 *
 *      struct dp_walk w;
 *      for (bool more = dp_walk_begin(&w, a, b); more; more = dp_walk_next(&w))
 *          for each row r < w.rows, column c < w.columns:
 *              the elements at w.a + r * w.a_row + c * w.a_column, w.b + ...      (in bytes) */

struct dp_walk {
    char *a, *b;
    int64_t rows, columns;
    int64_t a_row, a_column, b_row, b_column; /* in bytes */
    size_t bytes;                             /* of an element */

    /* The loop around: dimension 0 is the outermost. */
    int ndim;
    int64_t shape[DP_TREE_MAX_NDIM], a_step[DP_TREE_MAX_NDIM], b_step[DP_TREE_MAX_NDIM];
    int64_t at[DP_TREE_MAX_NDIM];
};

/* false if there is no element at all. */
bool dp_walk_begin(struct dp_walk *w, const DLTensor *a, const DLTensor *b);
bool dp_walk_next(struct dp_walk *w);

/* ---- tree ------------------------------------------------------------------------------------ */

enum { DP_TREE_PATH = 256 };

bool dp_tree_is_leaf(const struct dp_tree *t);

/* What tuple, list, dict and leaves of values and specs look like, depth, size. `name` is what the
 * tree is called in sentences; `value`: leaves of specs are refused. *leaves: their number. */
int dp_tree_check(const struct dp_tree *t, const char *name, bool value, int32_t *leaves);

/* Of a tree that passed. */
int32_t dp_tree_leaves(const struct dp_tree *t);

/* Its leaves from left to right; but where both t and `like` (or NULL) have a dict of as many
 * names, in the order of that in `like`. DP_EINVAL if such a dict lacks a name; `name` is `like`
 * in sentences. leaves has room for all. */
int dp_tree_flatten(const struct dp_tree *t, const struct dp_tree *like, const char *name,
                    const struct dp_tree **leaves);

/* The item of a dict, or -1. The search begins at item `hint`, where it usually is. */
int32_t dp_tree_find(const struct dp_tree *dict, const char *name, int32_t hint);

/* The nodes of t again, with `leaves` as its leaves, in the arena; the names are copied, too, or
 * those of t serve. false: no memory. */
bool dp_tree_rebuild(struct dp_arena *arena, const struct dp_tree *t,
                     const struct dp_tree *leaves, bool own_names, struct dp_tree *out);

/* The path of leaf `leaf` of t, which is called `name`: args[0]["x"]; in text[DP_TREE_PATH], which
 * is returned. */
const char *dp_tree_path(const struct dp_tree *t, const char *name, int32_t leaf, char *text);

/* dp_fail with the path of that leaf before the sentence. */
int dp_fail_at(const struct dp_tree *t, const char *name, int32_t leaf, int err, const char *fmt,
               ...) DP_PRINTF(5, 6);

/* The same with the path of the root's item `item`. */
int dp_fail_at_item(const struct dp_tree *t, const char *name, int32_t item, int err,
                    const char *fmt, ...) DP_PRINTF(5, 6);

#endif
