/* SPDX-License-Identifier: Apache-2.0
 *
 * combine.h - the ways in which the values that one leaf has in all micro-batches become one.
 *
 * New tensors go to the arena; each element is copied once. Errors name the leaf.
 */
#ifndef DP_MICROBATCH_COMBINE_H
#define DP_MICROBATCH_COMBINE_H

#include "microbatch/arena.h"

#include <dualpipe/microbatch.h>

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

#endif
