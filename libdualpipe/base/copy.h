/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - memcpy that is as quick as the machine allows for buffers far beyond the caches.
 *
 * Which way of copying is the quickest there differs from machine to machine by half as much again,
 * in either direction (device/README.md has figures), and no CPU feature tells. So the first copies of
 * every size class are the measurement: each way takes a few turns, then the best one stays.
 */
#ifndef DP_BASE_COPY_H
#define DP_BASE_COPY_H

#include <stddef.h>
#include <string.h>

/* Smaller copies may well hit the caches: there libc is the best there is. */
#define DP_COPY_LARGE ((size_t)4 << 20)

/* For copies from DP_COPY_LARGE on. */
void dp_copy_large(void *dst, const void *src, size_t bytes, size_t whole);

/* Copy as memcpy does; `whole` is the size of the copy that this is a piece of (another thread may
 * have the others). Any thread. */
static inline void dp_copy_piece(void *dst, const void *src, size_t bytes, size_t whole)
{
    if (whole < DP_COPY_LARGE)
        memcpy(dst, src, bytes);
    else
        dp_copy_large(dst, src, bytes, whole);
}

static inline void dp_copy(void *dst, const void *src, size_t bytes)
{
    dp_copy_piece(dst, src, bytes, bytes);
}

/* Copy with stores past the caches, where the machine has some that pay in pieces of a few pages; the
 * caller has measured that they do. */
void dp_copy_nt(void *dst, const void *src, size_t bytes);

/* For tests: every way of copying that this machine has, by number from 0; NULL behind the last. */
typedef void (*dp_copy_fn)(char *dst, const char *src, size_t bytes);
dp_copy_fn dp_copy_way(int way);

#endif
