/* SPDX-License-Identifier: Apache-2.0
 *
 * rails.c - what the queue pairs of a connection share: the block, and a completion queue for each
 * rail.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t block_bytes(const struct dpn_verbs *v)
{
    return sizeof(*v->block) + (v->is_sender ? 0 : dpn_eager_ring_bytes(v->eager_bytes));
}

static int open_rail(struct dpn_verbs *v, struct dpn_rail *rail)
{
    const struct dpn_region block = {v->block, block_bytes(v), NCCL_PTR_HOST, -1, 0};
    const int room = v->qps_per_rail * (2 * DPN_SEND_QUEUE + 2 * DPN_RECV_QUEUE) +
                     2 * DPN_LOOP_QUEUE;
    int err = dpn_mr_get(rail->port->hca, &block, &rail->block_mr);

    if (err)
        return err;
    rail->cq = dpn_ibv.create_cq(rail->port->hca->context, room, NULL, NULL, 0);
    if (!rail->cq)
        return dp_fail(DP_EIO, "%s gives no completion queue of %d entries: %s (max_cq, max_cqe of "
                       "'ibv_devinfo -v', 'ulimit -l')", rail->port->name, room, strerror(errno));
    return v->is_sender ? 0 : dpn_loop_open(rail);
}

static bool is_adaptive(const struct dpn_port *port)
{
    const int wanted = dpn_verbs_state.options.adaptive_routing;

    return wanted == DPN_AUTO ? !port->is_ethernet : wanted;
}

int dpn_verbs_open_rails(struct dpn_verbs *v)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int err = 0;

    v->block = aligned_alloc(page, (block_bytes(v) + page - 1) / page * page);
    if (!v->block)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    memset(v->block, 0, block_bytes(v));
    for (int r = 0; r < v->rail_count && !err; r++) {
        v->rails[r].adaptive = is_adaptive(v->rails[r].port);
        err = open_rail(v, &v->rails[r]);
    }
    v->qp_count = v->rail_count * v->qps_per_rail;
    for (int i = 0; i < v->qp_count; i++)
        v->qps[i].rail = (uint8_t)(i % v->rail_count);
    v->is_degraded = true;
    return err;
}

void dpn_verbs_close_rails(struct dpn_verbs *v)
{
    for (int r = 0; r < v->rail_count; r++) {
        if (v->rails[r].cq)
            dpn_ibv.destroy_cq(v->rails[r].cq);
        dpn_mr_put(v->rails[r].port->hca, v->rails[r].block_mr);
    }
}
