/* SPDX-License-Identifier: Apache-2.0
 *
 * post.c - work requests come in.
 */
#include "verbs_impl.h"

#include <errno.h>
#include <string.h>

char *fv_inline_bytes(const struct fv_my_qp *q, uint64_t n)
{
    return q->inline_bytes + (n - 1) % q->cap.max_send_wr * q->cap.max_inline_data;
}

static uint64_t total(const struct ibv_sge *sges, int count)
{
    uint64_t sum = 0;

    for (int i = 0; i < count; i++)
        sum += sges[i].length;
    return sum;
}

static bool is_known(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
           opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_READ;
}

static int check_send(const struct fv_my_qp *q, const struct ibv_send_wr *wr)
{
    const enum ibv_qp_state state = fv_shared(q)->state;

    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR)
        return EINVAL;
    if (!is_known(wr->opcode) || wr->num_sge < 0 || wr->num_sge > (int)q->cap.max_send_sge)
        return EINVAL;
    if (wr->send_flags & IBV_SEND_INLINE &&
        (wr->opcode == IBV_WR_RDMA_READ || total(wr->sg_list, wr->num_sge) > q->cap.max_inline_data))
        return EINVAL;
    return q->posted - q->reclaimed >= q->cap.max_send_wr ? ENOMEM : 0;
}

static void keep_inline(struct fv_my_qp *q, struct fv_send *s)
{
    char *to = fv_inline_bytes(q, s->n);

    for (int i = 0; i < s->count; to += s->sges[i++].length)
        if (s->sges[i].length)
            memcpy(to, (const void *)(uintptr_t)s->sges[i].addr, s->sges[i].length);
}

static void keep_send(struct fv_my_qp *q, const struct ibv_send_wr *wr)
{
    struct fv_send *s = &q->sends[q->posted % q->cap.max_send_wr];
    const uint64_t len = total(wr->sg_list, wr->num_sge);

    *s = (struct fv_send){
        .n = ++q->posted,
        .wr_id = wr->wr_id,
        .opcode = wr->opcode,
        .flags = wr->send_flags,
        .imm = wr->imm_data,
        .rkey = wr->wr.rdma.rkey,
        .remote_addr = wr->wr.rdma.remote_addr,
        .len = len > UINT32_MAX ? UINT32_MAX : (uint32_t)len,
        .count = wr->num_sge,
        .is_inline = wr->send_flags & IBV_SEND_INLINE,
    };
    if (s->count)
        memcpy(s->sges, wr->sg_list, (size_t)wr->num_sge * sizeof(s->sges[0]));
    if (s->is_inline)
        keep_inline(q, s);
    atomic_fetch_add(&fv_me.waiting, 1);
    fv_tempt(q, s);
}

int fv_post_send(struct ibv_qp *ib, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fv_my_qp *q = (struct fv_my_qp *)(void *)ib;
    int err = fv_call_error("ibv_post_send");

    fv_lock();
    for (; wr && !err; wr = err ? wr : wr->next) {
        err = check_send(q, wr);
        if (!err)
            keep_send(q, wr);
    }
    fv_run(q);
    fv_wake();
    fv_unlock();
    if (err)
        *bad = wr;
    return err;
}

/* ---- receives -------------------------------------------------------------------------------- */

static int keep_receive(struct fv_qp *s, const struct ibv_recv_wr *wr)
{
    if (s->state == IBV_QPS_RESET || wr->num_sge < 0 || wr->num_sge > (int)s->max_sges)
        return EINVAL;
    if (s->count == s->room)
        return ENOMEM;
    struct fv_receive *r = (struct fv_receive *)fv_at(s->ring) + (s->head + s->count) % s->room;
    r->wr_id = wr->wr_id;
    r->count = wr->num_sge;
    if (wr->num_sge)
        memcpy(r->sges, wr->sg_list, (size_t)wr->num_sge * sizeof(r->sges[0]));
    s->count++;
    return 0;
}

int fv_post_recv(struct ibv_qp *ib, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fv_my_qp *q = (struct fv_my_qp *)(void *)ib;
    int err = 0;

    fv_lock();
    for (; wr && !err; wr = err ? wr : wr->next)
        err = keep_receive(fv_shared(q), wr);
    if (fv_shared(q)->state == IBV_QPS_ERR)
        fv_break(fv_shared(q));
    fv_progress(); /* somebody in this process may wait for it */
    fv_unlock();
    if (err)
        *bad = wr;
    return err;
}
