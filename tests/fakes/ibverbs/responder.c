/* SPDX-License-Identifier: Apache-2.0
 *
 * responder.c - what the queue pair that a message is for does with it.
 */
#include "config.h" /* GNU extensions: process_vm_writev */

#include "verbs_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

static void complain_once(const char *what)
{
    static atomic_bool said;

    if (!atomic_exchange(&said, true))
        fprintf(stderr, "fake verbs: %s: %s\n", what, strerror(errno));
}

static enum fv_answer judge(ssize_t moved, uint32_t len)
{
    if (moved == (ssize_t)len)
        return FV_DONE;
    if (moved < 0 && errno == ESRCH)
        return FV_SILENCE;
    complain_once(moved < 0 ? "cannot reach the other process" : "memory that is registered is gone");
    return FV_REMOTE_FAILED;
}

static enum fv_answer move_out(const struct fv_packet *p, pid_t pid, const struct iovec *to, int count)
{
    if (!p->len)
        return FV_DONE;
    return judge(process_vm_writev(pid, p->parts, (unsigned long)p->count, to, (unsigned long)count, 0),
                 p->len);
}

static enum fv_answer move_in(const struct fv_packet *p, pid_t pid, uint64_t from)
{
    const struct iovec there = {(void *)(uintptr_t)from, p->len};

    if (!p->len)
        return FV_DONE;
    return judge(process_vm_readv(pid, p->parts, (unsigned long)p->count, &there, 1, 0), p->len);
}

static bool is_alive(const struct fv_qp *qp)
{
    char byte;
    const struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)qp->probe, 1};

    return process_vm_readv(qp->pid, &here, 1, &there, 1, 0) == 1;
}

/* ---- receives -------------------------------------------------------------------------------- */

static struct fv_receive *first_receive(const struct fv_qp *qp)
{
    return qp->count ? (struct fv_receive *)fv_at(qp->ring) + qp->head : NULL;
}

static void finish_receive(struct fv_qp *qp, const struct fv_packet *p, enum ibv_wc_status status)
{
    const bool is_write = p->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    struct fv_completion c = fv_plain_completion(qp, first_receive(qp)->wr_id, status);

    qp->head = (qp->head + 1) % qp->room;
    qp->count--;
    if (status == IBV_WC_SUCCESS) {
        c.wc.opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
        c.wc.byte_len = p->len;
        c.wc.wc_flags = is_write || p->opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_WITH_IMM : 0;
        c.wc.imm_data = p->imm;
        c.wc.src_qp = qp->peer;
    }
    fv_complete(qp->recv_cq, &c, p->is_solicited);
}

/* Where the first receive puts len bytes. Returns the number of places, -1: not enough room, -2: a
 * key that does not fit. */
static int scatter(const struct fv_qp *qp, uint32_t len, struct iovec *out)
{
    const struct fv_receive *r = first_receive(qp);
    int count = 0;

    for (int i = 0; i < r->count && len; i++) {
        const struct ibv_sge *s = &r->sges[i];
        const uint32_t here = s->length < len ? s->length : len;
        const uint64_t at = fv_translate(s->lkey, false, qp->pid, qp->pd, s->addr, s->length,
                                         IBV_ACCESS_LOCAL_WRITE);
        if (!at && s->length)
            return -2;
        out[count++] = (struct iovec){(void *)(uintptr_t)at, here};
        len -= here;
    }
    return len ? -1 : count;
}

static enum fv_answer fail_receive(struct fv_qp *qp, const struct fv_packet *p,
                                   enum ibv_wc_status status, enum fv_answer answer)
{
    finish_receive(qp, p, status);
    fv_break(qp);
    return answer;
}

/* ---- the operations -------------------------------------------------------------------------- */

/* The other side has done what it must not: this one learns of it, too. */
static enum fv_answer refuse(struct fv_qp *qp, enum fv_answer answer)
{
    fv_post_letter(qp->events,
                   answer == FV_NO_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR, qp->owner);
    fv_break(qp);
    return answer;
}

static enum fv_answer take_send(struct fv_qp *qp, const struct fv_packet *p)
{
    struct iovec to[FV_SGES];

    if (!first_receive(qp))
        return FV_NOT_READY;
    const int count = scatter(qp, p->len, to);
    if (count == -1)
        return fail_receive(qp, p, IBV_WC_LOC_LEN_ERR, FV_INVALID);
    if (count == -2)
        return fail_receive(qp, p, IBV_WC_LOC_PROT_ERR, FV_REMOTE_FAILED);
    const enum fv_answer answer = move_out(p, qp->pid, to, count);
    if (answer == FV_DONE)
        finish_receive(qp, p, IBV_WC_SUCCESS);
    return answer;
}

static enum fv_answer take_write(struct fv_qp *qp, const struct fv_packet *p)
{
    const bool with_imm = p->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    struct iovec to = {NULL, p->len};

    if (!(qp->access & IBV_ACCESS_REMOTE_WRITE))
        return refuse(qp, FV_INVALID);
    if (with_imm && !first_receive(qp))
        return FV_NOT_READY;
    if (p->len) {
        const uint64_t at = fv_translate(p->rkey, true, qp->pid, qp->pd, p->remote_addr, p->len,
                                         IBV_ACCESS_REMOTE_WRITE);
        if (!at)
            return refuse(qp, FV_NO_ACCESS);
        to.iov_base = (void *)(uintptr_t)at;
    }
    const enum fv_answer answer = move_out(p, qp->pid, &to, 1);
    if (answer == FV_DONE && with_imm)
        finish_receive(qp, p, IBV_WC_SUCCESS);
    return answer;
}

static enum fv_answer take_read(struct fv_qp *qp, const struct fv_packet *p)
{
    if (!(qp->access & IBV_ACCESS_REMOTE_READ) || !qp->reads_in)
        return refuse(qp, FV_INVALID);
    const uint64_t at = fv_translate(p->rkey, true, qp->pid, qp->pd, p->remote_addr, p->len,
                                     IBV_ACCESS_REMOTE_READ);
    if (!at && p->len)
        return refuse(qp, FV_NO_ACCESS);
    return move_in(p, qp->pid, at);
}

/* Whether it is connected to the sender and listens to what comes now. */
static bool listens(const struct fv_qp *from, const struct fv_qp *to)
{
    const bool is_ready = to->state == IBV_QPS_RTR || to->state == IBV_QPS_RTS ||
                          to->state == IBV_QPS_SQD || to->state == IBV_QPS_SQE;

    return fv_reaches(from, to) && is_ready && to->number == from->peer &&
           to->peer == from->number && to->rq_psn == from->sq_psn && is_alive(to);
}

enum fv_answer fv_respond(const struct fv_qp *from, struct fv_qp *to, const struct fv_packet *p)
{
    if (!listens(from, to))
        return FV_SILENCE;
    if (from->mtu > to->mtu && p->len > 128u << to->mtu)
        return refuse(to, FV_INVALID); /* a packet longer than it may be */
    switch (p->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return take_send(to, p);
    case IBV_WR_RDMA_READ:
        return take_read(to, p);
    default:
        return take_write(to, p);
    }
}
