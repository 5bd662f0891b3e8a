/* SPDX-License-Identifier: Apache-2.0
 *
 * reconnect.c - the wire for control messages, when it is lost on the way: a reset, a timeout, a network
 * that is down for a while. Messages do not need it and go on; only a queue pair that fails meanwhile
 * has to wait for it.
 *
 *      sender                                        receiver
 *                                             <-     PLAN  address of its acceptor, a label
 *      (reset, or silent for long)                   (it may not have noticed)
 *      connects to the acceptor, with the label ->   accepts: verbs/acceptor.c
 *                                             <-     RESUME  numbers below were seen
 *      RESUME  numbers below were seen       ->
 *      the control messages after that       <->     the same
 *
 * Meanwhile each side writes nothing, zero bytes, over every queue pair that is up, now and then: a
 * peer that is gone does not acknowledge that. The receiver connects to the sender's acceptor, too,
 * only to see whether it is still there. The connection ends when
 *
 *      the peer closed the wire               at once: it closed the connection, or ended
 *      the peer's acceptor refuses            after some 2 s: its process ended without closing; its
 *                                             children have no acceptor (wire/sockets.h)
 *      there is no wire and no queue pair     after an eighth of DUALPIPE_NET_TIMEOUT
 *      control messages wait for the wire     after DUALPIPE_NET_TIMEOUT
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "wire/tcp.h"

#include <stdio.h>

static const int64_t FIRST_CALL_NS = 50 * DP_NS_PER_MS, LAST_CALL_NS = 5 * DP_NS_PER_S;
static const int64_t CALL_NS = 5 * DP_NS_PER_S; /* until somebody answers */
/* What was sent before the peer left may still be on its way out of the device. */
static const int64_t GRACE_NS = 100 * DP_NS_PER_MS;
enum { REFUSALS = 5 }; /* in a row: what is between may be in disorder for a moment */

static int64_t timeout_ns(void)
{
    return dpn_options.timeout_s * DP_NS_PER_S;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* It told us so, or cannot be asked whether it is there. */
static void take_leave(struct dpn_verbs *v, int64_t now_ns)
{
    const struct dp_wire *wire = v->comm->wire;

    if (!v->peer_gone_ns)
        v->peer_gone_ns = now_ns;
    if (now_ns - v->peer_gone_ns > GRACE_NS && (v->is_sender || !dpn_eager_goes_on(v)))
        dpn_verbs_fail(v, wire->error, "the peer is gone: %s%s", wire->why,
                       v->channel.is_final ? ", and nobody listens there any more" : "");
}

/* Only time counts in which somebody looked. */
static void look_at_clock(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *w = &v->channel;
    const int64_t step_ns = now_ns - v->looked_ns;
    const int64_t alone_ns = v->down_ns < w->lost_ns ? v->down_ns : w->lost_ns;

    w->lost_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (!v->up && alone_ns > timeout_ns() / 8)
        dpn_verbs_fail(v, DP_ECOMM,
                       "the peer is gone: no queue pair reaches it (%s), nor does the control "
                       "connection: %s",
                       v->reason, w->why);
    else if (dpn_control_has_unacked_fence(v) && w->lost_ns > timeout_ns())
        dpn_verbs_fail(v, DP_ETIMEDOUT,
                       "a queue pair failed (%s), and the control connection that both sides "
                       "need for that has not come back for %lld s (DUALPIPE_NET_TIMEOUT): %s",
                       v->reason, (long long)dpn_options.timeout_s, w->why);
}

/* ---- the way back ---------------------------------------------------------------------------- */

static void use(struct dpn_verbs *v, struct dp_wire *wire)
{
    dp_wire_close(v->comm->wire);
    v->comm->wire = wire;
    dp_wire_tcp_set_timeout(wire, timeout_ns() / 2);
    v->channel.is_resumed = v->is_receiving = false;
    dpn_control_resume(v);
}

static void begin_attempt(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *w = &v->channel;
    const int shift = w->attempts < 7 ? w->attempts : 7;
    const int64_t wait_ns = FIRST_CALL_NS << shift;

    if (now_ns < w->attempt_ns)
        return;
    w->attempts++;
    w->attempt_ns = now_ns + (wait_ns < LAST_CALL_NS ? wait_ns : LAST_CALL_NS);
    w->attempt_until_ns = now_ns + CALL_NS;
    if (dp_wire_tcp.connect(&w->acceptor, v->is_sender ? w->label : 0, &w->attempt))
        w->attempt = NULL;
}

static void end_attempt(struct dpn_channel *w)
{
    dp_wire_close(w->attempt);
    w->attempt = NULL;
}

/* The sender's call is the new wire. */
static void take_answer(struct dpn_verbs *v)
{
    struct dp_wire *call = v->channel.attempt;

    v->channel.refusals = 0;
    v->channel.is_final = false;
    if (!v->is_sender) {
        end_attempt(&v->channel);
        return;
    }
    v->channel.attempt = NULL;
    use(v, call);
}

static void continue_attempt(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *w = &v->channel;

    if (!w->attempt)
        begin_attempt(v, now_ns);
    if (!w->attempt)
        return;
    struct dp_wire *call = w->attempt;
    call->ops->progress(call);
    if (call->connected && !call->error) {
        take_answer(v);
    } else if (call->error || now_ns > w->attempt_until_ns) {
        w->refusals = call->is_refused ? w->refusals + 1 : 0;
        w->is_final = w->refusals >= REFUSALS;
        end_attempt(w);
    }
}

static void lose(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *w = &v->channel;
    const struct dp_wire *wire = v->comm->wire;

    w->is_resumed = false;
    if (w->is_lost)
        return;
    w->is_lost = true;
    w->lost_ns = w->heartbeat_ns = w->attempt_ns = 0;
    w->attempts = w->refusals = 0;
    w->since_ns = now_ns;
    snprintf(w->why, sizeof(w->why), "%s", wire->error ? wire->why : "the peer has lost it");
    dp_log(DP_LOG_WARN,
           "the control connection to the peer was lost: %s; messages go on, and it is "
           "made again",
           w->why);
}

void dpn_channel_resumed(struct dpn_verbs *v)
{
    struct dpn_channel *w = &v->channel;

    w->is_resumed = true;
    if (w->is_lost)
        dp_log(DP_LOG_INFO, "the control connection to the peer is back after %.1f s",
               (double)(dp_now_ns() - w->since_ns) / DP_NS_PER_S);
    w->is_lost = false;
    end_attempt(w);
}

/* ---- heartbeat ----------------------------------------------------------------------------- */

static void beat(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_channel *w = &v->channel;

    if (w->heartbeat_ns && now_ns - w->heartbeat_ns < timeout_ns() / 8)
        return;
    w->heartbeat_ns = now_ns;
    for (int i = 0; i < v->qp_count && !v->error; i++)
        if (v->up >> i & 1)
            dpn_qp_heartbeat(v, &v->qps[i]);
}

/* A caller may have hung up; who was called does only if it does not know of the connection. */
static bool is_farewell(const struct dpn_verbs *v, const struct dp_wire *wire)
{
    return wire->is_closed && (v->channel.is_resumed || v->is_sender);
}

/* ---- what time brings ------------------------------------------------------------------------ */

static void be_without(struct dpn_verbs *v, int64_t now_ns)
{
    look_at_clock(v, now_ns);
    if (!v->error)
        beat(v, now_ns);
    if (!v->error && v->channel.peer_has_acceptor && v->comm->wire->error)
        continue_attempt(v, now_ns);
}

void dpn_channel_poll(struct dpn_verbs *v, int64_t now_ns)
{
    struct dp_wire *caller = atomic_exchange(&v->channel.accepted, NULL);

    if (caller) {
        lose(v, now_ns); /* it knows better */
        use(v, caller);
    }
    const struct dp_wire *wire = v->comm->wire;
    const bool may_return = v->channel.label && v->step == DPN_STEP_READY;
    if (wire->error && (!may_return || is_farewell(v, wire) || v->channel.is_final))
        take_leave(v, now_ns);
    else if (wire->error)
        lose(v, now_ns);
    if (v->channel.is_lost && !v->error)
        be_without(v, now_ns);
}

void dpn_channel_close(struct dpn_verbs *v)
{
    end_attempt(&v->channel);
    dp_wire_close(atomic_exchange(&v->channel.accepted, NULL));
}
