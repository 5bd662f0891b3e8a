/* SPDX-License-Identifier: Apache-2.0
 *
 * resolve.h - once all is read: ids become places in the list of nodes, and everything is where it
 * says.
 */
#ifndef DP_PLACEMENT_ASSIGNMENT_RESOLVE_H
#define DP_PLACEMENT_ASSIGNMENT_RESOLVE_H

#include <dualpipe/assignment.h>

enum { DP_WORKERS_MAX = 1 << 20 };
/* In place of a number that was left out. */
#define DP_ASSIGNED_ABSENT (-1)

/* DP_EINVAL naming the place in the file, DP_ENOMEM. */
int dp_assignment_resolve(struct dp_assignment *s);

#endif
