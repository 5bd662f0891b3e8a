/* SPDX-License-Identifier: Apache-2.0
 *
 * sysfs_pci.c - the functions in /sys/bus/pci/devices. Where each stands in the tree is said by what the
 * entry, a symbolic link, points to:
 *
 *      0000:1b:00.0 -> ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0
 *                                       root bus   root port    upstream     downstream   the function
 */
#include "config.h" /* asprintf */

#include "base/text.h"
#include "topology/sysfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char devices[] = "/sys/bus/pci/devices";

/* Up to a slash. */
static bool parse_address(const char *s, struct dp_topo_pci *pci)
{
    char text[DP_TOPO_PCI_LEN];

    snprintf(text, sizeof(text), "%.*s", (int)strcspn(s, "/"), s);
    return dp_topo_parse_pci(text, pci);
}

static int32_t find(const struct dp_pci_functions *f, const struct dp_topo_pci *pci)
{
    for (int32_t i = 0; i < f->count; i++)
        if (dp_topo_same_pci(&f->list[i].id, pci))
            return i;
    return -1;
}

/* ---- one function --------------------------------------------------------------------------- */

/* "16.0 GT/s PCIe"; "Unknown" in many virtual machines. */
static int read_gen(const char *root, const char *name, const char *file)
{
    char line[DP_SYSFS_LINE];

    return dp_sysfs_line(root, line, "%s/%s/%s", devices, name, file) ? dp_pci_gen(dp_strtod(line, NULL))
                                                                     : 0;
}

/* 255 and 0 are what bridges without a link say. */
static int read_width(const char *root, const char *name, const char *file)
{
    int64_t width = dp_sysfs_number(root, 0, "%s/%s/%s", devices, name, file);

    return width > 0 && width <= 32 ? (int)width : 0;
}

static uint16_t read_id(const char *root, const char *name, const char *file)
{
    return (uint16_t)dp_sysfs_number(root, 0, "%s/%s/%s", devices, name, file);
}

static void read_function(const char *root, const char *name, struct dp_pci_function *f)
{
    f->id.class_code = (uint32_t)dp_sysfs_number(root, 0, "%s/%s/class", devices, name) & 0xffffff;
    f->id.vendor_id = read_id(root, name, "vendor");
    f->id.device_id = read_id(root, name, "device");
    if (!dp_pci_is_gpu(&f->id) && !dp_pci_is_nic(&f->id) && !dp_pci_is_bridge(&f->id))
        return; /* the rest is never asked for */
    f->id.subsystem_vendor_id = read_id(root, name, "subsystem_vendor");
    f->id.subsystem_device_id = read_id(root, name, "subsystem_device");
    f->numa = (int32_t)dp_sysfs_number(root, -1, "%s/%s/numa_node", devices, name);
    f->gen = read_gen(root, name, "current_link_speed");
    f->gen_max = read_gen(root, name, "max_link_speed");
    f->width = read_width(root, name, "current_link_width");
    f->width_max = read_width(root, name, "max_link_width");
}

/* Where it stands: "/sys/devices/pci0000:15/...". */
static char *read_dir(const char *root, const char *name)
{
    char path[PATH_MAX], target[PATH_MAX], *dir = NULL;

    snprintf(path, sizeof(path), "%s%s/%s", root, devices, name);
    ssize_t len = readlink(path, target, sizeof(target) - 1);
    target[len > 0 ? len : 0] = '\0';
    const char *tail = strstr(target, "devices/");
    if (tail && asprintf(&dir, "/sys/%s", tail) < 0)
        dir = NULL;
    return dir;
}

/* ---- the tree ------------------------------------------------------------------------------- */

/* The last "pciDDDD:BB" of the path is the root bus (buses can be nested), the component before the
 * function's own the bridge. */
static void place(struct dp_pci_functions *f, struct dp_pci_function *one)
{
    const char *last = one->dir ? strrchr(one->dir, '/') : NULL;
    unsigned domain, bus;

    one->root_domain = one->id.domain;
    for (const char *at = one->dir; at && (at = strstr(at, "/pci")); at++)
        if (sscanf(at, "/pci%x:%x/", &domain, &bus) == 2) {
            one->root_domain = domain;
            one->root_bus = (uint8_t)bus;
        }
    const char *before = last;
    while (before && before > one->dir && *--before != '/')
        ;
    struct dp_topo_pci pci;
    if (before && parse_address(before + 1, &pci))
        one->parent = find(f, &pci);
}

static int compare(const void *a, const void *b)
{
    const struct dp_topo_pci *x = &((const struct dp_pci_function *)a)->id;
    const struct dp_topo_pci *y = &((const struct dp_pci_function *)b)->id;

    if (x->domain != y->domain)
        return x->domain < y->domain ? -1 : 1;
    return (x->bus << 8 | x->device << 3 | x->function) - (y->bus << 8 | y->device << 3 | y->function);
}

bool dp_sysfs_pci(struct dp_topo_builder *b, const char *root, struct dp_pci_functions *out)
{
    struct dp_sysfs_names names = dp_sysfs_list(root, "%s", devices);

    *out = (struct dp_pci_functions){0};
    if (names.count < 0)
        return false;
    out->list = calloc((size_t)names.count + 1, sizeof(*out->list));
    b->failed |= !out->list;
    for (int i = 0; i < names.count && out->list; i++) {
        struct dp_pci_function *f = &out->list[out->count];
        struct dp_topo_pci pci = {0};
        if (!parse_address(names.names[i], &pci))
            continue;
        *f = (struct dp_pci_function){
            .id = pci, .parent = -1, .numa = -1, .model = "", .dir = read_dir(root, names.names[i]),
        };
        read_function(root, names.names[i], f);
        out->count++;
    }
    dp_sysfs_names_fini(&names);
    if (out->count)
        qsort(out->list, (size_t)out->count, sizeof(*out->list), compare);
    for (int32_t i = 0; i < out->count; i++)
        place(out, &out->list[i]);
    return true;
}
