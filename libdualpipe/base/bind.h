/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.h - a thread on the CPUs and next to the memory of a NUMA node.
 */
#ifndef DP_BASE_BIND_H
#define DP_BASE_BIND_H

#include <sched.h>
#include <stdbool.h>

enum { DP_BIND_NODES = 1024 }; /* the kernel numbers no NUMA node higher */

/* "0-55,112-167", as the kernel writes it; what follows a newline does not count. */
bool dp_cpus_parse(const char *list, cpu_set_t *out);

/* Bind the calling thread, and those that it starts, to the CPUs (none: they stay), and prefer the
 * memory of the node: where that is full, another one helps. 0, or the errno of the call that the
 * kernel refused. */
int dp_bind(const cpu_set_t *cpus, int node);

#endif
