/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - from the results of micro-batches to one: gather the leaves of all, combine them leaf
 * by leaf as the spec says (combine.c), and give what comes out the spec's tree.
 */
#include "microbatch/tree.h"

#include "base/fail.h"
#include "base/sized.h"

#include <stdio.h>
#include <stdlib.h>

struct merge {
    const struct dp_merge_options *options;
    const struct dp_tree *results;
    int32_t count; /* of micro-batches */

    const struct dp_tree *tree;    /* of the result: the spec, or without one results[0] */
    int32_t leaves;                /* of tree */
    const struct dp_tree **row;    /* [leaves]: of one micro-batch, then of the spec */
    const struct dp_tree **values; /* [leaves][count] */
};

/* ---- gather --------------------------------------------------------------------------------- */

static int merge_init(struct merge *m)
{
    const struct dp_tree *spec = m->options->spec;
    int err;

    m->tree = spec ? spec : &m->results[0];
    err = spec ? dp_tree_check(spec, "spec", false, &m->leaves)
               : dp_tree_check(&m->results[0], "micro-batch 0", true, &m->leaves);
    if (err)
        return err;
    size_t cells = (size_t)m->leaves * (size_t)m->count;
    m->row = malloc(((size_t)m->leaves + 1) * sizeof(*m->row));
    m->values = malloc((cells + 1) * sizeof(*m->values));
    if (!m->row || !m->values)
        return dp_fail(DP_ENOMEM, "no memory to merge %d leaves of %d micro-batches", m->leaves,
                       m->count);
    return 0;
}

static int gather(struct merge *m, int32_t mb)
{
    char name[32];
    int32_t leaves;

    snprintf(name, sizeof(name), "micro-batch %d", mb);
    int err = dp_tree_check(&m->results[mb], name, true, &leaves);
    if (err)
        return err;
    if (leaves != m->leaves)
        return dp_fail(DP_EINVAL, "%s: a result with %d leaves, expected the %d of %s", name,
                       leaves, m->leaves, m->options->spec ? "the spec" : "micro-batch 0");
    err = dp_tree_flatten(&m->results[mb], m->tree, name, m->row);
    for (int32_t i = 0; !err && i < leaves; i++)
        m->values[(size_t)i * (size_t)m->count + (size_t)mb] = m->row[i];
    return err;
}

/* ---- combine -------------------------------------------------------------------------------- */

static int combine(const struct merge *m, struct dp_arena *arena, int32_t leaf,
                   struct dp_tree *out)
{
    const struct dp_tree chunk_0 = {.kind = DP_TREE_CHUNK};
    const struct dp_tree *spec = m->row[leaf];
    struct dp_column c = {m->values + (size_t)leaf * (size_t)m->count, m->count, arena, m->tree,
                          leaf};

    if (!m->options->spec) {
        bool tensor = c.values[0]->kind == DP_TREE_TENSOR;
        if (!tensor && m->options->default_spec == DP_DEFAULT_BY_LEAF)
            return dp_combine_equal(&c, m->options, out);
        spec = &chunk_0;
    }
    switch (spec->kind) {
    case DP_TREE_CHUNK:
        return m->options->mask ? dp_combine_masked(&c, spec->dim, m->options->rule, out)
                                : dp_combine_chunk(&c, spec->dim, out);
    case DP_TREE_STACK:
        return dp_combine_stack(&c, spec->dim, out);
    case DP_TREE_REDUCE:
        return dp_combine_fold(&c, spec->reducer, out);
    default:
        return dp_combine_equal(&c, m->options, out);
    }
}

static int build(const struct merge *m, struct dp_tree **out)
{
    struct dp_tree *leaves = malloc(((size_t)m->leaves + 1) * sizeof(*leaves));
    struct dp_arena *arena;
    struct dp_tree *root = dp_arena_object_new(sizeof(*root), &arena);
    int err = 0;

    if (!leaves || !root)
        err = dp_fail(DP_ENOMEM, "no memory for a result of %d leaves", m->leaves);
    for (int32_t i = 0; !err && i < m->leaves; i++)
        err = combine(m, arena, i, &leaves[i]);
    if (!err && !dp_tree_rebuild(arena, m->tree, leaves, true, root))
        err = dp_fail(DP_ENOMEM, "no memory for a result of %d leaves", m->leaves);
    free(leaves);
    if (err)
        dp_tree_free(root);
    else
        *out = root;
    return err;
}

/* ---- the function people came for ----------------------------------------------------------- */

static int check_arguments(const struct dp_tree *results, int32_t count,
                           const struct dp_merge_options *o)
{
    if (count < 1 || count > DP_MAX_MICROBATCHES || !results)
        return dp_fail(DP_EINVAL, "%d micro-batches to merge%s, expected 1 to %d", count,
                       results ? "" : " at NULL", DP_MAX_MICROBATCHES);
    if ((int)o->default_spec < DP_DEFAULT_CHUNK || o->default_spec > DP_DEFAULT_BY_LEAF)
        return dp_fail(DP_EINVAL,
                       "default_spec: %d, expected DP_DEFAULT_CHUNK or DP_DEFAULT_BY_LEAF",
                       (int)o->default_spec);
    DP_RESERVED(o, "options");
    return 0;
}

int dp_merge(const struct dp_tree *results, int32_t count, const struct dp_merge_options *options,
             struct dp_tree **out)
{
    static const struct dp_merge_options defaults = {0};
    struct merge m = {.options = options ? options : &defaults, .results = results, .count = count};
    int err = check_arguments(results, count, m.options);

    if (err)
        return err;
    err = merge_init(&m);
    for (int32_t mb = 0; !err && mb < count; mb++)
        err = gather(&m, mb);
    if (!err && m.options->spec)
        err = dp_tree_flatten(m.tree, NULL, "spec", m.row);
    if (!err)
        err = build(&m, out);
    free(m.row);
    free(m.values);
    return err;
}
