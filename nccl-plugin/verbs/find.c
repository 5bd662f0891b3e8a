/* SPDX-License-Identifier: Apache-2.0
 *
 * find.c - the devices that NCCL sees: one for each port, and those that it fuses.
 */
#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/verbs/verbs.h"
#include "nccl-plugin/verbs/device.h"

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

int dpn_verbs_find(struct dpn_device *out, int max, bool has_force_flush, char *why, size_t why_len)
{
    struct dpn_ports *ports = &dpn_verbs_state.ports;
    int count = 0;

    /* After a fork the array describes devices of the parent, which must not be closed here. */
    *ports = (struct dpn_ports){.count = 0};
    dpn_verbs_options_read(&dpn_verbs_state.options);
    if (!has_force_flush) /* NCCL flushes on Hopper and later only when it is told to */
        dpn_verbs_state.options.data_direct = 0;
    dpn_ports_find(&dpn_verbs_state.options, ports, why, why_len);
    for (; count < ports->count && count < max; count++)
        describe(&ports->list[count], &out[count]);
    return count;
}

static int add_rails(const struct dpn_device *member, struct dpn_device *out)
{
    if (!member->rail_count || out->rail_count + member->rail_count > DPN_DEVICE_RAILS)
        return dp_fail(DP_EUNSUPPORTED, "%s cannot be fused with others: a device has at most %d "
                       "RDMA ports", member->name, DPN_DEVICE_RAILS);
    if (out->rail_count && member->rails[0]->is_ethernet != out->rails[0]->is_ethernet)
        return dp_fail(DP_EUNSUPPORTED, "%s cannot be fused with %s: one is of Ethernet, the other "
                       "of InfiniBand", member->name, out->rails[0]->name);
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

int dpn_verbs_fuse(const struct dpn_device *const *members, int count, struct dpn_device *out)
{
    struct dpn_device fused = *members[0];
    int err = 0;

    /* Not an error: NCCL uses the ports separately. */
    if (!fused.rail_count)
        return dp_fail_quietly(DP_EUNSUPPORTED,
                               "%s is a network interface: only RDMA ports are fused", fused.name);
    if (!dpn_verbs_state.options.merge_nics)
        return dp_fail_quietly(DP_EUNSUPPORTED, "NCCL_IB_MERGE_NICS=0");
    fused.rail_count = fused.speed_mbps = 0;
    fused.name[0] = '\0';
    for (int i = 0; i < count && !err; i++) {
        const size_t at = strlen(fused.name);
        err = add_rails(members[i], &fused);
        snprintf(fused.name + at, sizeof(fused.name) - at, "%s%s", i ? "+" : "", members[i]->name);
    }
    if (!err)
        *out = fused;
    return err;
}
