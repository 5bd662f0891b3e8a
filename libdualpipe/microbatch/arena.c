/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch/tree.h"

#include <stdint.h>
#include <stdlib.h>

/* One header serves both uses; its size keeps tensor data behind it aligned. */
enum { HEADER = 256, FIRST = 4096, ALIGN = 16 };

struct dp_arena_block {
    struct dp_arena_block *next;
    size_t used, size; /* with the header */
};

static struct dp_arena_block *block_new(struct dp_arena *arena, size_t size)
{
    struct dp_arena_block *b = NULL;

    if (size > SIZE_MAX - 2 * HEADER)
        return NULL;
    size = (size + 2 * HEADER - 1) / HEADER * HEADER;
    b = aligned_alloc(HEADER, size);
    if (!b)
        return NULL;
    *b = (struct dp_arena_block){arena->blocks, HEADER, size};
    arena->blocks = b;
    return b;
}

void *dp_arena_array(struct dp_arena *arena, size_t count, size_t size)
{
    struct dp_arena_block *b = arena->blocks;

    if (size && count > (SIZE_MAX / 2) / size)
        return NULL;
    size_t bytes = (count * size + ALIGN - 1) / ALIGN * ALIGN;
    if (!b || b->size - b->used < bytes) {
        size_t grown = b ? 2 * b->size : FIRST;
        b = block_new(arena, bytes > grown ? bytes : grown);
        if (!b)
            return NULL;
    }
    void *p = (char *)b + b->used;
    b->used += bytes;
    return p;
}

void *dp_arena_data(struct dp_arena *arena, size_t bytes)
{
    struct dp_arena_block *top = arena->blocks, *b = block_new(arena, bytes);
    if (!b)
        return NULL;
    b->used = b->size;

    /* Structs go on being laid into the block that has room for them. */
    if (top) {
        arena->blocks = top;
        b->next = top->next;
        top->next = b;
    }
    return (char *)b + HEADER;
}

void dp_arena_fini(struct dp_arena *arena)
{
    while (arena->blocks) {
        struct dp_arena_block *b = arena->blocks;
        arena->blocks = b->next;
        free(b);
    }
}

/* The arena lies before its object. */
union object {
    struct dp_arena arena;
    max_align_t align;
};

void *dp_arena_object_new(size_t size, struct dp_arena **arena)
{
    union object *o = calloc(1, sizeof(*o) + size);
    if (!o)
        return NULL;
    *arena = &o->arena;
    return o + 1;
}

void dp_arena_object_free(void *object)
{
    union object *o = object;

    if (!o)
        return;
    o--;
    dp_arena_fini(&o->arena);
    free(o);
}
