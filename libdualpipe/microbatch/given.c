/* SPDX-License-Identifier: Apache-2.0
 *
 * given.c - micro-batches that were made elsewhere, in the form that a split has.
 */
#include "microbatch/tree.h"

#include "base/fail.h"

#include <stdio.h>
#include <string.h>

/* Whether both have the same inner nodes. */
static bool same_nodes(const struct dp_tree *a, const struct dp_tree *b)
{
    if (dp_tree_is_leaf(a) || dp_tree_is_leaf(b))
        return dp_tree_is_leaf(a) && dp_tree_is_leaf(b);
    if (a->kind != b->kind || a->count != b->count)
        return false;
    for (int32_t i = 0; i < a->count; i++)
        if ((a->kind == DP_TREE_DICT && strcmp(a->names[i], b->names[i])) ||
            !same_nodes(&a->items[i], &b->items[i]))
            return false;
    return true;
}

static int check_given(const struct dp_tree *trees, int32_t count, const char *side, bool dict)
{
    for (int32_t mb = 0; mb < count; mb++) {
        char name[64];
        int32_t leaves;
        snprintf(name, sizeof(name), "%s of micro-batch %d", side, mb);
        int err = dp_tree_check(&trees[mb], name, true, &leaves);
        if (err)
            return err;
        if (dp_tree_is_leaf(&trees[mb]) || (trees[mb].kind == DP_TREE_DICT) != dict)
            return dp_fail(DP_EINVAL, "%s: expected a %s of arguments", name,
                           dict ? "dict" : "tuple or list");
        if (!same_nodes(&trees[0], &trees[mb]))
            return dp_fail(DP_EMISMATCH, "%s: another tree than that of micro-batch 0", name);
    }
    return 0;
}

static int check_counts(const struct dp_tree *args, int32_t args_count,
                        const struct dp_tree *kwargs, int32_t kwargs_count)
{
    if (args_count < 0 || kwargs_count < 0 || args_count > DP_MAX_MICROBATCHES ||
        kwargs_count > DP_MAX_MICROBATCHES)
        return dp_fail(DP_EINVAL, "%d and %d micro-batches, expected 0 to %d", args_count,
                       kwargs_count, DP_MAX_MICROBATCHES);
    if ((!args && args_count) || (!kwargs && kwargs_count))
        return dp_fail(DP_EINVAL, "%s: NULL with %d micro-batches", args ? "kwargs" : "args",
                       args ? kwargs_count : args_count);
    if (args && kwargs && args_count != kwargs_count)
        return dp_fail(DP_EINVAL,
                       "%d micro-batches of args and %d of kwargs, expected as many of both",
                       args_count, kwargs_count);
    return 0;
}

/* `count` empty nodes, for the side that was not given. */
static const struct dp_tree *none(struct dp_arena *arena, enum dp_tree_kind kind, int32_t count)
{
    struct dp_tree *trees = dp_arena_array(arena, (size_t)count, sizeof(*trees));

    for (int32_t mb = 0; trees && mb < count; mb++)
        trees[mb] = dp_tree_leaf(kind);
    return trees;
}

int dp_split_given(const struct dp_tree *args, int32_t args_count, const struct dp_tree *kwargs,
                   int32_t kwargs_count, struct dp_microbatches **out)
{
    struct dp_arena *arena;
    struct dp_microbatches *mbs;
    int err = check_counts(args, args_count, kwargs, kwargs_count);

    if (err || (err = check_given(args, args_count, "args", false)) ||
        (err = check_given(kwargs, kwargs_count, "kwargs", true)))
        return err;
    mbs = dp_arena_object_new(sizeof(*mbs), &arena);
    if (!mbs)
        return dp_fail(DP_ENOMEM, "no memory for %d micro-batches", args_count);
    mbs->count = args ? args_count : kwargs_count;
    mbs->args = args ? args : none(arena, DP_TREE_TUPLE, mbs->count);
    mbs->kwargs = kwargs ? kwargs : none(arena, DP_TREE_DICT, mbs->count);
    if (!mbs->args || !mbs->kwargs) {
        dp_microbatches_free(mbs);
        return dp_fail(DP_ENOMEM, "no memory for %d micro-batches", args_count);
    }
    *out = mbs;
    return 0;
}
