/* SPDX-License-Identifier: Apache-2.0
 *
 * sysfs_ports.c - the ports of a NIC: those of its RDMA device, each with the interface that its GIDs
 * belong to; else its interfaces. Virtio and the like put a directory of theirs in between.
 */
#include "base/text.h"
#include "topology/sysfs.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nic {
    struct dp_topo_builder *b;
    const char *root;
    char dir[PATH_MAX]; /* what has infiniband/ and net/ */
    int32_t node;
};

/* ---- interfaces ----------------------------------------------------------------------------- */

/* Mb/s; -1 where the link is down or virtual. */
static double read_net_rate(const struct nic *n, const char *net)
{
    int64_t mbps = dp_sysfs_number(n->root, 0, "%s/net/%s/speed", n->dir, net);

    return mbps > 0 ? (double)mbps / 8000 : 0;
}

/* "10.1.0.0/16": the network of an interface, from the table of routes. */
static uint32_t read_network(const struct nic *n, const char *net)
{
    char path[PATH_MAX], line[DP_SYSFS_LINE], name[DP_SYSFS_LINE];
    unsigned destination, gateway, mask;
    uint32_t text = 0;

    if (snprintf(path, sizeof(path), "%s/proc/net/route", n->root) >= (int)sizeof(path))
        return 0;
    FILE *f = fopen(path, "re");
    while (f && !text && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%4095s %x %x %*x %*d %*d %*d %x", name, &destination, &gateway, &mask) != 4 ||
            strcmp(name, net) || gateway || !destination || !mask || mask == UINT32_MAX)
            continue;
        destination = ntohl(destination); /* as it lies in memory of the machine */
        text = dp_topo_add_textf(n->b, "%u.%u.%u.%u/%d", destination >> 24, destination >> 16 & 255,
                                 destination >> 8 & 255, destination & 255, __builtin_popcount(mask));
    }
    if (f)
        fclose(f);
    return text;
}

/* The kernel's number of the interface's link layer: 1 Ethernet, Wi-Fi too, 32 InfiniBand. */
static enum dp_topo_fabric net_fabric(const struct nic *n, const char *net)
{
    const int64_t type = dp_sysfs_number(n->root, 0, "%s/net/%s/type", n->dir, net);

    return type == 1    ? DP_TOPO_ETHERNET
           : type == 32 ? DP_TOPO_INFINIBAND
                        : dp_pci_fabric(&dp_topo_node(n->b, n->node)->pci);
}

static void add_net_port(const struct nic *n, const char *net)
{
    const int32_t number =
        (int32_t)dp_sysfs_number(n->root, 0, "%s/net/%s/dev_port", n->dir, net) + 1;
    char state[DP_SYSFS_LINE];
    uint32_t name = dp_topo_add_text(n->b, net), subnet = read_network(n, net);
    struct dp_topo_port *p = dp_topo_add_port(n->b, n->node, number);

    dp_sysfs_line(n->root, state, "%s/net/%s/operstate", n->dir, net);
    p->net = name;
    p->fabric = net_fabric(n, net);
    p->subnet = subnet;
    p->up = !strcmp(state, "up") || !strcmp(state, "unknown");
    p->mtu_bytes = (int32_t)dp_sysfs_number(n->root, 0, "%s/net/%s/mtu", n->dir, net);
    p->bytes_per_ns = read_net_rate(n, net);
}

static void add_net_ports(const struct nic *n, const struct dp_sysfs_names *nets)
{
    for (int i = 0; i < nets->count; i++)
        add_net_port(n, nets->names[i]);
    if (nets->count > 0)
        dp_topo_node(n->b, n->node)->name = dp_topo_add_text(n->b, nets->names[0]);
}

/* ---- RDMA ----------------------------------------------------------------------------------- */

/* A hole in the table is all zeros. */
static bool is_hole(const uint8_t raw[16])
{
    static const uint8_t zeros[16];

    return !memcmp(raw, zeros, sizeof(zeros));
}

static enum dp_topo_gid_type read_gid_type(const struct nic *n, const char *port, const char *index,
                                           enum dp_topo_fabric fabric)
{
    char type[DP_SYSFS_LINE];

    dp_sysfs_line(n->root, type, "%s/gid_attrs/types/%s", port, index);
    if (fabric == DP_TOPO_INFINIBAND)
        return DP_TOPO_GID_IB;
    return strstr(type, "v2") ? DP_TOPO_GID_ROCE_V2 : DP_TOPO_GID_ROCE_V1;
}

static void read_gids(const struct nic *n, const char *port, enum dp_topo_fabric fabric)
{
    struct dp_sysfs_names names = dp_sysfs_list(n->root, "%s/gids", port);
    char line[DP_SYSFS_LINE];
    uint8_t raw[16];

    for (int i = 0; i < names.count; i++)
        if (dp_sysfs_line(n->root, line, "%s/gids/%s", port, names.names[i]) &&
            dp_topo_parse_gid(line, raw) && !is_hole(raw))
            dp_topo_add_gid(n->b, atoi(names.names[i]),
                            read_gid_type(n, port, names.names[i], fabric), raw);
    dp_sysfs_names_fini(&names);
}

/* What the first GID says that says anything: an IPv4 address, of which it does not say how long the
 * network's part is, or an IPv6 one. */
static uint32_t guess_network(const struct nic *n, const struct dp_topo_port *p)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    for (int32_t i = p->first_gid; i < p->first_gid + p->gid_count && !n->b->failed; i++) {
        const uint8_t *raw = n->b->t.gids[i].raw;
        if (!memcmp(raw, mapped, sizeof(mapped))) {
            dp_topo_add_note(n->b, DP_TOPO_ASSUMED, n->node, "%u.%u.%u.%u of %s: its network is taken "
                             "to be as long as three bytes", raw[12], raw[13], raw[14], raw[15],
                             n->b->t.text + p->rdma);
            return dp_topo_add_textf(n->b, "%u.%u.%u.0/24", raw[12], raw[13], raw[14]);
        }
        if (raw[0] != 0xfe)
            return dp_topo_add_textf(n->b, "%02x%02x:%02x%02x:%02x%02x:%02x%02x::/64", raw[0], raw[1],
                                     raw[2], raw[3], raw[4], raw[5], raw[6], raw[7]);
    }
    return 0;
}

/* Of the port that was added last, whose directory is `port`. */
static uint32_t read_subnet(const struct nic *n, const char *port, const char *net)
{
    const struct dp_topo_port *p = &n->b->t.ports[n->b->t.port_count - 1];
    char prefix[DP_SYSFS_LINE];
    uint32_t network;

    if (p->fabric == DP_TOPO_ETHERNET) {
        network = *net ? read_network(n, net) : 0;
        return network ? network : guess_network(n, p);
    }
    dp_sysfs_line(n->root, prefix, "%s/gids/0", port);
    int64_t manager = dp_sysfs_number(n->root, 0, "%s/sm_lid", port);
    if (strlen(prefix) < 19 || manager <= 0)
        return 0;
    return dp_topo_add_textf(n->b, "%.19s sm %lld", prefix, (long long)manager);
}

/* The interface of the first GID, else that with the port's number; "" for none. */
static void find_net(const struct nic *n, const char *port, int number, char net[DP_SYSFS_LINE])
{
    struct dp_sysfs_names nets;

    if (dp_sysfs_line(n->root, net, "%s/gid_attrs/ndevs/0", port) && *net)
        return;
    nets = dp_sysfs_list(n->root, "%s/net", n->dir);
    for (int i = 0; i < nets.count && !*net; i++)
        if (nets.count == 1 ||
            dp_sysfs_number(n->root, -1, "%s/net/%s/dev_port", n->dir, nets.names[i]) == number - 1)
            snprintf(net, DP_SYSFS_LINE, "%s", nets.names[i]);
    dp_sysfs_names_fini(&nets);
}

static uint64_t read_guid(const struct nic *n, const char *device)
{
    char line[DP_SYSFS_LINE];

    dp_sysfs_line(n->root, line, "%s/infiniband/%s/sys_image_guid", n->dir, device);
    return dp_topo_parse_guid(line);
}

static void add_rdma_port(const struct nic *n, const char *device, int number)
{
    char port[PATH_MAX], line[DP_SYSFS_LINE], net[DP_SYSFS_LINE];

    if (snprintf(port, sizeof(port), "%s/infiniband/%s/ports/%d", n->dir, device, number) >=
        (int)sizeof(port))
        return;
    find_net(n, port, number, net);
    uint32_t rdma = dp_topo_add_text(n->b, device), net_text = dp_topo_add_text(n->b, net);
    struct dp_topo_port *p = dp_topo_add_port(n->b, n->node, number);
    p->rdma = rdma;
    p->net = net_text;
    dp_sysfs_line(n->root, line, "%s/link_layer", port);
    p->fabric = !strcmp(line, "InfiniBand") ? DP_TOPO_INFINIBAND
                : !strcmp(line, "Ethernet") ? DP_TOPO_ETHERNET
                                            : DP_TOPO_FABRIC_UNKNOWN;
    dp_sysfs_line(n->root, line, "%s/state", port); /* "4: ACTIVE" */
    p->up = strtol(line, NULL, 10) == 4;
    dp_sysfs_line(n->root, line, "%s/rate", port); /* "400 Gb/sec (4X NDR)" */
    p->bytes_per_ns = dp_strtod(line, NULL) / 8;
    if (!(p->bytes_per_ns > 0 && p->bytes_per_ns < 1e6))
        p->bytes_per_ns = 0;
    p->mtu_bytes = *net ? (int32_t)dp_sysfs_number(n->root, 0, "%s/net/%s/mtu", n->dir, net) : 0;
    p->guid = read_guid(n, device);
    read_gids(n, port, p->fabric);
    uint32_t subnet = n->b->failed || !p->up ? 0 : read_subnet(n, port, net);
    p->subnet = subnet;
}

static void add_rdma_ports(const struct nic *n, const char *device)
{
    struct dp_sysfs_names ports = dp_sysfs_list(n->root, "%s/infiniband/%s/ports", n->dir, device);

    for (int i = 0; i < ports.count; i++)
        add_rdma_port(n, device, atoi(ports.names[i]));
    dp_sysfs_names_fini(&ports);
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Ports of what lies right in n->dir; false: none. */
static bool add_ports(const struct nic *n)
{
    struct dp_sysfs_names rdma = dp_sysfs_list(n->root, "%s/infiniband", n->dir);
    struct dp_sysfs_names nets = dp_sysfs_list(n->root, "%s/net", n->dir);
    bool found = rdma.count > 0 || nets.count > 0;

    for (int i = 0; i < rdma.count; i++)
        add_rdma_ports(n, rdma.names[i]);
    if (rdma.count > 0)
        dp_topo_node(n->b, n->node)->name = dp_topo_add_text(n->b, rdma.names[0]);
    else
        add_net_ports(n, &nets);
    dp_sysfs_names_fini(&rdma);
    dp_sysfs_names_fini(&nets);
    return found;
}

void dp_sysfs_ports(struct dp_topo_builder *b, const char *root, const char *dir, int32_t nic)
{
    struct nic n = {.b = b, .root = root, .node = nic};
    struct dp_sysfs_names below;

    if (snprintf(n.dir, sizeof(n.dir), "%s", dir) >= (int)sizeof(n.dir) || add_ports(&n))
        return;
    below = dp_sysfs_list(root, "%s", dir);
    for (int i = 0; i < below.count; i++)
        if (!strncmp(below.names[i], "virtio", 6) &&
            snprintf(n.dir, sizeof(n.dir), "%s/%s", dir, below.names[i]) < (int)sizeof(n.dir) &&
            add_ports(&n))
            break;
    dp_sysfs_names_fini(&below);
}
