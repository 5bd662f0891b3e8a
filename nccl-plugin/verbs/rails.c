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

static size_t block_bytes(const struct dpn_queues *q, uint32_t eager_bytes)
{
    return sizeof(*q->block) + (q->is_sender ? 0 : dpn_eager_ring_bytes(eager_bytes));
}

static int open_rail(struct dpn_queues *q, struct dpn_rail *rail, uint32_t eager_bytes)
{
    const struct dpn_region block = {q->block, block_bytes(q, eager_bytes), NCCL_PTR_HOST, -1, 0};
    const int room =
        q->qps_per_rail * (2 * DPN_SEND_QUEUE + 2 * DPN_RECV_QUEUE) + 2 * DPN_LOOP_QUEUE;
    int err = dpn_mr_get(rail->port->hca, &block, &rail->block_mr);

    if (err)
        return err;
    rail->cq = dpn_ibv.create_cq(rail->port->hca->context, room, NULL, NULL, 0);
    if (!rail->cq)
        return dp_fail(DP_EIO, "%s gives no completion queue of %d entries: %s (max_cq, max_cqe of "
                       "'ibv_devinfo -v', 'ulimit -l')", rail->port->name, room, strerror(errno));
    return q->is_sender ? 0 : dpn_loop_open(rail);
}

static bool is_adaptive(const struct dpn_port *port)
{
    const int wanted = dpn_verbs_state.options.adaptive_routing;

    return wanted == DPN_AUTO ? !port->is_ethernet : wanted;
}

int dpn_rails_open(struct dpn_queues *q, uint32_t eager_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int err = 0;

    q->block = aligned_alloc(page, (block_bytes(q, eager_bytes) + page - 1) / page * page);
    if (!q->block)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    memset(q->block, 0, block_bytes(q, eager_bytes));
    for (int r = 0; r < q->rail_count && !err; r++) {
        q->rails[r].adaptive = is_adaptive(q->rails[r].port);
        err = open_rail(q, &q->rails[r], eager_bytes);
    }
    q->qp_count = q->rail_count * q->qps_per_rail;
    for (int i = 0; i < q->qp_count; i++)
        q->qps[i].rail = (uint8_t)(i % q->rail_count);
    q->is_degraded = true;
    return err;
}

void dpn_rails_close(struct dpn_queues *q)
{
    for (int r = 0; r < q->rail_count; r++) {
        if (q->rails[r].cq)
            dpn_ibv.destroy_cq(q->rails[r].cq);
        dpn_mr_put(q->rails[r].port->hca, q->rails[r].block_mr);
    }
}
