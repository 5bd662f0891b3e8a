/* SPDX-License-Identifier: Apache-2.0
 *
 * placement.c - the ports of a connection by the placement: first those that it names for this
 * flow, then those of the device that NCCL chose, which are used while none of the first works.
 * Both sides use the same order, and ports with the same index are paired.
 */
#include "base/fail.h"
#include "nccl-plugin/net/placement.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/state.h"

#include <stdio.h>

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

static bool has_port(const struct dpn_device *device, const struct dpn_port *port)
{
    for (int i = 0; i < device->rail_count; i++)
        if (device->rails[i] == port)
            return true;
    return false;
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
        if (!has_port(&placed, c->device->rails[i]))
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
