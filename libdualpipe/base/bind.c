/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: sched_setaffinity, syscall */

#include "base/bind.h"
#include "base/internal.h"

#include <dualpipe/memory.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LONG_BITS = 8 * sizeof(unsigned long) };
/* <linux/mempolicy.h>, which not every system has */
enum { POLICY_PREFERRED = 1 };

bool dp_cpus_parse(const char *list, cpu_set_t *out)
{
    CPU_ZERO(out);
    while (*list && *list != '\n') {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (end == list)
            return false;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (first < 0 || last < first || last >= CPU_SETSIZE)
            return false;
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET((size_t)cpu, out);
        list = end + (*end == ',');
    }
    return true;
}

bool dp_node_cpus(const char *root, int node, cpu_set_t *out)
{
    char path[4096], line[4096] = "";
    const int len =
        snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%d/cpulist", root, node);
    FILE *file = len < (int)sizeof(path) ? fopen(path, "re") : NULL;

    if (!file)
        return false;
    bool is_list = (fgets(line, sizeof(line), file) || !ferror(file)) && dp_cpus_parse(line, out);
    fclose(file);
    return is_list;
}

/* The kernel looks at one bit fewer than it is told. */
struct nodes {
    unsigned long mask[DP_BIND_NODES / LONG_BITS + 1];
};

static struct nodes only(int node)
{
    struct nodes n = {0};

    n.mask[(size_t)node / LONG_BITS] = 1ul << ((size_t)node % LONG_BITS);
    return n;
}

int dp_prefer_memory(int node)
{
    const struct nodes n = only(node);

    return syscall(SYS_set_mempolicy, POLICY_PREFERRED, n.mask, DP_BIND_NODES + 1) ? errno : 0;
}

int dp_prefer_memory_at(void *at, size_t bytes, int node)
{
    const struct nodes n = only(node);

    return syscall(SYS_mbind, at, bytes, POLICY_PREFERRED, n.mask, DP_BIND_NODES + 1, 0) ? errno
                                                                                         : 0;
}

/* The kernel tells where pages are if it is not told where to move them; of one that is not there it
 * says -ENOENT. */
int dp_memory_numa_node(const void *ptr, size_t bytes)
{
    enum { MOST = 64 };
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)ptr / page;
    const uintptr_t all = bytes ? ((uintptr_t)ptr + bytes - 1) / page - first + 1 : 0;
    const unsigned long count = all < MOST ? (unsigned long)all : MOST;
    void *pages[MOST];
    int nodes[MOST], found = -1;

    for (unsigned long i = 0; i < count; i++)
        pages[i] = (void *)((first + (all < MOST ? i : i * (all - 1) / (MOST - 1))) * page);
    if (!count || syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0))
        return -1;
    for (unsigned long i = 0; i < count; i++) {
        if (nodes[i] >= 0 && found >= 0 && nodes[i] != found)
            return -1;
        found = nodes[i] >= 0 ? nodes[i] : found;
    }
    return found;
}

int dp_bind(const cpu_set_t *cpus, int node)
{
    if (CPU_COUNT(cpus) && sched_setaffinity(0, sizeof(*cpus), cpus))
        return errno;
    return dp_prefer_memory(node);
}
