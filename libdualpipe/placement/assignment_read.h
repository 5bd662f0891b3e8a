/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_read.h - the one reader of placement files.
 */
#ifndef DP_PLACEMENT_ASSIGNMENT_READ_H
#define DP_PLACEMENT_ASSIGNMENT_READ_H

#include <dualpipe/assignment.h>

struct dp_assigned_link {
    int32_t from, to; /* ids */
    double before_ns, after_ns;
};

/* What the file says beyond an assignment. Zeroed memory is empty. */
struct dp_placement_rest {
    bool exact;
    double before_ns, after_ns;
    uint32_t *classes; /* [flow_count] texts of the assignment */
    struct dp_assigned_link *links;
    int32_t class_count, link_count;
    size_t class_room, link_room;
};

/* dp_assignment_read; the rest is passed over, or goes to *rest, if that is not NULL. The caller
 * frees its two lists, also after an error. */
int dp_assignment_read_all(const char *text, size_t len, const char *name,
                           struct dp_placement_rest *rest, struct dp_assignment **out);

#endif
