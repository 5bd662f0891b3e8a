/* SPDX-License-Identifier: Apache-2.0
 *
 * walk.h - two tensors of one shape, visited together, plane by plane.
 *
 * Dimensions are put into the order of a's memory and neighbours that are one run in both tensors
 * become one dimension; what is left is a loop over planes of rows x columns:
 *
 *      struct dp_walk w;
 *      for (bool more = dp_walk_begin(&w, a, b); more; more = dp_walk_next(&w))
 *          for each row r < w.rows, column c < w.columns:
 *              the elements at w.a + r * w.a_row + c * w.a_column, w.b + ...      (in bytes)
 */
#ifndef DP_MICROBATCH_WALK_H
#define DP_MICROBATCH_WALK_H

#include <dualpipe/microbatch.h>

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

#endif
