/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_bind.h - which CPUs and which memory a worker is next to, on the machine below a root.
 */
#ifndef DP_PLACEMENT_ASSIGNMENT_BIND_H
#define DP_PLACEMENT_ASSIGNMENT_BIND_H

#include "base/options.h"
#include <dualpipe/assignment.h>

#include <sched.h>

struct dp_assigned_site {
    int node;       /* the kernel's number of the NUMA node */
    cpu_set_t cpus; /* of it, among `allowed`; none: a node of memory only */
};

/* host: this machine's name, of which what stands before the first dot counts. DP_ENODEV, quietly, with
 * the sentence that says why there is no such site here. */
int dp_assignment_site(const struct dp_assignment *s, int32_t worker, const char *root, const char *host,
                  const cpu_set_t *allowed, struct dp_assigned_site *out);

/* ---- assignment options ---------------------------------------------------------------------- */

/* DUALPIPE_PLACEMENT, and DUALPIPE_PLACEMENT_*. */

struct dp_assignment_options {
    const char *file; /* NULL or empty: none */
    bool binds;
    bool numbered; /* process r is worker r, whatever the file has */
};

extern const struct dp_option_area dp_assignment_option_area;

#endif
