/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_CHECKPOINT_INTERNAL_H
#define DP_CHECKPOINT_INTERNAL_H

#include <dualpipe/checkpoint.h>

/* Whether dp_checkpoint_read_pieces would read it, by name, type and shape: how many elements are not
 * there; -1: it is there, but of another type or shape. */
int64_t dp_checkpoint_missing(const struct dp_checkpoint *checkpoint,
                              const struct dp_named_tensor *wanted);

/* The name of a tensor that is a piece of one: "NAME[first:end]/mean" has the elements first ..
 * end - 1 of "NAME/mean", in the order of memory. "NAME/mean" is a piece as long as the whole. */
struct dp_piece {
    const char *suffix; /* "/mean", or "" */
    int name_len;       /* of NAME */
    int64_t first, end;
};
/* elements: of the tensor that has this name. */
struct dp_piece dp_piece_of(const char *name, int64_t elements);
/* 0: pieces of one tensor; else the order of the tensors' names. */
int dp_piece_compare(const char *a, const struct dp_piece *p, const char *b, const struct dp_piece *q);

#endif
