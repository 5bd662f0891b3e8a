/* SPDX-License-Identifier: Apache-2.0
 *
 * choice.c - ports: each as a device that NCCL sees, and those that it fuses; which ones a
 * connection has, how they are described to the peer, and which are paired.
 */
#include "base/fail.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/net/placement.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/ibv_qp.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct dpn_verbs_state dpn_verbs_state;

/* NCCL takes devices with the same guid and port for the same hardware: functions of a card share
 * the guid, and the function number tells their ports apart. */
static void describe(struct dpn_port *port, struct dpn_device *out)
{
    const struct dpn_hca *hca = port->hca;

    *out = (struct dpn_device){
        .pci_path = hca->pci_path,
        .speed_mbps = port->speed_mbps,
        .guid = hca->guid,
        .port = port->number + hca->function,
        .pointers = hca->pointers,
        .rail = port->place.rail,
        .plane = port->place.plane,
        .needs_flush = hca->has_data_direct,
        .rail_count = 1,
        .rails = {port},
    };
    snprintf(out->name, sizeof(out->name), "%s", port->name);
}

void dpn_verbs_find(struct dpn_devices *out, int max, bool has_force_flush, char *why,
                    size_t why_len)
{
    struct dpn_ports *ports = &dpn_verbs_state.ports;

    /* After a fork the array describes devices of the parent, which must not be closed here. */
    *ports = (struct dpn_ports){.count = 0};
    dpn_verbs_options_read(&dpn_verbs_state.options);
    if (!has_force_flush) /* NCCL flushes on Hopper and later only when it is told to */
        dpn_verbs_state.options.data_direct = 0;
    dpn_ports_find(&dpn_verbs_state.options, ports, why, why_len);
    for (out->count = 0; out->count < ports->count && out->count < max; out->count++)
        describe(&ports->list[out->count], &out->list[out->count]);
}

static int add_rails(const struct dpn_device *member, struct dpn_device *out)
{
    if (!member->rail_count || out->rail_count + member->rail_count > DPN_DEVICE_RAILS)
        return dp_fail(DP_EUNSUPPORTED,
                       "%s cannot be fused with others: a device has at most %d "
                       "RDMA ports",
                       member->name, DPN_DEVICE_RAILS);
    if (out->rail_count && member->rails[0]->is_ethernet != out->rails[0]->is_ethernet)
        return dp_fail(DP_EUNSUPPORTED,
                       "%s cannot be fused with %s: one is of Ethernet, the other "
                       "of InfiniBand",
                       member->name, out->rails[0]->name);
    for (int i = 0; i < member->rail_count; i++)
        out->rails[out->rail_count++] = member->rails[i];
    out->speed_mbps += member->speed_mbps;
    out->pointers &= member->pointers;
    out->needs_flush |= member->needs_flush;
    /* A device of several rails has none for NCCL, which combines only NICs of one plane. */
    out->rail = out->rail == member->rail ? out->rail : NCCL_NET_ID_UNDEF;
    out->plane = out->plane == member->plane ? out->plane : NCCL_NET_ID_UNDEF;
    return 0;
}

int dpn_verbs_fuse(struct dpn_devices *all, const int *members, int count)
{
    struct dpn_device fused = all->list[members[0]];
    int err = 0;

    /* Not an error: NCCL uses the ports separately. */
    if (!fused.rail_count)
        return dp_fail_quietly(DP_EUNSUPPORTED,
                               "%s is a network interface: only RDMA ports are fused", fused.name);
    if (!dpn_verbs_state.options.merge_nics)
        return dp_fail_quietly(DP_EUNSUPPORTED, "NCCL_IB_MERGE_NICS=0");
    fused.rail_count = fused.speed_mbps = 0;
    fused.name[0] = '\0';
    fused.member_count = count;
    for (int i = 0; i < count && !err; i++) {
        const struct dpn_device *member = &all->list[members[i]];
        const size_t at = strlen(fused.name);
        err = add_rails(member, &fused);
        snprintf(fused.name + at, sizeof(fused.name) - at, "%s%s", i ? "+" : "", member->name);
        fused.members[i] = members[i];
    }
    if (!err)
        all->list[all->count++] = fused;
    return err;
}

/* ---- of a connection ------------------------------------------------------------------------- */

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
