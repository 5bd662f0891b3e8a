/* SPDX-License-Identifier: Apache-2.0
 *
 * nearest.h - "did you mean": the known name that is closest to a mistyped one.
 */
#ifndef DP_BASE_NEAREST_H
#define DP_BASE_NEAREST_H

#include <stddef.h>

/* The name of names[count] with the smallest edit distance to `name`, or NULL if none comes within
 * a third of its length (two edits at least are allowed). */
const char *dp_nearest(const char *name, const char *const *names, size_t count);

#endif
