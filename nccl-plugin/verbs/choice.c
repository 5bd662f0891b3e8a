/* SPDX-License-Identifier: Apache-2.0
 *
 * choice.c - the ports of a connection: which they are, how they are described to the peer, and which
 * are paired.
 */
#include "base/fail.h"
#include "nccl-plugin/net/placement.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/ibv_qp.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool has_port(struct dpn_port *const *ports, int count, const struct dpn_port *port)
{
    for (int i = 0; i < count; i++)
        if (ports[i] == port)
            return true;
    return false;
}

void dpn_choice_gather(struct dpn_choice *c, bool is_sender)
{
    struct dpn_ports *all = &dpn_verbs_state.ports;

    for (c->port_count = 0; c->port_count < c->device->rail_count; c->port_count++)
        c->ports[c->port_count] = c->device->rails[c->port_count];
    if (!is_sender || !dpn_verbs_state.options.subnet_bits)
        return;
    for (int i = 0; i < all->count && c->port_count < DPN_MAX_RAILS; i++) {
        if (!has_port(c->ports, c->port_count, &all->list[i]))
            c->ports[c->port_count++] = &all->list[i];
    }
}

/* Only tried if requested, with the queue sizes of a real queue pair. */
static bool can_any_order(const struct dpn_port *port)
{
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DPN_SEND_QUEUE, .max_recv_wr = DPN_RECV_QUEUE, .max_send_sge = 2,
                .max_recv_sge = 1},
    };

    if (!dpn_verbs_state.options.out_of_order)
        return false;
    attr.send_cq = attr.recv_cq = dpn_ibv.create_cq(port->hca->context, 1, NULL, NULL, 0);
    struct ibv_qp *qp = attr.send_cq ? dpn_mlx5_new_qp(port->hca->pd, &attr) : NULL;
    const int error = errno;
    dpn_ibv_qp_free(qp);
    if (attr.send_cq)
        dpn_ibv.destroy_cq(attr.send_cq);
    if (!qp && !atomic_flag_test_and_set(&has_warned))
        dp_log(DP_LOG_WARN, "NCCL_IB_OOO_RQ=1: %s receives in order only (%s); going on with that",
               port->name, strerror(error));
    return qp;
}

void dpn_choice_describe(const struct dpn_choice *c, struct dpn_port_info *ports)
{
    struct dpn_gids gids;

    for (int i = 0; i < c->port_count; i++) {
        const struct dpn_port *port = c->ports[i];
        snprintf(ports[i].name, sizeof(ports[i].name), "%.31s", port->name);
        ports[i].is_ethernet = port->is_ethernet;
        ports[i].any_order = can_any_order(port);
        ports[i].speed_mbps = (uint32_t)port->speed_mbps;
        if (!dpn_port_gids(port, &dpn_verbs_state.options, &gids) && gids.count)
            ports[i].gid = gids.list[0];
    }
}

uint32_t dpn_choice_max_message(const struct dpn_choice *c)
{
    uint32_t most = UINT32_MAX;

    for (int i = 0; i < c->port_count; i++)
        if (c->ports[i]->max_message < most)
            most = c->ports[i]->max_message;
    return most;
}

/* The sender's port i; if that is not in our port's subnet, another one that is. */
static int find_near(const struct dpn_hello *hello, int i, const struct dpn_gid *our)
{
    const int all = hello->port_count + hello->other_count;

    for (int k = 0; k < all && hello->subnet_bits; k++) {
        const int s = (i + k) % all;
        if (dpn_gids_are_near(&hello->ports[s].gid, our, hello->subnet_bits))
            return s;
    }
    return i;
}

void dpn_choice_pair(const struct dpn_choice *c, const struct dpn_hello *hello,
                     const struct dpn_port_info *own, struct dpn_plan *plan)
{
    const int ours = c->device->rail_count, theirs = hello->port_count;

    for (int i = 0; i < (ours > theirs ? ours : theirs); i++) {
        const int r = i % ours, s = find_near(hello, i % theirs, &own[r].gid);
        if (hello->ports[s].is_ethernet != c->device->rails[r]->is_ethernet)
            continue;
        plan->rail[plan->rails].sender = (uint8_t)s;
        plan->rail[plan->rails].receiver = (uint8_t)r;
        plan->rails++;
    }
}

/* ---- by the placement ------------------------------------------------------------------------ */

/* First the ports that the placement names for this flow, then those of the device that NCCL chose,
 * which are used while none of the first works. Both sides use the same order, and ports with the same
 * index are paired. */

static struct dpn_port *find_port(int32_t nic)
{
    struct dpn_ports *ports = &dpn_verbs_state.ports;

    for (int i = 0; i < ports->count; i++) {
        struct dpn_port *port = &ports->list[i];
        if (dpn_placement_is_port(nic, port->hca->name, port->number, port->hca->pci_path))
            return port;
    }
    return NULL;
}

/* NCCL relies on the capabilities of the device that it chose. */
static bool has_capabilities_of(const struct dpn_port *port, const struct dpn_device *chosen)
{
    return port->is_ethernet == chosen->rails[0]->is_ethernet &&
           (port->hca->pointers & chosen->pointers) == chosen->pointers;
}

/* All of the flow's ports, or none: otherwise the two sides would pair different ports. */
static bool take_ports(const struct dpn_choice *c, bool is_sender, const struct dpn_flow *flow,
                       struct dpn_device *out)
{
    for (int i = 0; i < flow->count; i++) {
        struct dpn_port *port = find_port(is_sender ? flow->nics[i].from : flow->nics[i].to);
        if (!port || !has_capabilities_of(port, c->device)) {
            dp_log(DP_LOG_WARN,
                   "the placement wants NIC %d of %d of a flow that this host does not "
                   "offer, or not for such memory; going on over %s",
                   i + 1, flow->count, c->device->name);
            return false;
        }
        out->rails[out->rail_count++] = port;
    }
    return true;
}

/* The device with this port only, which counts its bytes. */
static int find_device(const struct dpn_port *port, int otherwise)
{
    const struct dpn_device *device;
    int count = 0;

    dpn_net_devices(&count);
    for (int i = 0; i < count; i++)
        if (!dpn_net_device(i, &device) && device->rail_count == 1 && device->rails[0] == port)
            return i;
    return otherwise;
}

int dpn_choice_place(struct dpn_choice *c, bool is_sender, int32_t from, int32_t to,
                     enum dpn_traffic traffic, int dev)
{
    struct dpn_device placed = *c->device;
    struct dpn_flow flow;

    dpn_placement_flow(from, to, traffic, &flow);
    placed.rail_count = 0;
    if (!flow.count || !take_ports(c, is_sender, &flow, &placed))
        return dev;
    c->placed_ports = placed.rail_count;
    c->placed_qps = flow.qps;
    c->placed_class = flow.traffic_class;
    for (int i = 0; i < c->device->rail_count && placed.rail_count < DPN_MAX_RAILS; i++)
        if (!has_port(placed.rails, placed.rail_count, c->device->rails[i]))
            placed.rails[placed.rail_count++] = c->device->rails[i];
    c->own_device = placed;
    c->device = &c->own_device;
    dpn_choice_gather(c, is_sender);
    dp_log(DP_LOG_INFO, "worker %d to %d goes over %s and %d more by the placement", from, to,
           placed.rails[0]->name, c->placed_ports - 1);
    return c->placed_ports == 1 ? find_device(placed.rails[0], dev) : dev;
}

void dpn_choice_prefer(const struct dpn_choice *c, const struct dpn_plan *plan,
                       struct dpn_queues *q)
{
    q->preferred = 0;
    for (int i = 0; i < q->qp_count; i++)
        if (plan->rail[q->qps[i].rail].sender < c->placed_ports)
            q->preferred |= (uint16_t)(1u << i);
}
