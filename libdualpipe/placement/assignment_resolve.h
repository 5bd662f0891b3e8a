/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_resolve.h - once all is read: ids become places in the list of nodes, and everything is
 * where it says.
 */
#ifndef DP_PLACEMENT_ASSIGNMENT_RESOLVE_H
#define DP_PLACEMENT_ASSIGNMENT_RESOLVE_H

#include <dualpipe/assignment.h>

enum { DP_WORKERS_MAX = 1 << 20 };
/* In place of a number that was left out. */
#define DP_ASSIGNED_ABSENT (-1)

/* DP_EINVAL naming the place in the file, DP_ENOMEM. */
int dp_assignment_resolve(struct dp_assignment *s);

/* After that: an id becomes the place of its node, if there is one and it is of this kind; NULL: of
 * any. */
bool dp_assignment_resolve_id(const struct dp_assignment *s, const char *kind, int32_t *id);

#endif
