/* SPDX-License-Identifier: Apache-2.0
 *
 * qp.c - queue pairs: making them, and the states that they go through.
 */
#include "verbs_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- to the error state ---------------------------------------------------------------------- */

/* All but who and why is garbage, as it may be. */
struct fv_completion fv_plain_completion(const struct fv_qp *qp, uint64_t wr_id,
                                         enum ibv_wc_status status)
{
    struct fv_completion c = {.qp = (int)(qp - fv->qps)};

    memset(&c.wc, status == IBV_WC_SUCCESS ? 0 : 0xa5, sizeof(c.wc));
    c.wc.wr_id = wr_id;
    c.wc.status = status;
    c.wc.qp_num = qp->number;
    c.wc.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x80u + (unsigned)status;
    return c;
}

/* The sends are flushed by the process that they belong to. */
void fv_break(struct fv_qp *qp)
{
    const struct fv_receive *ring = fv_at(qp->ring);

    if (qp->state == IBV_QPS_RESET)
        return;
    qp->state = IBV_QPS_ERR;
    for (; qp->count; qp->count--) {
        const struct fv_completion c =
            fv_plain_completion(qp, ring[qp->head].wr_id, IBV_WC_WR_FLUSH_ERR);
        fv_complete(qp->recv_cq, &c, false);
        qp->head = (qp->head + 1) % qp->room;
    }
}

/* ---- making ---------------------------------------------------------------------------------- */

static int find_free(void)
{
    int i = 1;

    while (i < FV_QPS && fv->qps[i].used)
        i++;
    return i < FV_QPS ? i : -1;
}

static struct fv_my_cq *my_cq(struct ibv_cq *cq)
{
    return (struct fv_my_cq *)(void *)cq;
}

static int check_cap(const struct fv_device *d, const struct ibv_qp_init_attr *a)
{
    if (a->qp_type != IBV_QPT_RC)
        return EOPNOTSUPP;
    if (a->srq || !a->send_cq || !a->recv_cq || a->cap.max_send_wr > d->wrs ||
        a->cap.max_recv_wr > d->wrs || a->cap.max_send_sge > FV_SGES ||
        a->cap.max_recv_sge > FV_SGES || a->cap.max_inline_data > d->inline_bytes)
        return EINVAL;
    return 0;
}

static bool alloc_queues(struct fv_my_qp *q)
{
    const size_t sends = q->cap.max_send_wr ? q->cap.max_send_wr : 1;

    q->sends = calloc(sends, sizeof(*q->sends));
    q->inline_bytes = calloc(sends, q->cap.max_inline_data ? q->cap.max_inline_data : 1);
    return q->sends && q->inline_bytes;
}

static void free_queues(struct fv_my_qp *q)
{
    free(q->inline_bytes);
    free(q->sends);
    free(q);
}

static int enter(struct fv_my_qp *q, struct ibv_pd *pd)
{
    const uint32_t room = q->cap.max_recv_wr ? q->cap.max_recv_wr : 1;
    const uint64_t ring = fv_alloc(room * sizeof(struct fv_receive));
    const int index = ring ? find_free() : -1;

    if (index < 0) {
        fv_free(ring, room * sizeof(struct fv_receive));
        return ENOMEM;
    }
    fv->qps[index] = (struct fv_qp){
        .used = true,
        .number = ((uint32_t)(fv->serial++ & 0x7ff) + 1) << 12 | (uint32_t)index,
        .pid = fv_me.pid,
        .probe = (uintptr_t)fv,
        .owner = (uintptr_t)q,
        .pd = ((struct fv_my_pd *)(void *)pd)->id,
        .port = -1,
        .send_cq = my_cq(q->ib.send_cq)->index,
        .recv_cq = my_cq(q->ib.recv_cq)->index,
        .events = fv_context(pd->context)->mailbox,
        .room = room,
        .max_sges = q->cap.max_recv_sge,
        .ring = ring,
    };
    q->index = index;
    q->ordinal = ++fv_me.qp_serial;
    q->ib.qp_num = fv->qps[index].number;
    q->ib.handle = (uint32_t)index;
    return 0;
}

static void link_in(struct fv_my_qp *q)
{
    q->next = fv_me.qps;
    q->link = &fv_me.qps;
    if (q->next)
        q->next->link = &q->next;
    fv_me.qps = q;
    my_cq(q->ib.send_cq)->users++;
    my_cq(q->ib.recv_cq)->users++;
    ((struct fv_my_pd *)(void *)q->ib.pd)->users++;
    fv_context(q->ib.context)->device->qps_used++;
    fv_me.alive++;
}

static void link_out(struct fv_my_qp *q)
{
    *q->link = q->next;
    if (q->next)
        q->next->link = q->link;
    my_cq(q->ib.send_cq)->users--;
    my_cq(q->ib.recv_cq)->users--;
    ((struct fv_my_pd *)(void *)q->ib.pd)->users--;
    fv_context(q->ib.context)->device->qps_used--;
    fv_me.alive--;
}

static struct ibv_qp *give_up(struct fv_my_qp *q, int err)
{
    if (q)
        free_queues(q);
    errno = err;
    return NULL;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    const struct fv_device *d = fv_context(pd->context)->device;
    int err = fv_call_error("ibv_create_qp");

    fv_wait_if_held("ibv_create_qp");
    err = err ? err : d->is_dead ? EIO : check_cap(d, a);
    if (err)
        return give_up(NULL, err);
    struct fv_my_qp *q = calloc(1, sizeof(*q));
    if (!q)
        return give_up(NULL, ENOMEM);
    q->cap = a->cap;
    q->signal_all = a->sq_sig_all;
    q->ece = (struct ibv_ece){.vendor_id = 0xfa4e, .options = d->ece};
    q->ib = (struct ibv_qp){.context = pd->context, .qp_context = a->qp_context, .pd = pd,
                            .send_cq = a->send_cq, .recv_cq = a->recv_cq, .qp_type = a->qp_type};
    pthread_mutex_init(&q->ib.mutex, NULL);
    pthread_cond_init(&q->ib.cond, NULL);
    if (!alloc_queues(q))
        return give_up(q, ENOMEM);
    fv_lock();
    err = d->qps_used >= d->qps ? ENOMEM : enter(q, pd);
    if (!err)
        link_in(q);
    fv_unlock();
    return err ? give_up(q, err) : &q->ib;
}

/* What it has not carried out yet is nobody's business any more. */
static void drop_sends(struct fv_my_qp *q)
{
    atomic_fetch_sub(&fv_me.waiting, (int)(q->posted - q->ran));
    q->reclaimed = q->ran = q->posted;
}

static bool wait_for_acks(struct fv_my_qp *q)
{
    struct timespec until;
    int err = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&q->ib.mutex);
    while (!err && q->ib.events_completed != q->async_got)
        err = pthread_cond_timedwait(&q->ib.cond, &q->ib.mutex, &until);
    pthread_mutex_unlock(&q->ib.mutex);
    return !err;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *ib)
{
    struct fv_my_qp *q = (struct fv_my_qp *)(void *)ib;
    const int error = fv_call_error("ibv_destroy_qp");

    fv_wait_if_held("ibv_destroy_qp");
    if (error)
        return error;
    if (!wait_for_acks(q))
        return EBUSY;
    fv_lock();
    struct fv_qp *s = fv_shared(q);
    fv_forget_letters(s->events, s->owner);
    fv_forget_completions(s->send_cq, q->index);
    fv_forget_completions(s->recv_cq, q->index);
    drop_sends(q);
    fv_free(s->ring, s->room * sizeof(struct fv_receive));
    s->used = false;
    s->state = IBV_QPS_RESET;
    link_out(q);
    fv_unlock();
    pthread_cond_destroy(&q->ib.cond);
    pthread_mutex_destroy(&q->ib.mutex);
    free_queues(q);
    return 0;
}

/* ---- states ---------------------------------------------------------------------------------- */

static const struct {
    enum ibv_qp_state from, to;
    int needed, allowed;
} steps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

static int check_mask(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
    if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
        return mask ? EINVAL : 0;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        if (steps[i].from == from && steps[i].to == to)
            return (mask & steps[i].needed) == steps[i].needed &&
                           !(mask & ~(steps[i].needed | steps[i].allowed))
                       ? 0
                       : EINVAL;
    return EINVAL;
}

static int set_port(struct fv_my_qp *q, const struct ibv_qp_attr *a, int mask)
{
    const struct fv_device *d = fv_context(q->ib.context)->device;

    if (mask & IBV_QP_PKEY_INDEX && a->pkey_index)
        return EINVAL;
    if (!(mask & IBV_QP_PORT))
        return 0;
    if (a->port_num < 1 || a->port_num > d->port_count)
        return EINVAL;
    fv_shared(q)->port = d->ports[a->port_num - 1];
    q->attr.port_num = a->port_num;
    return 0;
}

/* RoCE looks the neighbour up now, and the packets go by a GID always. */
static int find_neighbour(const struct fv_qp *s, const struct fv_port *mine)
{
    if (mine->link_layer != IBV_LINK_LAYER_ETHERNET)
        return 0;
    for (int i = 0; i < FV_PORTS; i++)
        if (fv->ports[i].used && fv->ports[i].net == mine->net &&
            fv_knows_gid(&fv->ports[i], &s->dgid, &s->sgid))
            return 0;
    return ETIMEDOUT;
}

static int set_path(struct fv_my_qp *q, const struct ibv_qp_attr *a)
{
    struct fv_qp *s = fv_shared(q);
    const struct fv_port *port = &fv->ports[s->port];
    const struct ibv_ah_attr *ah = &a->ah_attr;

    if (ah->port_num != q->attr.port_num || a->path_mtu < IBV_MTU_256 || a->path_mtu > port->mtu ||
        a->dest_qp_num >> 24 || a->rq_psn >> 24 || a->max_dest_rd_atomic > 16 ||
        a->min_rnr_timer > 31)
        return EINVAL;
    if (!ah->is_global && (port->link_layer == IBV_LINK_LAYER_ETHERNET || port->needs_grh))
        return EINVAL;
    if (ah->is_global && (ah->grh.sgid_index >= FV_GIDS || !port->gids[ah->grh.sgid_index].used))
        return EINVAL;
    s->is_global = ah->is_global;
    if (ah->is_global)
        s->sgid = port->gids[ah->grh.sgid_index];
    s->dgid = ah->grh.dgid;
    s->dlid = ah->dlid;
    s->mtu = a->path_mtu;
    s->peer = a->dest_qp_num;
    s->rq_psn = a->rq_psn;
    s->reads_in = a->max_dest_rd_atomic;
    q->modified++;
    if (fv_strikes(FV_MODIFY, q->ordinal, q->modified))
        return ETIMEDOUT;
    return find_neighbour(s, port);
}

static int set_timers(struct fv_my_qp *q, const struct ibv_qp_attr *a)
{
    if (a->timeout > 31 || a->retry_cnt > 7 || a->rnr_retry > 7 || a->sq_psn >> 24 ||
        a->max_rd_atomic > 16)
        return EINVAL;
    fv_shared(q)->sq_psn = a->sq_psn;
    return 0;
}

static void remember(struct fv_my_qp *q, const struct ibv_qp_attr *a, int mask)
{
    const uint8_t port = q->attr.port_num;

    if (mask & IBV_QP_ACCESS_FLAGS)
        fv_shared(q)->access = q->attr.qp_access_flags = a->qp_access_flags;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        q->attr.min_rnr_timer = a->min_rnr_timer;
    if (mask & IBV_QP_AV) {
        const unsigned access = q->attr.qp_access_flags;
        q->attr = *a;
        q->attr.qp_access_flags = access;
        q->attr.port_num = port;
    }
    if (mask & IBV_QP_TIMEOUT) {
        q->attr.timeout = a->timeout;
        q->attr.retry_cnt = a->retry_cnt;
        q->attr.rnr_retry = a->rnr_retry;
        q->attr.sq_psn = a->sq_psn;
        q->attr.max_rd_atomic = a->max_rd_atomic;
    }
}

static void reset(struct fv_my_qp *q)
{
    struct fv_qp *s = fv_shared(q);

    fv_forget_completions(s->send_cq, q->index);
    fv_forget_completions(s->recv_cq, q->index);
    drop_sends(q);
    s->count = s->head = 0;
    s->port = -1;
}

static int change_state(struct fv_my_qp *q, const struct ibv_qp_attr *a, int mask)
{
    struct fv_qp *s = fv_shared(q);
    const enum ibv_qp_state to = mask & IBV_QP_STATE ? a->qp_state : s->state;
    int err = check_mask(s->state, to, mask);

    if (!err)
        err = set_port(q, a, mask);
    if (!err && mask & IBV_QP_AV)
        err = set_path(q, a);
    if (!err && mask & IBV_QP_TIMEOUT)
        err = set_timers(q, a);
    if (err)
        return err;
    remember(q, a, mask);
    if (to == IBV_QPS_RESET)
        reset(q);
    s->state = to;
    if (to == IBV_QPS_ERR) {
        fv_break(s);
        fv_run(q);
    }
    q->ib.state = to;
    return 0;
}

EXPORT int ibv_modify_qp(struct ibv_qp *ib, struct ibv_qp_attr *a, int mask)
{
    struct fv_my_qp *q = (struct fv_my_qp *)(void *)ib;
    const int err = fv_call_error("ibv_modify_qp");

    fv_wait_if_held("ibv_modify_qp");
    if (err)
        return err;
    fv_lock();
    const int result = mask & IBV_QP_CUR_STATE && a->cur_qp_state != fv_shared(q)->state
                           ? EINVAL
                           : change_state(q, a, mask);
    fv_unlock();
    return result;
}

EXPORT int ibv_query_qp(struct ibv_qp *ib, struct ibv_qp_attr *a, int mask,
                        struct ibv_qp_init_attr *init)
{
    const struct fv_my_qp *q = (const struct fv_my_qp *)(const void *)ib;

    (void)mask;
    fv_lock();
    *a = q->attr;
    a->qp_state = a->cur_qp_state = fv_shared(q)->state;
    a->cap = q->cap;
    fv_unlock();
    *init = (struct ibv_qp_init_attr){.qp_context = ib->qp_context, .send_cq = ib->send_cq,
                                      .recv_cq = ib->recv_cq, .cap = q->cap,
                                      .qp_type = ib->qp_type, .sq_sig_all = q->signal_all};
    return 0;
}

/* ---- extras ---------------------------------------------------------------------------------- */

EXPORT int ibv_query_ece(struct ibv_qp *ib, struct ibv_ece *out)
{
    const struct fv_my_qp *q = (const struct fv_my_qp *)(const void *)ib;

    if (!fv_context(ib->context)->device->ece)
        return EOPNOTSUPP;
    *out = q->ece;
    return 0;
}

/* What both sides know. */
EXPORT int ibv_set_ece(struct ibv_qp *ib, struct ibv_ece *ece)
{
    struct fv_my_qp *q = (struct fv_my_qp *)(void *)ib;
    const uint32_t known = fv_context(ib->context)->device->ece;

    if (!known)
        return EOPNOTSUPP;
    fv_lock();
    const bool late = fv_shared(q)->state != IBV_QPS_RESET && fv_shared(q)->state != IBV_QPS_INIT;
    if (!late)
        q->ece.options = ece->options & known;
    fv_unlock();
    return late || ece->comp_mask ? EINVAL : 0;
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    (void)qp;
    return NULL; /* not made by ibv_create_qp_ex */
}

/* Not in older headers. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t flags);
EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t flags)
{
    (void)qp;
    (void)opcode;
    (void)flags;
    return 0;
}
