/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c - sends and receives the control messages of verbs/control_message.h. They are
 * numbered, and each acknowledges those of the peer. A message is kept until it is
 * acknowledged, so that it can be sent again over the next wire if this one is lost.
 */
#include "base/fail.h"
#include "nccl-plugin/options.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/control_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a message must be ------------------------------------------------------------------ */

/* Which side receives a kind of message, and its length. */
static const struct {
    size_t len;
    bool by_sender, by_receiver;
    const char *name;
} kinds[] = {
    [DPN_HELLO] = {sizeof(struct dpn_hello), false, true, "hello"},
    [DPN_PLAN] = {sizeof(struct dpn_plan), true, false, "plan"},
    [DPN_OPEN] = {sizeof(struct dpn_open_qp), false, true, "open"},
    [DPN_OPENED] = {sizeof(struct dpn_opened_qp), true, false, "opened"},
    [DPN_READY] = {sizeof(struct dpn_ready), false, true, "ready"},
    [DPN_CLOSED_SENDER] = {sizeof(struct dpn_closed_sender), false, true, "closed"},
    [DPN_CLOSED_RECEIVER] = {sizeof(struct dpn_closed_receiver), true, false, "closed"},
    [DPN_REFUSED] = {sizeof(struct dpn_refused), false, true, "refused"},
    [DPN_RESUME] = {sizeof(struct dpn_resume), true, true, "resume"},
    [DPN_ACK] = {sizeof(struct dpn_resume), true, true, "ack"},
    [DPN_STALLED] = {sizeof(struct dpn_stalled), true, false, "stalled"},
    [DPN_FAILED] = {sizeof(struct dpn_failed), true, true, "failed"},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

size_t dpn_control_len(uint64_t kind)
{
    return kind < KINDS ? kinds[kind].len : 0;
}

static bool is_text(const char *text, size_t len)
{
    return memchr(text, '\0', len) != NULL;
}

static bool are_ports(const struct dpn_port_info *ports, int count)
{
    if (count > DPN_MAX_RAILS)
        return false;
    for (int i = 0; i < count; i++)
        if (!is_text(ports[i].name, sizeof(ports[i].name)) || !ports[i].speed_mbps)
            return false;
    return true;
}

static bool is_gid(const struct dpn_gid *gid)
{
    return gid->type <= IBV_GID_TYPE_ROCE_V2;
}

static bool is_qp(const struct dpn_qp_info *qp)
{
    return qp->number < 1u << 24 && qp->psn < 1u << 24 && qp->mtu >= IBV_MTU_256 &&
           qp->mtu <= IBV_MTU_4096;
}

static bool is_hello(const struct dpn_hello *h)
{
    return h->port_count && are_ports(h->ports, h->port_count + h->other_count) && h->qps &&
           h->qps <= DPN_MAX_QPS && h->max_message && h->service_level < 16 &&
           h->subnet_bits <= 32 && h->eager_bytes <= DPN_MAX_EAGER &&
           h->traffic <= DPN_TRAFFIC_GRADIENT;
}

static bool is_plan(const struct dpn_plan *p)
{
    if (!is_text(p->reason, sizeof(p->reason)))
        return false;
    if (!p->agreed)
        return true;
    for (int i = 0; i < DPN_MAX_RAILS; i++)
        if (p->rail[i].sender >= DPN_MAX_RAILS)
            return false;
    return p->rails && are_ports(p->ports, p->rails) && p->qps_per_rail && p->max_message &&
           p->eager_bytes <= DPN_MAX_EAGER &&
           p->rails * p->qps_per_rail <= DPN_MAX_QPS;
}

static bool is_open(const struct dpn_open_qp *o)
{
    if (o->index >= DPN_MAX_QPS || o->gids.count < 0 || o->gids.count > DPN_MAX_GIDS)
        return false;
    for (int i = 0; i < o->gids.count; i++)
        if (!is_gid(&o->gids.list[i]))
            return false;
    return is_qp(&o->qp);
}

static bool is_opened(const struct dpn_opened_qp *o)
{
    return o->index < DPN_MAX_QPS && is_text(o->reason, sizeof(o->reason)) &&
           (!o->is_open || (is_qp(&o->qp) && is_gid(&o->sender) && is_gid(&o->receiver)));
}

static bool is_report(const struct dpn_closed_receiver *f)
{
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        if (f->arrived[i].count > DPN_MAX_RECEIVES)
            return false;
    return f->index < DPN_MAX_QPS;
}

static bool makes_sense(uint64_t kind, const union dpn_control_body *t)
{
    switch ((enum dpn_control_kind)kind) {
    case DPN_HELLO:
        return is_hello(&t->hello);
    case DPN_PLAN:
        return is_plan(&t->plan);
    case DPN_OPEN:
        return is_open(&t->open);
    case DPN_OPENED:
        return is_opened(&t->opened);
    case DPN_READY:
        return t->ready.qps <= DPN_MAX_QPS;
    case DPN_CLOSED_SENDER:
        return t->closed_sender.index < DPN_MAX_QPS;
    case DPN_CLOSED_RECEIVER:
        return is_report(&t->closed_receiver);
    case DPN_REFUSED:
        return t->refused.slot < NCCL_NET_MAX_REQUESTS && t->refused.sub < DPN_MAX_RECEIVES;
    case DPN_RESUME:
    case DPN_ACK:
        return true;
    case DPN_STALLED:
        return is_report(&t->stalled.has);
    case DPN_FAILED:
        return is_text(t->failed.reason, sizeof(t->failed.reason));
    }
    return false;
}

int dpn_control_check(uint64_t kind, bool is_sender, const union dpn_control_body *body, size_t len)
{
    const bool known = dpn_control_len(kind) &&
                       (is_sender ? kinds[kind].by_sender : kinds[kind].by_receiver);

    if (!known)
        return dp_fail_quietly(DP_EMISMATCH,
                               "a control message of kind %llu, which a %s never receives",
                               (unsigned long long)kind, is_sender ? "sender" : "receiver");
    if (kind == DPN_HELLO && len >= sizeof(body->hello.version) &&
        body->hello.version != DPN_CONTROL_VERSION)
        return dp_fail_quietly(DP_EMISMATCH,
                               "version %u of dualpipe's verbs transport, expected %d",
                               body->hello.version, DPN_CONTROL_VERSION);
    if (len != kinds[kind].len)
        return dp_fail_quietly(DP_EMISMATCH, "the control message %s of %zu bytes, expected %zu",
                               kinds[kind].name, len, kinds[kind].len);
    if (!makes_sense(kind, body))
        return dp_fail_quietly(DP_EMISMATCH, "the control message %s with a value out of bounds",
                               kinds[kind].name);
    return 0;
}

/* The tag of a control message: its kind, and the low bits of its number and of the number of
 * messages received. */
enum { KIND_BITS = 8, COUNT_BITS = 28 };
static const uint32_t COUNT = (1u << COUNT_BITS) - 1;

static uint64_t tag_of(enum dpn_control_kind kind, uint32_t number, uint32_t received)
{
    return (uint64_t)(number & COUNT) << (KIND_BITS + COUNT_BITS) |
           (uint64_t)(received & COUNT) << KIND_BITS | (uint64_t)kind;
}

/* The count nearest to `near` with these low bits. */
static uint32_t widen(uint64_t bits, uint32_t near)
{
    const uint32_t ahead = ((uint32_t)bits - near) & COUNT;

    return near + (ahead <= COUNT / 2 ? ahead : ahead - COUNT - 1);
}

struct dpn_control_message {
    struct dpn_control_message *next;
    struct dp_wire_request req;
    enum dpn_control_kind kind;
    uint32_t number;
    union dpn_control_body body;
};

/* ---- sending --------------------------------------------------------------------------------- */

/* ACK matters only for its tag, and is of no use over another wire. */
static bool is_numbered(enum dpn_control_kind kind)
{
    return kind != DPN_RESUME && kind != DPN_ACK;
}

static bool is_acked(const struct dpn_verbs *v, const struct dpn_control_message *message)
{
    return !is_numbered(message->kind) || (int32_t)(v->control.channel.acked - message->number) > 0;
}

/* A message that the wire is still sending is kept. */
static void free_acked(struct dpn_verbs *v)
{
    for (struct dpn_control_message **at = &v->control.unacked; *at;) {
        struct dpn_control_message *message = *at;
        if (message->req.status == DP_EAGAIN || !is_acked(v, message)) {
            at = &message->next;
            continue;
        }
        *at = message->next;
        free(message);
    }
}

static void post(struct dpn_verbs *v, struct dpn_control_message *message)
{
    dp_wire_isend(v->comm->wire,
                  tag_of(message->kind, message->number, v->control.channel.received),
                  &message->body, dpn_control_len(message->kind), &message->req);
}

void dpn_control_send(struct dpn_verbs *v, enum dpn_control_kind kind,
                      const union dpn_control_body *body)
{
    free_acked(v);
    struct dpn_control_message *message = calloc(1, sizeof(*message));
    if (!message) {
        dpn_verbs_fail(v, DP_ENOMEM, "no memory for a control message to the peer");
        return;
    }
    memcpy(&message->body, body, dpn_control_len(kind));
    message->kind = kind;
    message->number = is_numbered(kind) ? v->control.channel.sent++ : v->control.channel.sent;
    struct dpn_control_message **end = &v->control.unacked;
    while (*end)
        end = &(*end)->next;
    *end = message;
    if (v->control.channel.is_resumed)
        post(v, message);
}

bool dpn_control_is_sending(struct dpn_verbs *v)
{
    bool any = false;

    for (const struct dpn_control_message *message = v->control.unacked; message;
         message = message->next)
        any |= message->req.status == DP_EAGAIN;
    return any;
}

bool dpn_control_has_unacked_closed(const struct dpn_verbs *v)
{
    bool any = false;

    for (const struct dpn_control_message *message = v->control.unacked; message;
         message = message->next)
        any |= !is_acked(v, message) &&
               (message->kind == DPN_CLOSED_SENDER || message->kind == DPN_CLOSED_RECEIVER);
    return any;
}

/* The wire is closed, or sends none of these messages any more. */
void dpn_control_free_all(struct dpn_verbs *v)
{
    while (v->control.unacked) {
        struct dpn_control_message *message = v->control.unacked;
        v->control.unacked = message->next;
        free(message);
    }
}

/* ---- a new wire ------------------------------------------------------------------------------ */

static void send_resume(struct dpn_verbs *v)
{
    v->control.channel.resume = (struct dpn_resume){.received = v->control.channel.received};
    dp_wire_isend(v->comm->wire, tag_of(DPN_RESUME, 0, v->control.channel.received),
                  &v->control.channel.resume, sizeof(v->control.channel.resume),
                  &v->control.channel.resume_req);
}

/* Messages sent over the previous wire do not arrive any more. The sender, which connected, sends
 * its RESUME after the peer's: a peer that does not know the connection closes the wire, and unread
 * bytes would turn that into a reset, after which the sender would try again. */
void dpn_control_resume(struct dpn_verbs *v)
{
    for (struct dpn_control_message *message = v->control.unacked; message; message = message->next)
        message->req.status = 0;
    if (!v->queues.is_sender)
        send_resume(v);
}

static void confirm(struct dpn_verbs *v, uint32_t received)
{
    if ((int32_t)(received - v->control.channel.acked) < 0)
        return;
    if ((int32_t)(v->control.channel.sent - received) < 0) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has received %u control messages of %u", received,
                       v->control.channel.sent);
        return;
    }
    v->control.channel.acked = received;
    free_acked(v);
}

void dpn_control_take_resume(struct dpn_verbs *v, const struct dpn_resume *resume)
{
    if (v->control.channel.is_resumed) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer resumes what was not interrupted");
        return;
    }
    if (v->queues.is_sender)
        send_resume(v);
    confirm(v, resume->received);
    for (struct dpn_control_message *message = v->control.unacked; message && !v->error;
         message = message->next)
        post(v, message);
}

/* ---- receiving ------------------------------------------------------------------------------- */

void dpn_control_send_failed(struct dpn_verbs *v)
{
    union dpn_control_body body;

    if (v->step != DPN_STEP_READY || v->control.has_peer_failed || !v->comm->wire ||
        v->comm->wire->error)
        return;
    memset(&body, 0, sizeof(body));
    snprintf(body.failed.reason, sizeof(body.failed.reason), "%.255s", v->why);
    dpn_control_send(v, DPN_FAILED, &body);
}

static void post_receive(struct dpn_verbs *v)
{
    dp_wire_irecv(v->comm->wire, &v->control.received, sizeof(v->control.received),
                  &v->control.incoming);
    v->control.is_receiving = true;
}

/* Whether a message was not received before, over another wire, judged by its number. */
static bool is_new(struct dpn_verbs *v, enum dpn_control_kind kind, uint64_t tag)
{
    const uint32_t number = widen(tag >> (KIND_BITS + COUNT_BITS), v->control.channel.received);

    confirm(v, widen(tag >> KIND_BITS, v->control.channel.acked));
    if (!is_numbered(kind))
        return true;
    if ((int32_t)(number - v->control.channel.received) > 0)
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer sent message %u after message %u", number,
                       v->control.channel.received - 1);
    if (v->error || number != v->control.channel.received)
        return false;
    v->control.channel.received++;
    return true;
}

bool dpn_control_receive(struct dpn_verbs *v, enum dpn_control_kind *kind)
{
    for (;;) {
        if (!v->control.is_receiving)
            post_receive(v);
        if (v->error || v->control.incoming.status)
            return false;
        v->control.is_receiving = false;
        *kind = (enum dpn_control_kind)(v->control.incoming.tag & ((1u << KIND_BITS) - 1));
        if (dpn_control_check(*kind, v->queues.is_sender, &v->control.received,
                              v->control.incoming.moved)) {
            dpn_verbs_fail(v, DP_EMISMATCH, "the peer sent %s", dp_last_error());
            return false;
        }
        if (is_new(v, *kind, v->control.incoming.tag))
            return true;
    }
}

bool dpn_control_tells_the_end(struct dpn_verbs *v)
{
    if (!v->control.is_receiving || v->step != DPN_STEP_READY || !v->comm->wire)
        return false;
    v->comm->wire->ops->progress(v->comm->wire);
    return !v->control.incoming.status &&
           (v->control.incoming.tag & ((1u << KIND_BITS) - 1)) == DPN_FAILED;
}

/* Closing a socket with unread data resets the connection, which the peer would take for a network
 * failure. */
void dpn_control_drain(struct dpn_verbs *v)
{
    enum { MESSAGES = 1000 };

    for (int i = 0; i < MESSAGES; i++) {
        if (!v->control.is_receiving)
            post_receive(v);
        v->comm->wire->ops->progress(v->comm->wire);
        if (v->control.incoming.status)
            return;
        v->control.is_receiving = false;
    }
}
