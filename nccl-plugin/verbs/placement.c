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
static bool take_ports(const struct dpn_verbs *v, const struct dpn_flow *flow,
                       struct dpn_device *out)
{
    for (int i = 0; i < flow->count; i++) {
        struct dpn_port *port = find_port(v->is_sender ? flow->nics[i].from : flow->nics[i].to);
        if (!port || !has_capabilities_of(port, v->device)) {
            dp_log(DP_LOG_WARN,
                   "the placement wants NIC %d of %d of a flow that this host does not "
                   "offer, or not for such memory; going on over %s",
                   i + 1, flow->count, v->device->name);
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

void dpn_verbs_place(struct dpn_verbs *v, int32_t from, int32_t to, enum dpn_traffic traffic)
{
    struct dpn_device placed = *v->device;
    struct dpn_flow flow;

    dpn_placement_flow(from, to, traffic, &flow);
    placed.rail_count = 0;
    if (!flow.count || !take_ports(v, &flow, &placed))
        return;
    v->placed_ports = placed.rail_count;
    v->placed_qps = flow.qps;
    v->placed_class = flow.traffic_class;
    for (int i = 0; i < v->device->rail_count && placed.rail_count < DPN_MAX_RAILS; i++)
        if (!has_port(&placed, v->device->rails[i]))
            placed.rails[placed.rail_count++] = v->device->rails[i];
    v->own_device = placed;
    v->device = &v->own_device;
    dpn_verbs_gather_ports(v);
    if (v->placed_ports == 1)
        v->comm->counted_dev = find_device(placed.rails[0], v->comm->dev);
    dp_log(DP_LOG_INFO, "worker %d to %d goes over %s and %d more by the placement", from, to,
           placed.rails[0]->name, v->placed_ports - 1);
}

void dpn_verbs_prefer_placed(struct dpn_verbs *v, const struct dpn_plan *plan)
{
    v->preferred = 0;
    for (int i = 0; i < v->qp_count; i++)
        if (plan->rail[v->qps[i].rail].sender < v->placed_ports)
            v->preferred |= (uint16_t)(1u << i);
}
