/* SPDX-License-Identifier: Apache-2.0
 *
 * array.h - an array that grows. It doubles, so that n additions copy O(n) elements.
 *
 *      struct thing *more = dp_array_grow(list, &room, count + 1, sizeof(*list));
 *      if (!more)
 *          return dp_fail(DP_ENOMEM, "no memory for %zu things", count + 1);
 *      list = more;
 *      list[count++] = thing;
 */
#ifndef DP_BASE_ARRAY_H
#define DP_BASE_ARRAY_H

#include <stddef.h>

/* items, moved if need be, with room for `count` elements of `size` bytes at least; *room is the
 * number that fit, 0 for items NULL. New elements are uninitialised. NULL: no memory; items and
 * *room are then as they were. The caller frees. */
void *dp_array_grow(void *items, size_t *room, size_t count, size_t size);

#endif
