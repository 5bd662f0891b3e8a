/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.c - carries out work requests: at once, where nothing is in the way; else when somebody polls
 * or posts, or by a thread that looks again every millisecond as long as there is something to do.
 */
#include "config.h" /* GNU extensions: process_vm_readv */

#include "verbs_impl.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

/* A message that was given up by the sender but is still on its way. */
struct late {
    struct late *next;
    uint64_t due_tick;
    struct fv_qp from; /* as it was */
    enum ibv_wr_opcode opcode;
    uint32_t imm, rkey, len;
    uint64_t remote_addr;
    char bytes[];
};
static struct late *late;

/* ---- one work request ------------------------------------------------------------------------- */

static struct fv_qp *find_peer(const struct fv_qp *from)
{
    return &fv->qps[from->peer & (FV_QPS - 1)];
}

/* The bytes in this process. -1: a key that does not fit. */
static int gather(const struct fv_my_qp *q, const struct fv_send *s, struct iovec *out)
{
    const struct fv_qp *mine = fv_shared(q);
    const unsigned access = s->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
    int count = 0;

    if (s->is_inline) {
        out[0] = (struct iovec){fv_inline_bytes(q, s->n), s->len};
        return 1;
    }
    for (int i = 0; i < s->count; i++) {
        const struct ibv_sge *e = &s->sges[i];
        const uint64_t at =
            fv_translate(e->lkey, false, mine->pid, mine->pd, e->addr, e->length, access);
        if (!e->length)
            continue;
        if (!at)
            return -1;
        out[count++] = (struct iovec){(void *)(uintptr_t)at, e->length};
    }
    return count;
}

static enum ibv_wc_opcode opcode_of(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_RDMA_READ                                   ? IBV_WC_RDMA_READ
           : opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_SEND
                                                                        : IBV_WC_RDMA_WRITE;
}

static void finish(struct fv_my_qp *q, const struct fv_send *s, enum ibv_wc_status status)
{
    const struct fv_qp *mine = fv_shared(q);
    struct fv_completion c = fv_plain_completion(mine, s->wr_id, status);

    q->ran++;
    atomic_fetch_sub(&fv_me.waiting, 1);
    if (status == IBV_WC_SUCCESS && !q->signal_all && !(s->flags & IBV_SEND_SIGNALED))
        return;
    c.sent = s->n;
    if (status == IBV_WC_SUCCESS) {
        c.wc.opcode = opcode_of(s->opcode);
        c.wc.byte_len = s->len;
    }
    fv_complete(mine->send_cq, &c, false);
}

static void fail(struct fv_my_qp *q, const struct fv_send *s, enum ibv_wc_status status)
{
    finish(q, s, status);
    fv_break(fv_shared(q));
}

static int64_t retry_ns(void)
{
    const char *ms = getenv("FAKE_VERBS_RETRY_MS");

    return (ms ? atol(ms) : 50) * INT64_C(1000000);
}

/* Nobody answers, or is not ready: again, and not for ever. */
static bool may_repeat(const struct fv_my_qp *q, struct fv_send *s, enum fv_answer answer)
{
    if (answer == FV_NOT_READY && q->attr.rnr_retry == 7) {
        s->give_up_ns = 0;
        return true;
    }
    if (!s->give_up_ns)
        s->give_up_ns = fv_now_ns() + retry_ns();
    return fv_now_ns() < s->give_up_ns;
}

static enum ibv_wc_status status_of(enum fv_answer answer)
{
    static const enum ibv_wc_status all[] = {
        [FV_DONE] = IBV_WC_SUCCESS,
        [FV_SILENCE] = IBV_WC_RETRY_EXC_ERR,
        [FV_NOT_READY] = IBV_WC_RNR_RETRY_EXC_ERR,
        [FV_INVALID] = IBV_WC_REM_INV_REQ_ERR,
        [FV_NO_ACCESS] = IBV_WC_REM_ACCESS_ERR,
        [FV_REMOTE_FAILED] = IBV_WC_REM_OP_ERR,
    };

    return all[answer];
}

static struct fv_packet packet_of(const struct fv_send *s, const struct iovec *parts, int count)
{
    return (struct fv_packet){.opcode = s->opcode,
                              .is_solicited = s->flags & IBV_SEND_SOLICITED,
                              .imm = s->imm,
                              .rkey = s->rkey,
                              .len = s->len,
                              .remote_addr = s->remote_addr,
                              .parts = parts,
                              .count = count};
}

/* ---- faults ----------------------------------------------------------------------------------- */

static void keep_for_later(const struct fv_my_qp *q, const struct fv_send *s,
                           const struct iovec *parts, int count)
{
    struct late *l = malloc(sizeof(*l) + s->len);
    size_t at = 0;

    if (!l || s->opcode == IBV_WR_RDMA_READ) {
        free(l);
        return;
    }
    *l = (struct late){.next = late,
                       .due_tick = fv_me.tick + 1 + fv_draw(FV_ERROR, q->ordinal, s->n, 64),
                       .from = *fv_shared(q),
                       .opcode = s->opcode,
                       .imm = s->imm,
                       .rkey = s->rkey,
                       .len = s->len,
                       .remote_addr = s->remote_addr};
    for (int i = 0; i < count; at += parts[i++].iov_len)
        memcpy(l->bytes + at, parts[i].iov_base, parts[i].iov_len);
    late = l;
    atomic_fetch_add(&fv_me.waiting, 1);
}

static void deliver_late(void)
{
    for (struct late **link = &late; *link;) {
        struct late *l = *link;
        if (l->due_tick > fv_me.tick) {
            link = &l->next;
            continue;
        }
        const struct iovec part = {l->bytes, l->len};
        const struct fv_packet p = {.opcode = l->opcode, .imm = l->imm, .rkey = l->rkey,
                                    .len = l->len, .remote_addr = l->remote_addr, .parts = &part,
                                    .count = 1};
        fv_respond(&l->from, find_peer(&l->from), &p);
        *link = l->next;
        free(l);
        atomic_fetch_sub(&fv_me.waiting, 1);
    }
}

/* Acknowledged, but still on its way from the device to the memory. */
static void hold_back(const struct fv_my_qp *q, const struct fv_send *s, const struct iovec *parts,
                      int count)
{
    struct late *before = late;

    keep_for_later(q, s, parts, count);
    if (late != before)
        late->due_tick = UINT64_MAX;
}

/* A read does not pass the writes before it. */
static void place_held_back(const struct fv_qp *qp)
{
    for (struct late *l = late; l; l = l->next)
        if (l->from.number == qp->number && l->due_tick == UINT64_MAX)
            l->due_tick = 0;
    deliver_late();
}

/* Fail as it was decided when the request was posted. */
static void carry_out_badly(struct fv_my_qp *q, struct fv_send *s, const struct iovec *parts, int count)
{
    struct fv_qp *mine = fv_shared(q);
    const struct fv_packet p = packet_of(s, parts, count);

    if (s->arrival == FAKE_ARRIVES_BEFORE)
        fv_respond(mine, find_peer(mine), &p);
    else if (s->arrival == FAKE_ARRIVES_AFTER)
        keep_for_later(q, s, parts, count);
    if (s->fault == IBV_WC_REM_ACCESS_ERR && fv_reaches(mine, find_peer(mine))) {
        fv_post_letter(find_peer(mine)->events, IBV_EVENT_QP_ACCESS_ERR, find_peer(mine)->owner);
        fv_break(find_peer(mine));
    }
    if (s->fault == IBV_WC_WR_FLUSH_ERR)
        fv_post_letter(mine->events, IBV_EVENT_QP_FATAL, mine->owner);
    fail(q, s, s->fault);
}

/* ---- the queue -------------------------------------------------------------------------------- */

/* Returns whether the queue goes on to the next. */
static bool carry_out(struct fv_my_qp *q, struct fv_send *s)
{
    struct fv_qp *mine = fv_shared(q);
    struct iovec parts[FV_SGES];
    const int count = gather(q, s, parts);

    if (count < 0 || (s->opcode == IBV_WR_RDMA_READ && !q->attr.max_rd_atomic)) {
        fail(q, s, count < 0 ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_QP_OP_ERR);
        return true;
    }
    if (s->fault != IBV_WC_SUCCESS) {
        carry_out_badly(q, s, parts, count);
        return true;
    }
    const struct fv_packet p = packet_of(s, parts, count);
    if (s->opcode == IBV_WR_RDMA_READ)
        place_held_back(mine);
    if (s->arrival == FAKE_ARRIVES_WITH_READ) {
        hold_back(q, s, parts, count);
        s->is_carried_out = true;
        return true;
    }
    const enum fv_answer answer = fv_respond(mine, find_peer(mine), &p);
    if ((answer == FV_SILENCE || answer == FV_NOT_READY) && may_repeat(q, s, answer))
        return false;
    if (answer != FV_DONE) {
        fail(q, s, status_of(answer));
        return true;
    }
    s->is_carried_out = true;
    if (s->arrival == FAKE_ARRIVES_TWICE || fv_strikes(FV_TWICE, q->ordinal, s->n))
        fv_respond(mine, find_peer(mine), &p);
    if (fv_strikes(FV_ACK, q->ordinal, s->n))
        s->ready_tick = fv_me.tick + 1 + fv_draw(FV_ACK, q->ordinal, s->n, 16);
    return true;
}

static bool step(struct fv_my_qp *q, struct fv_send *s)
{
    const struct fv_qp *mine = fv_shared(q);

    if (mine->state == IBV_QPS_ERR) {
        finish(q, s, IBV_WC_WR_FLUSH_ERR);
        return true;
    }
    if (mine->state != IBV_QPS_RTS || fv_me.held || q->held || s->ready_tick > fv_me.tick)
        return false;
    if (!s->is_carried_out)
        return carry_out(q, s);
    finish(q, s, IBV_WC_SUCCESS);
    return true;
}

void fv_run(struct fv_my_qp *q)
{
    while (q->ran < q->posted && step(q, &q->sends[q->ran % q->cap.max_send_wr]))
        ;
}

/* ---- everything that waits ---------------------------------------------------------------------- */

static void bring_ports_up(void)
{
    for (int i = 0; i < FV_PORTS && fv->ports[i].used; i++) {
        struct fv_port *p = &fv->ports[i];
        if (!p->up_again_ns || p->up_again_ns > fv_now_ns())
            continue;
        p->up_again_ns = 0;
        if (!p->up)
            fv_post_port_event(p, IBV_EVENT_PORT_ACTIVE);
        p->up = true;
    }
}

static int planned; /* ports that this process has taken down and waits for */

void fv_plan_port_up(struct fv_port *port, unsigned ms)
{
    if (!port->up_again_ns)
        fv_post_port_event(port, IBV_EVENT_PORT_ERR);
    port->up = false;
    port->up_again_ns = fv_now_ns() + ms * INT64_C(1000000);
    planned++;
    atomic_fetch_add(&fv_me.waiting, 1);
}

static void look_after_ports(void)
{
    bool any = false;

    if (!planned)
        return;
    bring_ports_up();
    for (int i = 0; i < FV_PORTS && fv->ports[i].used; i++)
        any |= fv->ports[i].up_again_ns != 0;
    if (any)
        return;
    atomic_fetch_sub(&fv_me.waiting, planned);
    planned = 0;
}

void fv_progress(void)
{
    if (!atomic_load(&fv_me.waiting))
        return;
    fv_me.tick++;
    look_after_ports();
    deliver_late();
    for (struct fv_my_qp *q = fv_me.qps; q; q = q->next)
        fv_run(q);
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pid_t pid; /* that has the thread */
} ticker = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

static void *tick(void *none)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    (void)none;
    for (;;) {
        pthread_mutex_lock(&ticker.lock);
        while (!atomic_load(&fv_me.waiting))
            pthread_cond_wait(&ticker.work, &ticker.lock);
        pthread_mutex_unlock(&ticker.lock);
        nanosleep(&pause, NULL);
        fv_lock();
        fv_progress();
        fv_unlock();
    }
    return NULL;
}

static void start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, tick, NULL)) {
        pthread_detach(thread);
        ticker.pid = fv_me.pid;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fv_wake(void)
{
    if (!atomic_load(&fv_me.waiting))
        return;
    pthread_mutex_lock(&ticker.lock);
    if (ticker.pid != fv_me.pid)
        start_thread();
    pthread_cond_signal(&ticker.work);
    pthread_mutex_unlock(&ticker.lock);
}
