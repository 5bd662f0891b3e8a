/* SPDX-License-Identifier: Apache-2.0
 *
 * reconnect.c - replaces the wire for control messages when the network loses it: a reset, a
 * timeout, a network that is down for a while. Data does not need it and continues; only a queue
 * pair that fails meanwhile has to wait for it.
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
#include "base/clock.h"
#include "base/fail.h"
#include "base/hmac.h"
#include "nccl-plugin/verbs/comm.h"
#include "wire/tcp.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

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
    const struct dp_wire *wire = v->comm->wire;

    if (!v->peer_gone_ns)
        v->peer_gone_ns = now_ns;
    if (now_ns - v->peer_gone_ns > GRACE_NS && (v->queues.is_sender || !dpn_eager_has_unclaimed(v)))
        dpn_verbs_fail(v, wire->error, "the peer is gone: %s%s", wire->why,
                       v->control.channel.is_final ? ", and its acceptor no longer listens" : "");
}

/* Only time with polls counts. */
static void check_timeouts(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;
    const int64_t step_ns = now_ns - v->polled_ns;
    const int64_t unreachable_ns =
        v->queues.down_ns < ch->lost_ns ? v->queues.down_ns : ch->lost_ns;

    ch->lost_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (!v->queues.up && unreachable_ns > dpn_timeout_ns() / 8)
        dpn_verbs_fail(v, DP_ECOMM,
                       "the peer is gone: no queue pair reaches it (%s), nor does the control "
                       "connection: %s",
                       v->queues.reason, ch->why);
    else if (dpn_control_has_unacked_closed(v) && ch->lost_ns > dpn_timeout_ns())
        dpn_verbs_fail(v, DP_ETIMEDOUT,
                       "a queue pair failed (%s), and the control connection that both sides "
                       "need for that has been down for %lld s (DUALPIPE_NET_TIMEOUT): %s",
                       v->queues.reason, (long long)dpn_options.timeout_s, ch->why);
}

/* ---- reconnecting ---------------------------------------------------------------------------- */

static void use_wire(struct dpn_verbs *v, struct dp_wire *wire)
{
    dp_wire_close(v->comm->wire);
    v->comm->wire = wire;
    dp_wire_tcp_set_timeout(wire, dpn_timeout_ns() / 2);
    v->control.channel.is_resumed = v->control.is_receiving = false;
    dpn_control_resume(v);
}

static void begin_attempt(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;

    if (now_ns < ch->attempt_ns)
        return;
    ch->attempt_ns = now_ns + dpn_backoff_ns(ch->attempts++, FIRST_ATTEMPT_NS, LAST_ATTEMPT_NS);
    ch->attempt_until_ns = now_ns + ATTEMPT_NS;
    if (dp_wire_tcp.connect(&ch->acceptor, v->queues.is_sender ? ch->label : 0, &ch->attempt))
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
    if (!v->queues.is_sender) {
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
    const struct dp_wire *wire = v->comm->wire;

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

void dpn_channel_resumed(struct dpn_verbs *v)
{
    struct dpn_channel *ch = &v->control.channel;

    ch->is_resumed = true;
    if (ch->is_lost)
        dp_log(DP_LOG_INFO, "the control connection to the peer is back after %.1f s",
               (double)(dp_now_ns() - ch->since_ns) / DP_NS_PER_S);
    ch->is_lost = false;
    end_attempt(ch);
}

/* ---- heartbeat ----------------------------------------------------------------------------- */

static void send_heartbeats(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *ch = &v->control.channel;

    if (ch->heartbeat_ns && now_ns - ch->heartbeat_ns < dpn_timeout_ns() / 8)
        return;
    ch->heartbeat_ns = now_ns;
    for (int i = 0; i < v->queues.qp_count && !v->error; i++)
        if (v->queues.up >> i & 1)
            dpn_qp_heartbeat(v, &v->queues.qps[i]);
}

/* The peer closed the wire in an orderly way. On the receiver a wire that is not resumed yet may be
 * an attempt that the sender has given up; a peer that was connected to closes only if it does not
 * know the connection. */
static bool is_orderly_close(const struct dpn_verbs *v, const struct dp_wire *wire)
{
    return wire->is_closed && (v->control.channel.is_resumed || v->queues.is_sender);
}

/* ---- polling --------------------------------------------------------------------------------- */

static void poll_lost(struct dpn_verbs *v, int64_t now_ns)
{
    check_timeouts(v, now_ns);
    if (!v->error)
        send_heartbeats(v, now_ns);
    if (!v->error && v->control.channel.peer_has_acceptor && v->comm->wire->error)
        continue_attempt(v, now_ns);
}

void dpn_channel_poll(struct dpn_verbs *v, int64_t now_ns)
{
    struct dp_wire *accepted = atomic_exchange(&v->control.channel.accepted, NULL);

    if (accepted) {
        mark_lost(v, now_ns); /* the sender noticed the loss first */
        use_wire(v, accepted);
    }
    const struct dp_wire *wire = v->comm->wire;
    const bool may_return = v->control.channel.label && v->step == DPN_STEP_READY;
    if (wire->error && (!may_return || is_orderly_close(v, wire) || v->control.channel.is_final))
        end_without_peer(v, now_ns);
    else if (wire->error)
        mark_lost(v, now_ns);
    if (v->control.channel.is_lost && !v->error)
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
