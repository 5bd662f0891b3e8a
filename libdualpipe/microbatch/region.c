/* SPDX-License-Identifier: Apache-2.0 */
#include "microbatch/region.h"

#include <stdint.h>
#include <stdlib.h>

/* One header serves both uses; its size keeps tensor data behind it aligned. */
enum { HEADER = 256, FIRST = 4096, ALIGN = 16 };

struct dp_region_block {
    struct dp_region_block *next;
    size_t used, size; /* with the header */
};

static struct dp_region_block *block_new(struct dp_region *region, size_t size)
{
    struct dp_region_block *b = NULL;

    if (size > SIZE_MAX - 2 * HEADER)
        return NULL;
    size = (size + 2 * HEADER - 1) / HEADER * HEADER;
    b = aligned_alloc(HEADER, size);
    if (!b)
        return NULL;
    *b = (struct dp_region_block){region->blocks, HEADER, size};
    region->blocks = b;
    return b;
}

void *dp_region_array(struct dp_region *region, size_t count, size_t size)
{
    struct dp_region_block *b = region->blocks;

    if (size && count > (SIZE_MAX / 2) / size)
        return NULL;
    size_t bytes = (count * size + ALIGN - 1) / ALIGN * ALIGN;
    if (!b || b->size - b->used < bytes) {
        size_t grown = b ? 2 * b->size : FIRST;
        b = block_new(region, bytes > grown ? bytes : grown);
        if (!b)
            return NULL;
    }
    void *p = (char *)b + b->used;
    b->used += bytes;
    return p;
}

void *dp_region_data(struct dp_region *region, size_t bytes)
{
    struct dp_region_block *top = region->blocks, *b = block_new(region, bytes);
    if (!b)
        return NULL;
    b->used = b->size;

    /* Structs go on being laid into the block that has room for them. */
    if (top) {
        region->blocks = top;
        b->next = top->next;
        top->next = b;
    }
    return (char *)b + HEADER;
}

void dp_region_fini(struct dp_region *region)
{
    while (region->blocks) {
        struct dp_region_block *b = region->blocks;
        region->blocks = b->next;
        free(b);
    }
}

/* The region lies before its object. */
union object {
    struct dp_region region;
    max_align_t align;
};

void *dp_region_object_new(size_t size, struct dp_region **region)
{
    union object *o = calloc(1, sizeof(*o) + size);
    if (!o)
        return NULL;
    *region = &o->region;
    return o + 1;
}

void dp_region_object_free(void *object)
{
    union object *o = object;

    if (!o)
        return;
    o--;
    dp_region_fini(&o->region);
    free(o);
}
