/* SPDX-License-Identifier: Apache-2.0
 *
 * piece.h - names of tensors that are a piece of one: "NAME[first:end]/mean" has the elements
 * first .. end - 1 of "NAME/mean", in the order of memory. "NAME/mean" is a piece as long as the
 * whole.
 */
#ifndef DP_TOOLS_CHECKPOINT_PIECE_H
#define DP_TOOLS_CHECKPOINT_PIECE_H

#include <stdbool.h>
#include <stdint.h>

struct piece {
    const char *suffix; /* "/mean", or "" */
    int name_len;       /* of NAME */
    int64_t first, end;
};

/* elements: of the tensor that has this name. */
struct piece piece_of(const char *name, int64_t elements);

/* Two pieces of one tensor. */
bool piece_same(const char *a, const struct piece *p, const char *b, const struct piece *q);

/* The product of extents. */
int64_t piece_elements(int32_t ndim, const int64_t *shape);

#endif
