/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.h - argument and spec trees as lists of their leaves, and back.
 *
 * Everything below dp_tree_check wants a tree that passed it.
 */
#ifndef DP_MICROBATCH_TREE_H
#define DP_MICROBATCH_TREE_H

#include "microbatch/arena.h"

#include <dualpipe/microbatch.h>

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
