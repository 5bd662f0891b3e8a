/* SPDX-License-Identifier: Apache-2.0
 *
 * sysfs_numa.c - NUMA nodes with their CPUs, memory and last-level caches.
 */
#include "topology/sysfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char nodes[] = "/sys/devices/system/node";
static const char cpus[] = "/sys/devices/system/cpu";
static const char gpus[] = "/proc/driver/nvidia/gpus";

/* How many CPUs a list such as "0-55,112-167" names. */
static int64_t count_cpus(const char *list)
{
    int64_t count = 0;

    while (*list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (end == list)
            break;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        count += last >= first ? last - first + 1 : 0;
        list = *end == ',' ? end + 1 : end;
        if (*end != ',')
            break;
    }
    return count;
}

/* "36608K" */
static uint64_t parse_size(const char *s)
{
    char *end;
    unsigned long long size = strtoull(s, &end, 10);

    return *end == 'K' ? size << 10 : *end == 'M' ? size << 20 : size;
}

int dp_sysfs_gpu_memory(const char *root, const char *address)
{
    char line[DP_SYSFS_LINE];
    int node;

    return dp_sysfs_line(root, line, "%s/%s/numa_status", gpus, address) &&
                   sscanf(line, "Node : %d", &node) == 1
               ? node
               : -1;
}

static bool is_of_gpu(const char *root, int node)
{
    struct dp_sysfs_names names = dp_sysfs_list(root, "%s", gpus);
    bool found = false;

    for (int i = 0; i < names.count; i++)
        found |= dp_sysfs_gpu_memory(root, names.names[i]) == node;
    dp_sysfs_names_fini(&names);
    return found;
}

/* All last-level caches of a node are like that of its first CPU. */
static uint64_t read_cache(const char *root, const char *list)
{
    char size[DP_SYSFS_LINE], shared[DP_SYSFS_LINE];
    long cpu = strtol(list, NULL, 10);

    for (int index = 4; index >= 2; index--)
        if (dp_sysfs_line(root, size, "%s/cpu%ld/cache/index%d/size", cpus, cpu, index) &&
            dp_sysfs_line(root, shared, "%s/cpu%ld/cache/index%d/shared_cpu_list", cpus, cpu, index)) {
            int64_t sharing = count_cpus(shared), here = count_cpus(list);
            return parse_size(size) * (uint64_t)(sharing > 0 && here > sharing ? here / sharing : 1);
        }
    return 0;
}

uint64_t dp_sysfs_memory(const char *root, int node)
{
    char line[DP_SYSFS_LINE];
    unsigned long long kib;

    dp_sysfs_line(root, line, "%s/node%d/meminfo", nodes, node);
    return sscanf(line, "Node %*d MemTotal: %llu kB", &kib) == 1 ? (uint64_t)kib << 10 : 0;
}

static int32_t add_numa(struct dp_topo_builder *b, const char *root, int32_t host, int os_index,
                        const char *list)
{
    int32_t numa = dp_topo_add_node(b, DP_TOPO_NUMA, host);
    uint32_t text = dp_topo_add_text(b, list);
    struct dp_topo_node *n = dp_topo_node(b, numa);

    n->os_index = os_index;
    n->cpus = text;
    if (*list) {
        n->cache_bytes = read_cache(root, list);
        n->package = (int32_t)dp_sysfs_number(root, -1, "%s/cpu%ld/topology/physical_package_id",
                                              cpus, strtol(list, NULL, 10));
    }
    return numa;
}

/* Without NUMA in the kernel, or without its directory in a container, all is one node. */
static void add_only_numa(struct dp_topo_builder *b, const char *root, int32_t host)
{
    char online[DP_SYSFS_LINE], line[DP_SYSFS_LINE];
    unsigned long long kib;

    dp_sysfs_line(root, online, "%s/online", cpus);
    int32_t numa = add_numa(b, root, host, 0, online);
    dp_sysfs_line(root, line, "/proc/meminfo");
    if (sscanf(line, "MemTotal: %llu kB", &kib) == 1)
        dp_topo_node(b, numa)->memory_bytes = (uint64_t)kib << 10;
    dp_topo_add_note(b, DP_TOPO_ASSUMED, numa, "%s is not there: all CPUs and all memory are taken to "
                     "be one NUMA node", nodes);
}

void dp_sysfs_numa(struct dp_topo_builder *b, const char *root, int32_t host)
{
    struct dp_sysfs_names names = dp_sysfs_list(root, "%s", nodes);
    int32_t first = b->t.node_count;
    char list[DP_SYSFS_LINE];
    int node, end, empty = 0;

    for (int i = 0; i < 2 * names.count; i++) { /* those with CPUs come first */
        const char *name = names.names[i % names.count];
        if (sscanf(name, "node%d%n", &node, &end) != 1 || name[end])
            continue;
        if (dp_sysfs_line(root, list, "%s/node%d/cpulist", nodes, node) && *list ? i >= names.count
                                                                                 : i < names.count)
            continue;
        const uint64_t bytes = dp_sysfs_memory(root, node);
        if (!*list && (!bytes || is_of_gpu(root, node))) {
            empty += !bytes;
            continue;
        }
        int32_t numa = add_numa(b, root, host, node, list);
        dp_topo_node(b, numa)->memory_bytes = bytes;
    }
    dp_sysfs_names_fini(&names);
    if (b->t.node_count == first && !b->failed)
        add_only_numa(b, root, host);
    else
        dp_topo_join_numas(b, host);
    if (empty)
        dp_topo_add_note(b, DP_TOPO_MISSING, host,
                         "%d NUMA nodes have neither CPUs nor memory and are left "
                         "out",
                         empty);
}
