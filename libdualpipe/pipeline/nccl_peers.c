/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/nccl.h>
#include <dualpipe/pipeline.h>

#include "base/fail.h"

struct peers {
    const struct dp_schedule *schedule;
    int rank, count;
    struct dp_nccl_peer *list;
};

static void add(struct peers *p, int32_t peer, unsigned sends, unsigned receives)
{
    int i = 0;

    if (peer < 0 || peer == p->rank)
        return;
    const int rank = p->schedule->group_rank[peer];
    while (i < p->count && p->list[i].rank != rank)
        i++;
    if (i == p->count)
        p->list[p->count++] = (struct dp_nccl_peer){.rank = rank};
    p->list[i].sends |= sends;
    p->list[i].receives |= receives;
}

static void add_op(struct peers *p, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(p->schedule, p->rank, (int)op.slot);
    const unsigned activations = 1u << DP_CHANNEL_ACTIVATION;
    const unsigned gradients = 1u << DP_CHANNEL_GRADIENT;

    switch ((enum dp_op_kind)op.kind) {
    case DP_OP_SEND_F:
    case DP_OP_SEND_SKIP_F:
        add(p, dp_op_peer(p->schedule, slot, op), activations, 0);
        return;
    case DP_OP_RECV_F:
    case DP_OP_RECV_SKIP_F:
        add(p, dp_op_peer(p->schedule, slot, op), 0, activations);
        return;
    case DP_OP_SEND_B:
    case DP_OP_SEND_SKIP_B:
        add(p, dp_op_peer(p->schedule, slot, op), gradients, 0);
        return;
    case DP_OP_RECV_B:
    case DP_OP_RECV_SKIP_B:
        add(p, dp_op_peer(p->schedule, slot, op), 0, gradients);
        return;
    default:
        return;
    }
}

int dp_pipeline_nccl_peers(const struct dp_schedule *schedule, int rank, struct dp_nccl_peer *out)
{
    if (!schedule || !out || rank < 0 || rank >= schedule->ranks)
        return dp_fail(DP_EINVAL, "peers of rank %d: expected a schedule, a rank of it and a place",
                       rank);
    const unsigned sums = 1u << DP_CHANNEL_REDUCE;
    struct peers p = {.schedule = schedule, .rank = rank, .list = out};

    for (size_t i = 0; i < dp_schedule_count(schedule, rank); i++)
        add_op(&p, dp_schedule_ops(schedule, rank)[i]);
    /* Where nothing is summed, copies of a stage are still made equal when a pipeline is opened. */
    for (int i = 0; i < dp_schedule_slot_count(schedule, rank); i++)
        add(&p, dp_schedule_slot(schedule, rank, i)->mirror, sums, sums);
    return p.count;
}
