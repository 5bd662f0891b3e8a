/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c - sends and receives the control messages of verbs/control_message.h. They are
 * numbered, and each acknowledges those of the peer. A message is kept until it is
 * acknowledged, so that it can be sent again over the next wire if this one is lost.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
