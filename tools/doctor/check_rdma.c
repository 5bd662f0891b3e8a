/* SPDX-License-Identifier: Apache-2.0
 *
 * check_rdma.c - RDMA devices: are their ports up, can user space reach them, which addresses
 * (GIDs) have they, how large may packets be. See sysfs-class-infiniband in the kernel's
 * documentation.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- user space ----------------------------------------------------------------------------- */

/* A container needs the device nodes handed in. */
static void look_at_nodes(struct doctor *d)
{
    struct tree_list nodes = tree_glob(&d->tree, "/dev/infiniband/uverbs*");

    if (!nodes.count)
        doctor_say(d, DOCTOR_FAULT,
                   "there are RDMA devices, but no /dev/infiniband/uverbs*\v"
                   "/sys/class/infiniband, /dev/infiniband\vlibibverbs finds no device\v"
                   "modprobe ib_uverbs; for a container docker run --device=/dev/infiniband");
    tree_list_free(&nodes);
}

/* "mlx5_core" needs libmlx5-rdmav34.so, where libibverbs looks for its providers. Said once a
 * kind. */
static void look_at_provider(struct doctor *d, const char *name, char kind[static 64])
{
    struct tree_path driver;
    char before[64];

    if (!tree_real(&d->tree, &driver, "/sys/class/infiniband/%s/device/driver", name))
        return;
    snprintf(before, sizeof(before), "%s", kind);
    snprintf(kind, 64, "%.63s", tree_base(driver.text));
    kind[strcspn(kind, "_")] = 0;
    if (!strcmp(before, kind))
        return;
    struct tree_list files = tree_glob(&d->tree, "/usr/lib*/{*/,}libibverbs/lib%s-rdmav*.so", kind);
    if (!files.count)
        doctor_say(d, DOCTOR_FAULT,
                   "no provider of libibverbs for %s (%s)\v%s, /usr/lib*/libibverbs\v"
                   "libibverbs does not offer the device\v"
                   "install ibverbs-providers (rdma-core), in the container too", name, kind,
                   driver.text);
    tree_list_free(&files);
}

/* ---- ports ---------------------------------------------------------------------------------- */

/* "4: ACTIVE" */
static bool is_up(struct doctor *d, const char *name, const char *port)
{
    char state[256];

    if (!tree_line(&d->tree, state, "%s/state", port))
        return false;
    if (strstr(state, "ACTIVE"))
        return true;
    doctor_say(d, DOCTOR_WARNING,
               "port %s of %s is not active\v%s/state: %s\vit is not used\v"
               "check the cable and the switch, or leave it out with NCCL_IB_HCA=^NAME",
               tree_base(port), name, port, state);
    return false;
}

static bool is_ethernet(struct doctor *d, const char *port)
{
    char layer[256];

    return tree_line(&d->tree, layer, "%s/link_layer", port) && !strcmp(layer, "Ethernet");
}

/* Is there an address at that place of the table, and is it one that routers pass? */
static bool is_routable(const char *gid)
{
    return strcmp(gid, "0000:0000:0000:0000:0000:0000:0000:0000") && strncmp(gid, "fe80:", 5);
}

/* The first address that is of RoCE v2 and routable, or -1. */
static int find_gid(struct doctor *d, const char *port)
{
    char gid[256], type[256];

    for (int i = 0; i < 256 && tree_has(&d->tree, "%s/gids/%d", port, i); i++)
        if (tree_line(&d->tree, gid, "%s/gids/%d", port, i) && is_routable(gid) &&
            tree_line(&d->tree, type, "%s/gid_attrs/types/%d", port, i) && strstr(type, "v2"))
            return i;
    return -1;
}

/* What NCCL_IB_GID_INDEX forces, rather than lets NCCL find. */
static void look_at_forced_gid(struct doctor *d, const char *name, const char *port, int best)
{
    const char *forced = doctor_variable(d, "NCCL_IB_GID_INDEX");
    char gid[256] = "empty", type[256] = "no type";

    if (!forced || atoi(forced) < 0)
        return;
    tree_line(&d->tree, gid, "%s/gids/%d", port, atoi(forced));
    tree_line(&d->tree, type, "%s/gid_attrs/types/%d", port, atoi(forced));
    if (is_routable(gid) && strcmp(gid, "empty") && strstr(type, "v2"))
        return;
    doctor_say(d, DOCTOR_FAULT,
               "GID %s of %s is %s (%s)\v%s, %s/gids\v"
               "connections over it fail, or do not leave the subnet\v%s", forced, name, gid, type,
               doctor_origin(d, "NCCL_IB_GID_INDEX"), port,
               best < 0 ? "unset NCCL_IB_GID_INDEX"
                        : doctor_text(d, "unset NCCL_IB_GID_INDEX; GID %d would do", best));
}

static void look_at_gids(struct doctor *d, const char *name, const char *port)
{
    int best = find_gid(d, port);

    if (best < 0)
        doctor_say(d, DOCTOR_FAULT,
                   "%s has no routable RoCE v2 address\v%s/gids, %s/gid_attrs/types\v"
                   "NCCL falls back to a link-local or RoCE v1 address, which does not leave the "
                   "subnet\vgive its network interface an IP address", name, port, port);
    else
        doctor_say(d, DOCTOR_FINE, "%s: GID %d is a routable RoCE v2 address\v%s/gids/%d", name, best,
                   port, best);
    look_at_forced_gid(d, name, port, best);
}

/* RoCE's packets are powers of two of payload, up to 4096, inside the interface's frames. */
static void look_at_mtu(struct doctor *d, const char *name)
{
    char interface[64];
    double mtu;

    if (!devices_interface(d, name, interface) ||
        !tree_number(&d->tree, &mtu, "/sys/class/net/%s/mtu", interface) || mtu >= 4200)
        return;
    doctor_say(d, DOCTOR_WARNING,
               "%s carries %d bytes a packet, not 4096\v/sys/class/net/%s/mtu: %.0f\v"
               "more packets, more work: less bandwidth on fast links\v"
               "ip link set %s mtu 9000, on the switches and on all hosts alike", name,
               mtu >= 2200 ? 2048 : mtu >= 1150 ? 1024 : 512, interface, mtu, interface);
}

static void look_at_device(struct doctor *d, const char *path, char kind[static 64])
{
    struct tree_list ports = tree_glob(&d->tree, "%s/ports/*", path);
    const char *name = tree_base(path);

    look_at_provider(d, name, kind);
    for (size_t i = 0; i < ports.count; i++) {
        if (!is_up(d, name, ports.paths[i]) || !is_ethernet(d, ports.paths[i]))
            continue;
        look_at_gids(d, name, ports.paths[i]);
        look_at_mtu(d, name);
    }
    tree_list_free(&ports);
}

void doctor_rdma(struct doctor *d)
{
    struct tree_list list = tree_glob(&d->tree, "/sys/class/infiniband/*");
    char kind[64] = "";

    for (size_t i = 0; i < list.count; i++)
        look_at_device(d, doctor_text(d, "%s", list.paths[i]), kind);
    if (list.count)
        look_at_nodes(d);
    else
        doctor_say(d, DOCTOR_FINE,
                   "no RDMA device: messages go by TCP or shared memory\v/sys/class/infiniband");
    tree_list_free(&list);
}
