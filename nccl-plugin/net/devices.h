/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.h - what NCCL is offered: a device per RDMA port, or, where there is none, per network
 * interface in use. NCCL may fuse RDMA ports to further devices.
 */
#ifndef DPN_NET_DEVICES_H
#define DPN_NET_DEVICES_H

#include "nccl-plugin/options.h"
#include "wire/wire.h"

#include <dualpipe/dualpipe.h>

/* ---- network interfaces: which are used, by the rules of NCCL's own sockets -------------------- */

enum { DPN_INTERFACE_NAME = 16, DPN_ADDRESS_TEXT = 48 };

struct dpn_interface {
    char name[DPN_INTERFACE_NAME];
    char address[DPN_ADDRESS_TEXT]; /* "10.0.0.1", "fd00::1"; "": none, where no interface is up */
};

/* Whether NCCL_SOCKET_IFNAME admits a name: a comma-separated list of prefixes ("eth,ib"), of whole
 * names with = before it ("=eth0"), or of what is not to be used with ^ ("^docker,lo"). */
bool dpn_interface_is_wanted(const char *list, const char *name);

/* What NCCL's variables say; NULL: nothing. */
struct dpn_interface_rules {
    const char *list;    /* NCCL_SOCKET_IFNAME */
    const char *family;  /* NCCL_SOCKET_FAMILY: "AF_INET", "AF_INET6"; else either, IPv4 first */
    const char
        *comm_id; /* NCCL_COMM_ID: "10.0.0.1:1234", "[fd00::1]:1234"; names are not looked up */
};

/* Those that are up, have a carrier and an address, each once, at most max; addresses that need a
 * scope are none. Without a list the first of these that there are: ib*; in one subnet with
 * comm_id; the first group. 0 found is no error. */
struct ifaddrs;
int dpn_interfaces_choose(const struct ifaddrs *all, const struct dpn_interface_rules *rules,
                          struct dpn_interface *out, int max);
/* Those that the rules admit and that cannot be used, and why: "eno1 (no carrier), ib0 (no
 * address)". Without a list those that are down are left out. */
void dpn_interfaces_unusable(const struct ifaddrs *all, const struct dpn_interface_rules *rules,
                             char *out, size_t out_len);

/* ---- how many sockets a connection has ------------------------------------------------------- */

/* Have a peer that connects to the address of a listener here told so. */
int dpn_sockets_tell(struct dp_wire_address *tcp);

/* ---- devices --------------------------------------------------------------------------------- */

/* Plain and fused devices, as many as NCCL's own transport has; a name has room for those of all
 * rails. */
enum { DPN_MAX_PLAIN = 32, DPN_MAX_DEVICES = DPN_MAX_PLAIN + 256 };
enum { DPN_DEVICE_RAILS = 8, DPN_DEVICE_NAME = DPN_DEVICE_RAILS * 80 };

struct dpn_port; /* verbs/device.h */

struct dpn_device {
    char name[DPN_DEVICE_NAME];
    struct dpn_interface interface; /* of the wire */
    char *pci_path; /* of its PCI function in sysfs, NULL if it has none */
    int speed_mbps;
    uint64_t guid; /* guid and port: what has one bandwidth */
    int port;
    int pointers;    /* NCCL_PTR_*: the memory that it reaches */
    int rail, plane; /* -1: not known */
    bool needs_flush; /* it writes to GPUs by a PCI function of their own: see forceFlush of NCCL */
    int rail_count;  /* RDMA ports; 0: an interface */
    struct dpn_port *rails[DPN_DEVICE_RAILS];
    int member_count; /* the devices it is fused of; of a plain one only itself */
    int members[DPN_DEVICE_RAILS];
};

struct dpn_devices {
    int count;
    struct dpn_device list[DPN_MAX_DEVICES];
};

/* Whether the device's messages may have to go to and from GPUs: only its own ports can do that. */
static inline bool dpn_device_reaches_gpus(const struct dpn_device *device)
{
    return device->pointers & ~1; /* more than NCCL_PTR_HOST */
}

/* Look around, once per process; the strings are never freed, as NCCL keeps them. root: where /sys
 * is, "" as a rule. */
void dpn_devices_find(const char *root, const struct dpn_net_options *options,
                      struct dpn_devices *out);

/* The first line of a file of sysfs, without its end. */
bool dpn_read_line(const char *dir, const char *file, char *line, int len);

/* ---- where on the PCI bus something is ------------------------------------------------------- */

/* device: a link in sysfs, like /sys/class/net/eth0/device. The directory of the device's PCI
 * function, malloc'ed; NULL if it has none. */
char *dpn_pci_path(const char *device);

#endif
