/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/devices.h"

#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/verbs/verbs.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What NCCL assumes of a device that does not know; virtual ones say -1. */
enum { UNKNOWN_SPEED_MBPS = 10000 };

static int read_speed(const char *root, const char *name)
{
    char path[PATH_MAX], text[32] = "";

    snprintf(path, sizeof(path), "%s/sys/class/net/%s/speed", root, name);
    FILE *f = fopen(path, "re");
    if (f) {
        if (!fgets(text, sizeof(text), f))
            text[0] = '\0';
        fclose(f);
    }
    long mbps = strtol(text, NULL, 10);
    return mbps > 0 && mbps < INT_MAX ? (int)mbps : UNKNOWN_SPEED_MBPS;
}

static char *find_pci_path(const char *root, const char *name)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/sys/class/net/%s/device", root, name);
    return dpn_pci_path(path);
}

static void say(const struct dpn_devices *d, const char *why)
{
    struct dp_text t = {0};

    for (int i = 0; i < d->count; i++) {
        const struct dpn_device *dev = &d->list[i];
        dp_text_addf(&t, "%s%s (%s%s, %d Mbit/s)", i ? ", " : "", dev->name,
                     dev->rail_count ? "RDMA, " : "",
                     *dev->interface.address ? dev->interface.address : "no address",
                     dev->speed_mbps);
    }
    dp_log(DP_LOG_INFO, "%d device%s: %s%s%s", d->count, d->count == 1 ? "" : "s",
           t.data ? t.data : "", d->count ? "; " : "", why);
    dp_text_fini(&t);
}

static bool wants(const struct dpn_net_options *options, const char *wire)
{
    return !strcmp(options->wire, "auto") || !strcmp(options->wire, wire);
}

/* NULL: both. */
static const char *wanted_family(void)
{
    const char *family = dp_foreign_variable("NCCL_SOCKET_FAMILY");

    if (!family || !strcmp(family, "AF_INET") || !strcmp(family, "AF_INET6"))
        return family;
    dp_log(DP_LOG_WARN, "NCCL_SOCKET_FAMILY=%s: expected AF_INET or AF_INET6; going on with both",
           family);
    return NULL;
}

static int find_interfaces(const struct dpn_net_options *options, struct dpn_interface *out,
                           char *why, size_t why_len)
{
    const char *list = dp_foreign_variable("NCCL_SOCKET_IFNAME");
    const char *family = wanted_family();
    const struct dpn_interface_rules rules = {list, family, dp_foreign_variable("NCCL_COMM_ID")};
    char unusable[256];
    int count = dpn_interfaces_find(&rules, out, DPN_MAX_PLAIN, unusable, sizeof(unusable));

    snprintf(why, why_len, "%s%s%s%s, DUALPIPE_NET_WIRE=%s", list ? "NCCL_SOCKET_IFNAME=" : "all "
             "interfaces of the best kind", list ? list : "", family ? ", " : "",
             family ? family : "", options->wire);
    if (!count && list) {
        snprintf(why, why_len, "NCCL_SOCKET_IFNAME=%s admits no interface%s", list,
                 *unusable ? " that can be used" : "");
    } else if (!count && wants(options, "shm")) {
        out[count++] = (struct dpn_interface){.name = "lo"};
        snprintf(why, why_len, "no interface %s: shared memory, for peers on this host only",
                 *unusable ? "can be used" : "is up");
    } else if (!count) {
        snprintf(why, why_len, "no interface %s, and DUALPIPE_NET_WIRE is %s",
                 *unusable ? "can be used" : "is up", options->wire);
    }
    if (*unusable)
        snprintf(why + strlen(why), why_len - strlen(why), "; passed over: %s", unusable);
    return count;
}

static void add_interfaces(const char *root, const struct dpn_interface *interfaces, int count,
                           struct dpn_devices *out)
{
    for (int i = 0; i < count; i++) {
        struct dpn_device *device = &out->list[out->count++];
        *device = (struct dpn_device){
            .interface = interfaces[i],
            .pci_path = find_pci_path(root, interfaces[i].name),
            .speed_mbps = read_speed(root, interfaces[i].name),
            .guid = (uint64_t)i, /* the same on all ranks, as NCCL_CROSS_NIC=0 wants it */
            .pointers = NCCL_PTR_HOST, .rail = NCCL_NET_ID_UNDEF, .plane = NCCL_NET_ID_UNDEF,
        };
        snprintf(device->name, sizeof(device->name), "%.*s", DPN_INTERFACE_NAME - 1,
                 interfaces[i].name);
    }
}

/* The wire beside the queue pairs goes over the first interface, as NCCL's own sockets do. */
static void add_ports(const struct dpn_interface *interface, const struct dpn_net_options *options,
                      struct dpn_devices *out, char *why, size_t why_len)
{
    out->count =
        dpn_verbs_find(out->list, (int)options->devices, options->has_force_flush, why, why_len);
    for (int i = 0; i < out->count; i++)
        out->list[i].interface = *interface;
}

static void name_members(struct dpn_devices *devices)
{
    for (int i = 0; i < devices->count; i++) {
        devices->list[i].member_count = 1;
        devices->list[i].members[0] = i;
    }
}

void dpn_devices_find(const char *root, const struct dpn_net_options *options,
                      struct dpn_devices *out)
{
    struct dpn_interface interfaces[DPN_MAX_PLAIN];
    char why[600], why_no_rdma[256] = "";

    out->count = 0;
    if (!options->devices) {
        say(out, "none, as DUALPIPE_NET_DEVICES=0 says; NCCL goes on with another net");
        return;
    }
    int count = find_interfaces(options, interfaces, why, sizeof(why));
    if (count > options->devices)
        count = (int)options->devices;
    if (wants(options, "verbs") && (!count || !*interfaces[0].address))
        snprintf(why_no_rdma, sizeof(why_no_rdma), "not used, as its control connections need a "
                                                   "network interface");
    else if (wants(options, "verbs"))
        add_ports(&interfaces[0], options, out, why_no_rdma, sizeof(why_no_rdma));
    if (!out->count && strcmp(options->wire, "verbs"))
        add_interfaces(root, interfaces, count, out);
    name_members(out);
    if (why_no_rdma[0])
        dp_log(DP_LOG_INFO, "RDMA: %s", why_no_rdma);
    say(out, why);
}

/* ---- where on the PCI bus something is ------------------------------------------------------- */

static bool is_pci(const char *dir)
{
    char link[PATH_MAX + 16], target[PATH_MAX];

    snprintf(link, sizeof(link), "%s/subsystem", dir);
    ssize_t n = readlink(link, target, sizeof(target) - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    const char *name = strrchr(target, '/');
    return name && !strcmp(name, "/pci");
}

/* The device itself, or the nearest above it on the PCI bus: a virtio device or a sub-function
 * stands below the function that NCCL knows. */
char *dpn_pci_path(const char *device)
{
    char *dir = realpath(device, NULL);

    while (dir && !is_pci(dir)) {
        char *slash = strrchr(dir, '/');
        if (slash && slash != dir) {
            *slash = '\0';
            continue;
        }
        free(dir);
        dir = NULL;
    }
    return dir;
}
