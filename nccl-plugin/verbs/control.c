/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c - sends and receives the control messages of verbs/control_message.h. They are
 * numbered, and each acknowledges those of the peer. A message is kept until it is
 * acknowledged, so that it can be sent again over the next wire if this one is lost; which wire
 * that is, is at the end.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/hmac.h"
#include "nccl-plugin/verbs/comm.h"
#include "wire/tcp.h"

#include <pthread.h>
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
    dp_wire_isend(v->q.comm->wire,
                  tag_of(message->kind, message->number, v->control.channel.received),
                  &message->body, dpn_control_len(message->kind), &message->req);
}

void dpn_control_send(struct dpn_verbs *v, enum dpn_control_kind kind,
                      const union dpn_control_body *body)
{
    free_acked(v);
    struct dpn_control_message *message = calloc(1, sizeof(*message));
    if (!message) {
        dpn_verbs_fail(&v->q, DP_ENOMEM, "no memory for a control message to the peer");
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

static bool has_unacked_closed(const struct dpn_verbs *v)
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
    dp_wire_isend(v->q.comm->wire, tag_of(DPN_RESUME, 0, v->control.channel.received),
                  &v->control.channel.resume, sizeof(v->control.channel.resume),
                  &v->control.channel.resume_req);
}

/* Messages sent over the previous wire do not arrive any more. The sender, which connected, sends
 * its RESUME after the peer's: a peer that does not know the connection closes the wire, and unread
 * bytes would turn that into a reset, after which the sender would try again. */
static void resume(struct dpn_verbs *v)
{
    for (struct dpn_control_message *message = v->control.unacked; message; message = message->next)
        message->req.status = 0;
    if (!v->q.is_sender)
        send_resume(v);
}

static void confirm(struct dpn_verbs *v, uint32_t received)
{
    if ((int32_t)(received - v->control.channel.acked) < 0)
        return;
    if ((int32_t)(v->control.channel.sent - received) < 0) {
        dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer has received %u control messages of %u",
                       received, v->control.channel.sent);
        return;
    }
    v->control.channel.acked = received;
    free_acked(v);
}

/* ---- receiving ------------------------------------------------------------------------------- */

void dpn_control_send_failed(struct dpn_verbs *v)
{
    union dpn_control_body body;

    if (v->step != DPN_STEP_READY || v->control.has_peer_failed || !v->q.comm->wire ||
        v->q.comm->wire->error)
        return;
    memset(&body, 0, sizeof(body));
    snprintf(body.failed.reason, sizeof(body.failed.reason), "%.255s", v->q.why);
    dpn_control_send(v, DPN_FAILED, &body);
}

static void post_receive(struct dpn_verbs *v)
{
    dp_wire_irecv(v->q.comm->wire, &v->control.received, sizeof(v->control.received),
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
        dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer sent message %u after message %u", number,
                       v->control.channel.received - 1);
    if (v->q.error || number != v->control.channel.received)
        return false;
    v->control.channel.received++;
    return true;
}

bool dpn_control_receive(struct dpn_verbs *v, enum dpn_control_kind *kind)
{
    for (;;) {
        if (!v->control.is_receiving)
            post_receive(v);
        if (v->q.error || v->control.incoming.status)
            return false;
        v->control.is_receiving = false;
        *kind = (enum dpn_control_kind)(v->control.incoming.tag & ((1u << KIND_BITS) - 1));
        if (dpn_control_check(*kind, v->q.is_sender, &v->control.received,
                              v->control.incoming.moved)) {
            dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer sent %s", dp_last_error());
            return false;
        }
        if (is_new(v, *kind, v->control.incoming.tag))
            return true;
    }
}

bool dpn_control_tells_the_end(struct dpn_verbs *v)
{
    if (!v->control.is_receiving || v->step != DPN_STEP_READY || !v->q.comm->wire)
        return false;
    v->q.comm->wire->ops->progress(v->q.comm->wire);
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
        v->q.comm->wire->ops->progress(v->q.comm->wire);
        if (v->control.incoming.status)
            return;
        v->control.is_receiving = false;
    }
}

/* ---- a wire that is lost --------------------------------------------------------------------- */

/* The wire for control messages is replaced when the network loses it: a reset, a timeout, a network
 * that is down for a while. Data does not need it and continues; only a queue pair that fails meanwhile
 * has to wait for it.
 *
 *      sender                                        receiver
 *                                             <-     PLAN  address of its acceptor, a label
 *      (reset, or a timeout)                         (may not have noticed)
 *      connects to the acceptor, with the label ->   accepts
 *                                             <-     RESUME  lower numbers received
 *      RESUME  lower numbers received        ->
 *      later control messages                <->     the same
 *
 * Meanwhile each side writes zero bytes over every queue pair that is up, at intervals: an
 * unreachable peer does not acknowledge that. The receiver connects to the sender's acceptor, too,
 * only to see whether its process is alive. The connection ends when
 *
 *      the peer closed the wire               at once: it closed the connection, or ended
 *      the peer's acceptor refuses            after about 2 s: its process ended without closing;
 *                                             children have no acceptor (wire/sockets.h)
 *      there is no wire and no queue pair     after an eighth of DUALPIPE_NET_TIMEOUT
 *      control messages wait for the wire     after DUALPIPE_NET_TIMEOUT
 */

static const int64_t FIRST_ATTEMPT_NS = 50 * DP_NS_PER_MS, LAST_ATTEMPT_NS = 5 * DP_NS_PER_S;
static const int64_t ATTEMPT_NS = 5 * DP_NS_PER_S; /* until an attempt is given up */
/* Messages that the peer sent before it closed the wire may still be arriving. */
static const int64_t GRACE_NS = 100 * DP_NS_PER_MS;
enum { REFUSALS = 5 }; /* consecutive; one may be due to a short network failure */

/* ---- failure --------------------------------------------------------------------------------- */

/* The peer has closed the wire, or cannot be reached to see whether it is alive. Wait for messages
 * that may still arrive, then fail. */
static void end_without_peer(struct dpn_verbs *v, int64_t now_ns)
{
    const struct dp_wire *wire = v->q.comm->wire;

    if (!v->peer_gone_ns)
        v->peer_gone_ns = now_ns;
    if (now_ns - v->peer_gone_ns > GRACE_NS &&
        (v->q.is_sender || !dpn_eager_has_unclaimed(&v->recv)))
        dpn_verbs_fail(&v->q, wire->error, "the peer is gone: %s%s", wire->why,
                       v->control.channel.is_final ? ", and its acceptor no longer listens" : "");
}

/* Only time with polls counts. */
static void check_timeouts(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;
    const int64_t step_ns = now_ns - v->polled_ns;
    const int64_t unreachable_ns = v->q.down_ns < ch->lost_ns ? v->q.down_ns : ch->lost_ns;

    ch->lost_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (!v->q.up && unreachable_ns > dpn_timeout_ns() / 8)
        dpn_verbs_fail(&v->q, DP_ECOMM,
                       "the peer is gone: no queue pair reaches it (%s), nor does the control "
                       "connection: %s",
                       v->q.reason, ch->why);
    else if (has_unacked_closed(v) && ch->lost_ns > dpn_timeout_ns())
        dpn_verbs_fail(&v->q, DP_ETIMEDOUT,
                       "a queue pair failed (%s), and the control connection that both sides "
                       "need for that has been down for %lld s (DUALPIPE_NET_TIMEOUT): %s",
                       v->q.reason, (long long)dpn_options.timeout_s, ch->why);
}

/* ---- reconnecting ---------------------------------------------------------------------------- */

static void use_wire(struct dpn_verbs *v, struct dp_wire *wire)
{
    dp_wire_close(v->q.comm->wire);
    v->q.comm->wire = wire;
    dp_wire_tcp_set_timeout(wire, dpn_timeout_ns() / 2);
    v->control.channel.is_resumed = v->control.is_receiving = false;
    resume(v);
}

static void begin_attempt(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;

    if (now_ns < ch->attempt_ns)
        return;
    ch->attempt_ns = now_ns + dpn_backoff_ns(ch->attempts++, FIRST_ATTEMPT_NS, LAST_ATTEMPT_NS);
    ch->attempt_until_ns = now_ns + ATTEMPT_NS;
    if (dp_wire_tcp.connect(&ch->acceptor, v->q.is_sender ? ch->label : 0, &ch->attempt))
        ch->attempt = NULL;
}

static void end_attempt(struct dpn_channel *ch)
{
    dp_wire_close(ch->attempt);
    ch->attempt = NULL;
}

/* For the sender this connection is the new wire; for the receiver it only shows that the peer is
 * alive. */
static void take_answer(struct dpn_verbs *v)
{
    struct dp_wire *attempt = v->control.channel.attempt;

    v->control.channel.refusals = 0;
    v->control.channel.is_final = false;
    if (!v->q.is_sender) {
        end_attempt(&v->control.channel);
        return;
    }
    v->control.channel.attempt = NULL;
    use_wire(v, attempt);
}

static void continue_attempt(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;

    if (!ch->attempt)
        begin_attempt(v, now_ns);
    if (!ch->attempt)
        return;
    struct dp_wire *attempt = ch->attempt;
    attempt->ops->progress(attempt);
    if (attempt->connected && !attempt->error) {
        take_answer(v);
    } else if (attempt->error || attempt->is_refused || now_ns > ch->attempt_until_ns) {
        ch->refusals = attempt->is_refused ? ch->refusals + 1 : 0;
        ch->is_final = ch->refusals >= REFUSALS;
        end_attempt(ch);
    }
}

static void mark_lost(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;
    const struct dp_wire *wire = v->q.comm->wire;

    ch->is_resumed = false;
    if (ch->is_lost)
        return;
    ch->is_lost = true;
    ch->lost_ns = ch->heartbeat_ns = ch->attempt_ns = 0;
    ch->attempts = ch->refusals = 0;
    ch->since_ns = now_ns;
    snprintf(ch->why, sizeof(ch->why), "%s", wire->error ? wire->why : "the peer has lost it");
    dp_log(DP_LOG_WARN,
           "the control connection to the peer was lost: %s; messages continue, and it is "
           "made again",
           ch->why);
}

static void note_resumed(struct dpn_verbs *v)
{
    struct dpn_channel *ch = &v->control.channel;

    ch->is_resumed = true;
    if (ch->is_lost)
        dp_log(DP_LOG_INFO, "the control connection to the peer is back after %.1f s",
               (double)(dp_now_ns() - ch->since_ns) / DP_NS_PER_S);
    ch->is_lost = false;
    end_attempt(ch);
}

void dpn_control_take_resume(struct dpn_verbs *v, const struct dpn_resume *resume)
{
    if (v->control.channel.is_resumed) {
        dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer resumes what was not interrupted");
        return;
    }
    if (v->q.is_sender)
        send_resume(v);
    confirm(v, resume->received);
    for (struct dpn_control_message *message = v->control.unacked; message && !v->q.error;
         message = message->next)
        post(v, message);
    if (!v->q.error)
        note_resumed(v);
}

/* ---- heartbeat ----------------------------------------------------------------------------- */

static void send_heartbeats(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;

    if (ch->heartbeat_ns && now_ns - ch->heartbeat_ns < dpn_timeout_ns() / 8)
        return;
    ch->heartbeat_ns = now_ns;
    for (int i = 0; i < v->q.qp_count && !v->q.error; i++)
        if (v->q.up >> i & 1)
            dpn_qp_heartbeat(&v->q, &v->q.qps[i]);
}

/* The peer closed the wire in an orderly way. On the receiver a wire that is not resumed yet may be
 * an attempt that the sender has given up; a peer that was connected to closes only if it does not
 * know the connection. */
static bool is_orderly_close(const struct dpn_verbs *v, const struct dp_wire *wire)
{
    return wire->is_closed && (v->control.channel.is_resumed || v->q.is_sender);
}

/* ---- polling --------------------------------------------------------------------------------- */

static void poll_lost(struct dpn_verbs *v, int64_t now_ns)
{
    check_timeouts(v, now_ns);
    if (!v->q.error)
        send_heartbeats(v, now_ns);
    if (!v->q.error && v->control.channel.peer_has_acceptor && v->q.comm->wire->error)
        continue_attempt(v, now_ns);
}

void dpn_channel_poll(struct dpn_verbs *v, int64_t now_ns)
{
    struct dp_wire *accepted = atomic_exchange(&v->control.channel.accepted, NULL);

    if (accepted) {
        mark_lost(v, now_ns); /* the sender noticed the loss first */
        use_wire(v, accepted);
    }
    const struct dp_wire *wire = v->q.comm->wire;
    const bool may_return = v->control.channel.label && v->step == DPN_STEP_READY;
    if (wire->error && (!may_return || is_orderly_close(v, wire) || v->control.channel.is_final))
        end_without_peer(v, now_ns);
    else if (wire->error)
        mark_lost(v, now_ns);
    if (v->control.channel.is_lost && !v->q.error)
        poll_lost(v, now_ns);
}

void dpn_channel_close(struct dpn_verbs *v)
{
    end_attempt(&v->control.channel);
    dp_wire_close(atomic_exchange(&v->control.channel.accepted, NULL));
}

/* ---- acceptors ------------------------------------------------------------------------------- */

/* The listening sockets to which peers connect again when they have lost the control
 * wire of a connection: one for each interface, as long as connections may use it. A peer must know
 * the acceptor's cookie, and a random label names the connection.
 */

enum { ACCEPTORS = 8 };

struct acceptor {
    int users;
    char interface[DPN_ADDRESS_TEXT];
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct acceptor acceptors[ACCEPTORS];

void dpn_acceptors_lock(void)
{
    pthread_mutex_lock(&lock);
}

void dpn_acceptors_forget(void)
{
    for (int i = 0; i < ACCEPTORS; i++)
        acceptors[i].users = 0;
}

void dpn_acceptors_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static struct acceptor *find(const char *interface)
{
    struct acceptor *empty = NULL;

    for (int i = 0; i < ACCEPTORS; i++) {
        if (acceptors[i].users && !strcmp(acceptors[i].interface, interface))
            return &acceptors[i];
        if (!acceptors[i].users && !empty)
            empty = &acceptors[i];
    }
    return empty;
}

static int open_acceptor(struct acceptor *acceptor, const char *interface)
{
    const struct dp_wire_config config = {.interface = interface};

    dp_wire_tcp.unlisten(acceptor->listener); /* inherited through a fork */
    acceptor->listener = NULL;
    snprintf(acceptor->interface, sizeof(acceptor->interface), "%s", interface);
    int err = dp_wire_tcp.listen(&config, &acceptor->listener, &acceptor->address);
    if (!err)
        dp_wire_tcp_ask_for(&acceptor->address, 1); /* control messages are short */
    return err;
}

int dpn_acceptor_use(const char *interface, struct dp_wire_address *address, uint64_t *label)
{
    uint64_t number;
    int err = dp_random_bytes(&number, sizeof(number));

    if (err)
        return err;
    pthread_mutex_lock(&lock);
    struct acceptor *acceptor = find(interface);
    if (!acceptor)
        err = dp_fail_quietly(DP_EIO, "connections over more than %d interfaces", ACCEPTORS);
    else if (!acceptor->users)
        err = open_acceptor(acceptor, interface);
    if (!err) {
        acceptor->users++;
        *address = acceptor->address;
        *label = number | 1; /* 0 is none */
    }
    pthread_mutex_unlock(&lock);
    return err;
}

void dpn_acceptor_release(const char *interface)
{
    pthread_mutex_lock(&lock);
    struct acceptor *acceptor = find(interface);
    if (acceptor && acceptor->users && !--acceptor->users) {
        dp_wire_tcp.unlisten(acceptor->listener);
        acceptor->listener = NULL;
    }
    pthread_mutex_unlock(&lock);
}

int dpn_acceptor_accept(uint64_t *label, struct dp_wire **out)
{
    int err = DP_EAGAIN;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < ACCEPTORS && err; i++)
        if (acceptors[i].users)
            err = dp_wire_tcp.accept(acceptors[i].listener, label, out);
    pthread_mutex_unlock(&lock);
    return err;
}
