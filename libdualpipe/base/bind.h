/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.h - a thread on the CPUs and next to the memory of a NUMA node.
 */
#ifndef DP_BASE_BIND_H
#define DP_BASE_BIND_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

enum { DP_BIND_NODES = 1024 }; /* the kernel numbers no NUMA node higher */

/* "0-55,112-167", as the kernel writes it; what follows a newline does not count. */
bool dp_cpus_parse(const char *list, cpu_set_t *out);

/* The CPUs of a NUMA node as the kernel has them, from /sys below root (""); false: there is no such
 * node. */
bool dp_node_cpus(const char *root, int node, cpu_set_t *out);

/* New pages of the calling thread, and of those that it starts, come from the node, or from another
 * one where it is full. 0, or the errno with which the kernel refuses it. */
int dp_prefer_memory(int node);

/* The same of new pages of a range, whichever thread takes them; they stay there, also where the kernel
 * moves others to the threads that use them. */
int dp_prefer_memory_at(void *at, size_t bytes, int node);

/* As dp_prefer_memory, and bind these threads to the CPUs; none: they stay where they may run. */
int dp_bind(const cpu_set_t *cpus, int node);

#endif
