/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net_devices.h"

#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/net_pci.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        dp_text_addf(&t, "%s%s (%s, %d Mbit/s)", i ? ", " : "", dev->interface.name,
                     dev->interface.address, dev->speed_mbps);
    }
    dp_log(DP_LOG_INFO, "%d device%s: %s%s%s", d->count, d->count == 1 ? "" : "s",
           t.data ? t.data : "", d->count ? "; " : "", why);
    dp_text_fini(&t);
}

static int find_interfaces(const struct dpn_net_options *options, struct dpn_interface *out,
                           char *why, size_t why_len)
{
    const char *list = dp_foreign_variable("NCCL_SOCKET_IFNAME");
    const char *family = dp_foreign_variable("NCCL_SOCKET_FAMILY");
    const struct dpn_interface_rules rules = {list, family, dp_foreign_variable("NCCL_COMM_ID")};
    int count = dpn_interfaces_find(&rules, out, DPN_MAX_DEVICES);

    snprintf(why, why_len, "%s%s%s%s, DUALPIPE_NET_WIRE=%s", list ? "NCCL_SOCKET_IFNAME=" : "all "
             "interfaces of the best kind", list ? list : "", family ? ", " : "",
             family ? family : "", options->wire);
    if (!count && list) {
        snprintf(why, why_len, "no interface is admitted by NCCL_SOCKET_IFNAME=%s%s%s", list,
                 family ? " and has an address of " : "", family ? family : "");
    } else if (!count) {
        out[count++] = (struct dpn_interface){.name = "lo", .address = "127.0.0.1"};
        snprintf(why, why_len, "no interface is up: the loopback, for peers on this host only");
    }
    return count;
}

void dpn_devices_find(const char *root, const struct dpn_net_options *options,
                      struct dpn_devices *out)
{
    struct dpn_interface interfaces[DPN_MAX_DEVICES];
    char why[256];

    out->count = 0;
    if (!options->devices) {
        say(out, "none, as DUALPIPE_NET_DEVICES=0 says; NCCL goes on with another net");
        return;
    }
    int count = find_interfaces(options, interfaces, why, sizeof(why));
    for (int i = 0; i < count && i < options->devices; i++) {
        out->list[i] = (struct dpn_device){
            .interface = interfaces[i],
            .pci_path = find_pci_path(root, interfaces[i].name),
            .speed_mbps = read_speed(root, interfaces[i].name),
        };
        out->count++;
    }
    say(out, why);
}
