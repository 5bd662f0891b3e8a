/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - memory that is freed all at once. Zeroed memory is an empty arena.
 *
 * What the user gets is an object with a arena of its own:
 *
 *      struct dp_arena *arena;
 *      struct dp_tree *root = dp_arena_object_new(sizeof(*root), &arena);
 *      ... everything below root is laid into the arena ...
 *      dp_arena_object_free(root);
 */
#ifndef DP_MICROBATCH_ARENA_H
#define DP_MICROBATCH_ARENA_H

#include <stddef.h>

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

#endif
