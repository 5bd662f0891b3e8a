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

/* ---- devices -------------------------------------------------------------------------------- */

/* What NVIDIA's driver says of a GPU, "Model: \t\t NVIDIA H100 80GB HBM3" and the like. */
static void read_driver(struct dp_topo_builder *b, const char *root, const struct dp_pci_function *f)
{
    char path[PATH_MAX], line[DP_SYSFS_LINE], address[32], *value;
    struct dp_topo_node *n = dp_topo_node(b, f->node);

    snprintf(address, sizeof(address), "%04x:%02x:%02x.%x", f->id.domain, f->id.bus, f->id.device,
             f->id.function);
    n->memory_node = dp_sysfs_gpu_memory(root, address);
    if (n->memory_node >= 0)
        n->memory_bytes = dp_sysfs_memory(root, n->memory_node);
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
    dp_sysfs_numa(&b, root, host);
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
