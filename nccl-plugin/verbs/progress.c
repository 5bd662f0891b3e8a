/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c - progress of a connection, made by every test, send and receive: completions each
 * time; events, control messages and deadlines at intervals, without a system call in between.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"

#include <string.h>

/* ---- stalls ---------------------------------------------------------------------------------- */

/* A connection that makes no progress although requests are open fails, whatever the cause:
 *
 *      sender     a send is in flight, and nothing completes   fails after DUALPIPE_NET_TIMEOUT
 *      receiver   a receive is open, and nothing arrives       reports to the sender what has arrived,
 *                                                              four times in that time
 *
 * A receiver may wait for hours, as the sender may have nothing to send. So only the sender can
 * detect a stall: the receiver has written a clear-to-send entry that has not arrived, or lacks a
 * message that was acknowledged. What is in flight arrives between two reports, so it is a stall
 * only when REPORTS consecutive reports are the same.
 */

enum { REPORTS = 4 };

static bool is_open(const struct dpn_verbs *v)
{
    const struct dpn_sender *tx = &v->send;

    for (unsigned i = v->q.is_sender ? dpn_verbs_next_send(tx, 0) : DPN_SENDS; i < DPN_SENDS;
         i = dpn_verbs_next_send(tx, i + 1))
        if (tx->sends[i].base.left)
            return true;
    for (uint32_t used = v->q.is_sender ? 0 : ~v->recv.free; used; used &= used - 1)
        if (v->recv.recvs[__builtin_ctz(used)].base.left)
            return true;
    return false;
}

static void send_report(struct dpn_verbs *v)
{
    union dpn_control_body body;

    memset(&body, 0, sizeof(body));
    body.stalled.cts_made = v->recv.cts_made;
    body.stalled.moves = v->stall.moves;
    dpn_verbs_report(&v->recv, &body.stalled.has);
    v->stall.reported_ns = v->stall.stalled_ns;
    v->stall.number = v->control.channel.sent;
    dpn_control_send(v, DPN_STALLED, &body);
}

/* The next report is made after the previous one was compared, so that it contains what arrived
 * meanwhile. */
static void report_to_sender(struct dpn_verbs *v)
{
    const struct dpn_stall *s = &v->stall;
    const bool was_acked = !s->reported_ns || (int32_t)(v->control.channel.acked - s->number) > 0;

    if (was_acked && s->stalled_ns - s->reported_ns >= dpn_timeout_ns() / REPORTS)
        send_report(v);
}

static void reset(struct dpn_stall *s)
{
    s->moves += s->has_moved;
    s->has_moved = false;
    s->stalled_ns = s->reported_ns = 0;
}

/* Only time with polls counts. */
static void poll_stall(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_stall *s = &v->stall;
    const int64_t step_ns = now_ns - v->polled_ns;

    if (s->has_moved || v->step != DPN_STEP_READY || !is_open(v)) {
        reset(s);
        return;
    }
    s->stalled_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (!v->q.is_sender && v->recv.cts_sent == v->recv.cts_made)
        report_to_sender(v);
    else if (s->stalled_ns > dpn_timeout_ns())
        dpn_verbs_fail(&v->q, DP_ETIMEDOUT, "%s for %lld s (DUALPIPE_NET_TIMEOUT)",
                       v->q.is_sender ? "no part of any send has completed"
                                      : "clear-to-send entries could not be written",
                       (long long)dpn_options.timeout_s);
}

/* The sender reads the receiver's report. */
static void take_stall(struct dpn_verbs *v, const struct dpn_stalled *report)
{
    struct dpn_stall *s = &v->stall;

    dpn_verbs_read_cts(&v->send);
    if (v->q.error)
        return;
    const bool lacks_cts = (int32_t)(report->cts_made - v->send.cts_read) > 0;
    const bool has_lost = dpn_verbs_has_lost(&v->send, &report->has);
    const bool is_same =
        s->reports && s->peer_moves == report->moves && s->cts_read == v->send.cts_read;

    s->peer_moves = report->moves;
    s->cts_read = v->send.cts_read;
    s->reports = !lacks_cts && !has_lost ? 0 : is_same ? s->reports + 1 : 1;
    if (s->reports < REPORTS)
        return;
    dpn_verbs_fail(
        &v->q, DP_ETIMEDOUT,
        "nothing has moved for %lld s (DUALPIPE_NET_TIMEOUT), although %s: a write that the "
        "device has acknowledged did not arrive",
        (long long)dpn_options.timeout_s,
        lacks_cts ? "the receiver has cleared more to send than has arrived here"
                  : "the receiver waits for a message that was sent");
}

/* ---- what a control message makes this side do ----------------------------------------------- */

static void take_refusal(struct dpn_verbs *v, const struct dpn_refused *r)
{
    const struct dpn_recv *recv = &v->recv.recvs[r->slot];
    const struct dpn_recv_buffer *buffer =
        r->sub < recv->count && recv->generation == r->generation ? &recv->buffers[r->sub] : NULL;

    dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer has %llu bytes for a receive of %zu (tag %d)",
                   (unsigned long long)r->size, buffer ? buffer->size : 0,
                   buffer ? buffer->tag : -1);
}

static void take_failed(struct dpn_verbs *v, const struct dpn_failed *f)
{
    v->control.has_peer_failed = true;
    dpn_verbs_fail(&v->q, DP_ECOMM, "the peer has ended the connection: %s", f->reason);
}

static bool is_our_qp(struct dpn_verbs *v, unsigned qp)
{
    if ((int)qp < v->q.qp_count)
        return true;
    dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer names queue pair %u of %d", qp, v->q.qp_count);
    return false;
}

/* Other messages may wait until the peer has received such a message, so acknowledge it at once. */
static void send_ack(struct dpn_verbs *v)
{
    static const union dpn_control_body nothing;

    if (!v->q.error)
        dpn_control_send(v, DPN_ACK, &nothing);
}

static void handle(struct dpn_verbs *v, enum dpn_control_kind kind, const union dpn_control_body *t)
{
    switch (kind) {
    case DPN_OPEN:
        if (is_our_qp(v, t->open.index))
            dpn_qp_take_open(v, &t->open);
        break;
    case DPN_OPENED:
        if (is_our_qp(v, t->opened.index))
            dpn_qp_take_opened(v, &t->opened);
        break;
    case DPN_CLOSED_SENDER:
        if (!is_our_qp(v, t->closed_sender.index))
            break;
        dpn_cts_rewind(&v->recv, t->closed_sender.index, t->closed_sender.cts_read);
        dpn_qp_take_closed(v, t->closed_sender.index, t->closed_sender.epoch);
        send_ack(v);
        break;
    case DPN_CLOSED_RECEIVER:
        if (!is_our_qp(v, t->closed_receiver.index))
            break;
        v->send.reports[t->closed_receiver.index] = t->closed_receiver;
        dpn_qp_take_closed(v, t->closed_receiver.index, t->closed_receiver.epoch);
        send_ack(v);
        break;
    case DPN_REFUSED:
        take_refusal(v, &t->refused);
        break;
    case DPN_ACK:
        break;
    case DPN_STALLED:
        take_stall(v, &t->stalled);
        send_ack(v);
        break;
    case DPN_FAILED:
        take_failed(v, &t->failed);
        break;
    case DPN_RESUME:
        dpn_control_take_resume(v, &t->resume);
        break;
    case DPN_READY: /* receiver: without a queue pair the connection is declined, see handshake.c */
        v->step = t->ready.qps ? DPN_STEP_READY : DPN_STEP_NO_QPS;
        break;
    case DPN_HELLO:
    case DPN_PLAN: /* received in handshake.c, before there are queue pairs */
        dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer starts another handshake");
        break;
    }
}

/* Handling a message may change the state in which the next one is expected. */
static void poll_control(struct dpn_verbs *v)
{
    enum { MESSAGES = 32 };
    enum dpn_control_kind kind;

    v->q.comm->wire->ops->progress(v->q.comm->wire);
    for (int i = 0; i < MESSAGES && v->step != DPN_STEP_NO_QPS && dpn_control_receive(v, &kind);
         i++)
        handle(v, kind, &v->control.received);
}

/* ---- progress -------------------------------------------------------------------------------- */

static const int64_t REST_EVERY_NS = DP_NS_PER_MS, DEGRADED_EVERY_NS = 50 * DP_NS_PER_US;
enum { INLINE_POLLS = 16, IDLE_POLLS = 64, BUSY_POLLS = 1024 };

static void poll_rest(struct dpn_verbs *v, int64_t now_ns)
{
    for (int r = 0; r < v->q.rail_count; r++)
        dpn_hca_read_events(v->q.rails[r].port->hca, now_ns);
    poll_control(v);
    if (!v->q.error)
        dpn_channel_poll(v, now_ns);
    if (!v->q.error)
        dpn_qps_poll(v, now_ns);
    if (!v->q.error && !v->q.is_sender)
        dpn_loops_poll(&v->recv, now_ns);
    if (!v->q.error)
        poll_stall(v, now_ns);
    v->polled_ns = now_ns;
}

static void push(struct dpn_verbs *v)
{
    if (v->q.is_sender && v->send.waiting)
        dpn_verbs_push(&v->send);
    else if (!v->q.is_sender && v->recv.cts_sent != v->recv.cts_made)
        dpn_cts_push(&v->recv);
}

/* Look for an inline message in memory without polling for completions each time; completions are
 * polled for at intervals. */
static bool find(struct dpn_verbs *v)
{
    if (v->q.is_sender)
        return dpn_verbs_poll_queues(v);
    if (v->recv.unpolled++ < INLINE_POLLS && dpn_eager_poll(&v->recv))
        return true;
    v->recv.unpolled = 0;
    return dpn_verbs_poll_queues(v);
}

static bool end_qps(struct dpn_verbs *v)
{
    bool have_ended = dpn_qps_end(&v->q);

    for (int r = 0; r < v->q.rail_count; r++)
        have_ended &= dpn_loop_end(&v->q.rails[r]);
    return have_ended;
}

void dpn_verbs_send_refusal(struct dpn_verbs *v)
{
    if (!v->q.is_sender || !v->send.has_refused)
        return;
    v->send.has_refused = false;
    dpn_control_send(v, DPN_REFUSED, &(union dpn_control_body){.refused = v->send.refused});
}

bool dpn_verbs_has_ended(struct dpn_verbs *v)
{
    if (!v->has_told) {
        dpn_verbs_send_refusal(v);
        dpn_control_send_failed(v);
    }
    v->has_told = true;
    return end_qps(v) || dp_now_ns() - v->q.failed_ns > dpn_timeout_ns();
}

void dpn_verbs_progress(struct dpn_verbs *v)
{
    const bool found = find(v);

    v->idle = found ? 0 : v->idle + 1;
    v->stall.has_moved |= found;
    if (!v->q.is_sender)
        dpn_cts_release_if_idle(&v->recv, found);
    const bool is_degraded = v->q.is_degraded || v->q.has_lost_loop || v->control.channel.is_lost;
    if (is_degraded || v->idle % IDLE_POLLS == IDLE_POLLS - 1 || ++v->polls % BUSY_POLLS == 0) {
        const int64_t now_ns = dp_now_ns();
        if (now_ns - v->polled_ns >= (is_degraded ? DEGRADED_EVERY_NS : REST_EVERY_NS))
            poll_rest(v, now_ns);
    }
    if (!v->q.error)
        push(v);
    if (v->q.error)
        dpn_verbs_has_ended(v);
}

void dpn_verbs_progress_all(struct dpn_verbs *v)
{
    v->stall.has_moved |= dpn_verbs_poll(v);
    if (!v->q.error)
        poll_rest(v, dp_now_ns());
    if (!v->q.is_sender)
        dpn_cts_release(&v->recv);
    if (!v->q.error)
        push(v);
    if (v->q.error)
        dpn_verbs_has_ended(v);
}
