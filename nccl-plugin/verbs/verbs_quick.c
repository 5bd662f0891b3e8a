/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_quick.c - very short messages on their way: most of the work request is ready before.
 */
#include "nccl-plugin/verbs/verbs_comm.h"

#include <string.h>

void dpn_quick_prepare(struct dpn_verbs *v, struct dpn_lane *lane)
{
    const struct dpn_work work = {DPN_WORK_DATA, dpn_lane_index(v, lane), lane->epoch, 0, 0, 1};

    lane->quick_work = dpn_work_pack(work);
    lane->quick_sge = (struct ibv_sge){.lkey = v->rails[lane->rail].block_mr->lkey};
    lane->quick = (struct ibv_send_wr){
        .sg_list = &lane->quick_sge, .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE, .wr.rdma.rkey = lane->peer_key,
    };
}

bool dpn_quick_post(struct dpn_verbs *v, struct dpn_send *send)
{
    struct dpn_stripe *s = &send->stripes[0];
    struct dpn_lane *lane = &v->lanes[s->lane];
    const unsigned slot = send->number % DPN_EAGER_SLOTS;
    struct ibv_send_wr *bad;

    if (lane->requests_out == DPN_SEND_QUEUE)
        return false;
    lane->quick.wr_id =
        lane->quick_work | dpn_work_pack((struct dpn_work){.slot = send->base.index});
    lane->quick.wr.rdma.remote_addr =
        lane->peer_block + offsetof(struct dpn_block, quick) + slot * sizeof(struct dpn_quick);
    lane->quick_sge.addr = (uintptr_t)&v->block->quick[slot];
    lane->quick_sge.length = send->quick_len;
    lane->quick.send_flags =
        IBV_SEND_SIGNALED | (send->quick_len <= lane->inline_bytes ? IBV_SEND_INLINE : 0u);
    int error = ibv_post_send(lane->qp, &lane->quick, &bad);
    s->epoch = lane->epoch;
    lane->requests_out++;
    if (error) {
        dpn_lane_fence(v, lane, "send", strerror(error), ": the send queue takes no more");
        return false;
    }
    lane->sends_out++;
    s->chains++;
    s->state = DPN_STRIPE_SENT;
    s->sent = s->len;
    v->eager_sends[slot].lane = s->lane;
    return true;
}
