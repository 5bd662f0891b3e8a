/* SPDX-License-Identifier: Apache-2.0
 *
 * region.h - memory that is freed all at once. Zeroed memory is an empty region.
 *
 * What the user gets is an object with a region of its own:
 *
 *      struct dp_region *region;
 *      struct dp_tree *root = dp_region_object_new(sizeof(*root), &region);
 *      ... everything below root is laid into the region ...
 *      dp_region_object_free(root);
 */
#ifndef DP_MICROBATCH_REGION_H
#define DP_MICROBATCH_REGION_H

#include <stddef.h>

struct dp_region_block;

struct dp_region {
    struct dp_region_block *blocks; /* the newest first */
};

/* count * size bytes for structs, aligned for any of them, or NULL (nothing is logged). */
void *dp_region_array(struct dp_region *region, size_t count, size_t size);
/* Bytes for tensor data, 256-byte aligned. */
void *dp_region_data(struct dp_region *region, size_t bytes);
void dp_region_fini(struct dp_region *region);

/* `size` zeroed bytes and an empty region, or NULL. */
void *dp_region_object_new(size_t size, struct dp_region **region);
/* Both, and all that the region holds. object may be NULL. */
void dp_region_object_free(void *object);

#endif
