/* SPDX-License-Identifier: Apache-2.0
 *
 * dispatch.c - what each control message of verbs/control_message.h makes this side do.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"

static void take_refusal(struct dpn_verbs *v, const struct dpn_refused *r)
{
    const struct dpn_recv *recv = &v->recv.recvs[r->slot];
    const struct dpn_recv_buffer *buffer =
        r->sub < recv->count && recv->generation == r->generation ? &recv->buffers[r->sub] : NULL;

    dpn_verbs_fail(v, DP_EMISMATCH, "the peer has %llu bytes for a receive of %zu (tag %d)",
                   (unsigned long long)r->size, buffer ? buffer->size : 0,
                   buffer ? buffer->tag : -1);
}

static void take_failed(struct dpn_verbs *v, const struct dpn_failed *f)
{
    v->control.has_peer_failed = true;
    dpn_verbs_fail(v, DP_ECOMM, "the peer has ended the connection: %s", f->reason);
}

static bool is_our_qp(struct dpn_verbs *v, unsigned qp)
{
    if ((int)qp < v->queues.qp_count)
        return true;
    dpn_verbs_fail(v, DP_EMISMATCH, "the peer names queue pair %u of %d", qp, v->queues.qp_count);
    return false;
}

/* Other messages may wait until the peer has received such a message, so acknowledge it at once. */
static void send_ack(struct dpn_verbs *v)
{
    static const union dpn_control_body nothing;

    if (!v->error)
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
        dpn_cts_rewind(v, t->closed_sender.index, t->closed_sender.cts_read);
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
        dpn_stall_take(v, &t->stalled);
        send_ack(v);
        break;
    case DPN_FAILED:
        take_failed(v, &t->failed);
        break;
    case DPN_RESUME:
        dpn_control_take_resume(v, &t->resume);
        if (!v->error)
            dpn_channel_resumed(v);
        break;
    case DPN_READY: /* receiver: without a queue pair the connection is declined, see handshake.c */
        v->step = t->ready.qps ? DPN_STEP_READY : DPN_STEP_NO_QPS;
        break;
    case DPN_HELLO:
    case DPN_PLAN: /* received in handshake.c, before there are queue pairs */
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer starts another handshake");
        break;
    }
}

/* Handling a message may change the state in which the next one is expected. */
void dpn_control_poll(struct dpn_verbs *v)
{
    enum { MESSAGES = 32 };
    enum dpn_control_kind kind;

    v->comm->wire->ops->progress(v->comm->wire);
    for (int i = 0; i < MESSAGES && v->step != DPN_STEP_NO_QPS && dpn_control_receive(v, &kind);
         i++)
        handle(v, kind, &v->control.received);
}
