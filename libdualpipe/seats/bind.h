/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.h - which CPUs and which memory a seat stands next to, on the machine below a root.
 */
#ifndef DP_SEATS_BIND_H
#define DP_SEATS_BIND_H

#include <dualpipe/seats.h>

#include <sched.h>

struct dp_seat_site {
    int node;       /* the kernel's number of the NUMA node */
    cpu_set_t cpus; /* of it, among `allowed`; none: a node of memory only */
};

/* host: this machine's name, of which what stands before the first dot counts. DP_ENODEV, quietly, with
 * the sentence that says why there is no such site here. */
int dp_seats_site(const struct dp_seats *s, int32_t worker, const char *root, const char *host,
                  const cpu_set_t *allowed, struct dp_seat_site *out);

#endif
