/* SPDX-License-Identifier: Apache-2.0
 *
 * sysfs_read.c - a machine as Linux describes it in /sys and /proc: this one, or one whose files were
 * captured. What is not there is noted, never an error: containers and virtual machines hide much.
 */
#include "base/fail.h"
#include "topology/nvml.h"
#include "topology/sysfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the host ------------------------------------------------------------------------------- */

/* The value of a line "key   : value" of /proc/cpuinfo; false: another line. */
static bool split(char *line, const char *key, char **value)
{
    size_t len = strlen(key);

    if (strncmp(line, key, len))
        return false;
    char *at = line + len + strspn(line + len, " \t");
    if (*at != ':')
        return false;
    *value = at + 1 + strspn(at + 1, " \t");
    (*value)[strcspn(*value, "\n")] = '\0';
    return true;
}

/* "CPU implementer : 0x41" */
static const char *implementer(const char *number)
{
    long n = strtol(number, NULL, 0);

    return n == 0x41 ? "ARM" : n == 0x4e ? "NVIDIA" : n == 0x48 ? "HiSilicon" : "";
}

/* What the first CPU says of itself. */
static void read_cpu(struct dp_topo_builder *b, const char *root, int32_t host)
{
    char path[PATH_MAX], line[DP_SYSFS_LINE], *value;

    snprintf(path, sizeof(path), "%s/proc/cpuinfo", root);
    FILE *f = fopen(path, "re");
    if (!f) {
        dp_topo_add_note(b, DP_TOPO_MISSING, host, "/proc/cpuinfo cannot be read: the CPU's vendor "
                         "and model are not known");
        return;
    }
    struct dp_topo_node *n = dp_topo_node(b, host);
    while (fgets(line, sizeof(line), f) && *line != '\n') {
        if (split(line, "vendor_id", &value)) {
            n->vendor = dp_topo_add_text(b, value);
            n->arch = dp_topo_add_text(b, "x86_64");
        } else if (split(line, "cpu family", &value)) {
            n->family = atoi(value);
        } else if (split(line, "model", &value)) {
            n->cpu_model = atoi(value);
        } else if (split(line, "model name", &value)) {
            n->model = dp_topo_add_text(b, value);
        } else if (split(line, "CPU implementer", &value)) {
            n->vendor = dp_topo_add_text(b, implementer(value));
            n->arch = dp_topo_add_text(b, "aarch64");
        }
    }
    fclose(f);
}

static int32_t add_host(struct dp_topo_builder *b, const char *root)
{
    int32_t host = dp_topo_add_node(b, DP_TOPO_HOST, -1);
    char name[DP_SYSFS_LINE];

    dp_sysfs_line(root, name, "/proc/sys/kernel/hostname");
    uint32_t text = dp_topo_add_text(b, *name && !strchr(name, '/') ? name : "node");
    dp_topo_node(b, host)->name = text;
    read_cpu(b, root, host);
    return host;
}

/* ---- NUMA nodes with their CPUs, memory and last-level caches -------------------------------- */

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

/* The kernel's number of the NUMA node as which NVIDIA's driver has given it the memory of this
 * GPU, "0009:01:00.0"; -1: none. */
static int gpu_memory(const char *root, const char *address)
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
        found |= gpu_memory(root, names.names[i]) == node;
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

/* What a NUMA node (the kernel's number) has; 0: not known. */
static uint64_t memory_of(const char *root, int node)
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

/* The CPUs, memory and caches of a host: its NUMA nodes, joined. Those that are the memory of a GPU
 * are left to the GPU. */
static void add_numas(struct dp_topo_builder *b, const char *root, int32_t host)
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
        const uint64_t bytes = memory_of(root, node);
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

/* ---- devices -------------------------------------------------------------------------------- */

/* What NVIDIA's driver says of a GPU, "Model: \t\t NVIDIA H100 80GB HBM3" and the like. */
static void read_driver(struct dp_topo_builder *b, const char *root, const struct dp_pci_function *f)
{
    char path[PATH_MAX], line[DP_SYSFS_LINE], address[DP_TOPO_PCI_LEN], *value;
    struct dp_topo_node *n = dp_topo_node(b, f->node);

    dp_topo_pci_text(&f->id, address);
    n->memory_node = gpu_memory(root, address);
    if (n->memory_node >= 0)
        n->memory_bytes = memory_of(root, n->memory_node);
    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus/%s/information", root, address);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof(line), file)) {
        if (split(line, "Model", &value))
            n->model = dp_topo_add_text(b, value);
        else if (split(line, "GPU UUID", &value))
            n->uuid = dp_topo_add_text(b, value);
    }
    fclose(file);
}

static void describe(struct dp_topo_builder *b, const char *root, const struct dp_pci_functions *f)
{
    for (int32_t i = 0; i < f->count && !b->failed; i++) {
        const struct dp_pci_function *one = &f->list[i];
        if (one->node < 0)
            continue;
        if (dp_pci_is_gpu(&one->id))
            read_driver(b, root, one);
        else if (dp_pci_is_nic(&one->id) && one->dir)
            dp_sysfs_ports(b, root, one->dir, one->node);
    }
}

static bool has_kind(const struct dp_topo_builder *b, enum dp_topo_kind kind)
{
    for (int32_t i = 0; i < b->t.node_count; i++)
        if (b->t.nodes[i].kind == kind)
            return true;
    return false;
}

static void note_what_is_missing(struct dp_topo_builder *b, int32_t host, bool has_pci)
{
    if (!has_pci)
        dp_topo_add_note(b, DP_TOPO_MISSING, host, "/sys/bus/pci is not there: no PCI devices are seen");
    else if (!has_kind(b, DP_TOPO_GPU))
        dp_topo_add_note(b, DP_TOPO_MISSING, host, "no GPU is seen on the PCI buses");
    if (has_pci && !has_kind(b, DP_TOPO_NIC))
        dp_topo_add_note(b, DP_TOPO_MISSING, host, "no network device is seen on the PCI buses");
    for (int32_t i = 0; i < b->t.link_count; i++)
        if (b->t.links[i].kind == DP_TOPO_PCI && b->t.links[i].flags & DP_TOPO_RATE_UNKNOWN) {
            dp_topo_add_note(b, DP_TOPO_MISSING, host, "some PCI links do not say how fast they are, as "
                             "in many virtual machines: they count as not limiting");
            break;
        }
}

/* ---- all of it ------------------------------------------------------------------------------ */

int dp_topology_read_sysfs(const char *root, struct dp_topology **out)
{
    struct dp_topo_builder b = {0};
    struct dp_pci_functions f;
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/sys", root);
    if (access(path, R_OK | X_OK))
        return dp_fail(DP_ENOENT, "%s: %s, expected a directory as of sysfs", path, strerror(errno));
    int32_t host = add_host(&b, root);
    add_numas(&b, root, host);
    bool has_pci = dp_sysfs_pci(&b, root, &f);
    if (!b.failed)
        dp_pci_tree_add(&b, host, &f);
    describe(&b, root, &f);
    int err = b.failed ? 0 : dp_nvml_add(&b, host, !*root);
    if (!b.failed)
        note_what_is_missing(&b, host, has_pci);
    dp_pci_functions_fini(&f);
    if (err)
        dp_topo_builder_fini(&b);
    return err ? err : dp_topo_finish(&b, out);
}
