/* SPDX-License-Identifier: Apache-2.0
 *
 * inline.c - sends inline messages: most of the work request is prepared when the queue pair
 * connects.
 */
#include "nccl-plugin/verbs/comm.h"

#include <string.h>

void dpn_inline_prepare(struct dpn_verbs *v, struct dpn_qp *qp)
{
    const struct dpn_work work = {DPN_WORK_DATA, dpn_qp_index(v, qp), qp->epoch, 0, 0, 1};

    qp->inline_work = dpn_work_pack(work);
    qp->inline_sge = (struct ibv_sge){.lkey = v->rails[qp->rail].block_mr->lkey};
    qp->inline_wr = (struct ibv_send_wr){
        .sg_list = &qp->inline_sge, .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE, .wr.rdma.rkey = qp->peer_key,
    };
}

bool dpn_inline_post(struct dpn_verbs *v, struct dpn_send *send)
{
    struct dpn_stripe *s = &send->stripes[0];
    struct dpn_qp *qp = &v->qps[s->qp];
    const unsigned slot = send->number % DPN_EAGER_SLOTS;
    struct ibv_send_wr *bad;

    if (qp->requests_out == DPN_SEND_QUEUE)
        return false;
    qp->inline_wr.wr_id =
        qp->inline_work | dpn_work_pack((struct dpn_work){.slot = send->base.index});
    qp->inline_wr.wr.rdma.remote_addr = qp->peer_block + offsetof(struct dpn_block, inlines) +
                                        slot * sizeof(struct dpn_inline_message);
    qp->inline_sge.addr = (uintptr_t)&v->block->inlines[slot];
    qp->inline_sge.length = send->inline_len;
    qp->inline_wr.send_flags =
        IBV_SEND_SIGNALED | (send->inline_len <= qp->inline_bytes ? IBV_SEND_INLINE : 0u);
    int error = ibv_post_send(qp->ibv, &qp->inline_wr, &bad);
    s->epoch = qp->epoch;
    qp->requests_out++;
    if (error) {
        dpn_qp_fail(v, qp, "send", strerror(error), ": the send queue takes no more");
        return false;
    }
    qp->sends_out++;
    s->chains++;
    s->state = DPN_STRIPE_SENT;
    s->sent = s->len;
    v->eager_sends[slot].qp = s->qp;
    return true;
}
