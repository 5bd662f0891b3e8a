/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_return.c - the wire for words, when it is lost on the way: a reset, a timeout, a network that is
 * away. Messages do not need it, so they go on; only a lane that fails meanwhile has to wait.
 *
 *      sender                                        receiver
 *                                             <-     PLAN  where the door of the process is, a label
 *      (reset, or silent for long)                   (it may not know)
 *      calls at the door, with the label      ->     lets the caller in: verbs_door.c
 *      RESUME  so many words heard           <->     RESUME  so many words heard
 *      the words that were not                <->    the same
 *
 * Meanwhile each side writes nothing, by every lane that is up, now and then: a peer that is gone does
 * not answer that. The receiver calls at the sender's door, too, only to see that somebody is there.
 * What ends the connection:
 *
 *      the peer has closed the wire           at once: it has closed the connection, or ended
 *      nobody is at the peer's door           in some 2 s: its process has ended, closing nothing; its
 *                                             children have no door (wire/sockets.h)
 *      neither the wire nor a lane            an eighth of DUALPIPE_NET_TIMEOUT
 *      no wire, and words that have to go     DUALPIPE_NET_TIMEOUT
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"
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

/* ---- the end ----------------------------------------------------------------------------------- */

/* It told us so, or cannot be asked whether it is there. */
static void take_leave(struct dpn_verbs *v, int64_t now_ns)
{
    const struct dp_wire *wire = v->comm->wire;

    if (!v->peer_gone_ns)
        v->peer_gone_ns = now_ns;
    if (now_ns - v->peer_gone_ns > GRACE_NS && (v->is_sender || !dpn_eager_goes_on(v)))
        dpn_verbs_fail(v, wire->error, "the peer is gone: %s%s", wire->why,
                       v->words.is_over ? ", and nobody listens there any more" : "");
}

/* Only time counts in which somebody looked. */
static void look_at_clock(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_words *w = &v->words;
    const int64_t step_ns = now_ns - v->looked_ns;
    const int64_t alone_ns = v->down_ns < w->lost_ns ? v->down_ns : w->lost_ns;

    w->lost_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (!v->up && alone_ns > timeout_ns() / 8)
        dpn_verbs_fail(v, DP_ECOMM, "the peer is gone: no lane reaches it (%s), nor does the control "
                       "connection: %s", v->reason, w->why);
    else if (dpn_verbs_has_news(v) && w->lost_ns > timeout_ns())
        dpn_verbs_fail(v, DP_ETIMEDOUT, "a lane failed (%s), and the control connection that both sides "
                       "need for that has not come back for %lld s (DUALPIPE_NET_TIMEOUT): %s",
                       v->reason, (long long)dpn_options.timeout_s, w->why);
}

/* ---- the way back ------------------------------------------------------------------------------ */

static void use(struct dpn_verbs *v, struct dp_wire *wire)
{
    dp_wire_close(v->comm->wire);
    v->comm->wire = wire;
    dp_wire_tcp_set_patience(wire, timeout_ns() / 2);
    v->words.is_greeted = v->is_listening = false;
    dpn_verbs_greet(v);
}

static void begin_call(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_words *w = &v->words;
    const int shift = w->calls < 7 ? w->calls : 7;
    const int64_t wait_ns = FIRST_CALL_NS << shift;

    if (now_ns < w->call_ns)
        return;
    w->calls++;
    w->call_ns = now_ns + (wait_ns < LAST_CALL_NS ? wait_ns : LAST_CALL_NS);
    w->call_until_ns = now_ns + CALL_NS;
    if (dp_wire_tcp.connect(&w->door, v->is_sender ? w->label : 0, &w->call))
        w->call = NULL;
}

static void end_call(struct dpn_words *w)
{
    dp_wire_close(w->call);
    w->call = NULL;
}

/* The sender's call is the new wire. */
static void take_answer(struct dpn_verbs *v)
{
    struct dp_wire *call = v->words.call;

    v->words.refusals = 0;
    v->words.is_over = false;
    if (!v->is_sender) {
        end_call(&v->words);
        return;
    }
    v->words.call = NULL;
    use(v, call);
}

static void go_on_calling(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_words *w = &v->words;

    if (!w->call)
        begin_call(v, now_ns);
    if (!w->call)
        return;
    struct dp_wire *call = w->call;
    call->ops->progress(call);
    if (call->connected && !call->error) {
        take_answer(v);
    } else if (call->error || now_ns > w->call_until_ns) {
        w->refusals = call->is_refused ? w->refusals + 1 : 0;
        w->is_over = w->refusals >= REFUSALS;
        end_call(w);
    }
}

static void lose(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_words *w = &v->words;
    const struct dp_wire *wire = v->comm->wire;

    w->is_greeted = false;
    if (w->is_lost)
        return;
    w->is_lost = true;
    w->lost_ns = w->beat_ns = w->call_ns = 0;
    w->calls = w->refusals = 0;
    w->since_ns = now_ns;
    snprintf(w->why, sizeof(w->why), "%s", wire->error ? wire->why : "the peer has lost it");
    dp_log(DP_LOG_WARN, "the control connection to the peer was lost: %s; messages go on, and it is "
           "made again", w->why);
}

void dpn_words_are_back(struct dpn_verbs *v)
{
    struct dpn_words *w = &v->words;

    w->is_greeted = true;
    if (w->is_lost)
        dp_log(DP_LOG_INFO, "the control connection to the peer is back after %.1f s",
               (double)(dp_now_ns() - w->since_ns) / DP_NS_PER_S);
    w->is_lost = false;
    end_call(w);
}

/* ---- signs of life ----------------------------------------------------------------------------- */

static void beat(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_words *w = &v->words;

    if (w->beat_ns && now_ns - w->beat_ns < timeout_ns() / 8)
        return;
    w->beat_ns = now_ns;
    for (int i = 0; i < v->lane_count && !v->error; i++)
        if (v->up >> i & 1)
            dpn_lane_beat(v, &v->lanes[i]);
}

/* A caller may have hung up; who was called does only if it does not know of the connection. */
static bool is_farewell(const struct dpn_verbs *v, const struct dp_wire *wire)
{
    return wire->is_closed && (v->words.is_greeted || v->is_sender);
}

/* ---- what time brings -------------------------------------------------------------------------- */

static void be_without(struct dpn_verbs *v, int64_t now_ns)
{
    look_at_clock(v, now_ns);
    if (!v->error)
        beat(v, now_ns);
    if (!v->error && v->words.peer_has_door && v->comm->wire->error)
        go_on_calling(v, now_ns);
}

void dpn_words_tend(struct dpn_verbs *v, int64_t now_ns)
{
    struct dp_wire *caller = atomic_exchange(&v->words.caller, NULL);

    if (caller) {
        lose(v, now_ns); /* it knows better */
        use(v, caller);
    }
    const struct dp_wire *wire = v->comm->wire;
    const bool may_return = v->words.label && v->step == DPN_STEP_READY;
    if (wire->error && (!may_return || is_farewell(v, wire) || v->words.is_over))
        take_leave(v, now_ns);
    else if (wire->error)
        lose(v, now_ns);
    if (v->words.is_lost && !v->error)
        be_without(v, now_ns);
}

void dpn_words_end(struct dpn_verbs *v)
{
    end_call(&v->words);
    dp_wire_close(atomic_exchange(&v->words.caller, NULL));
}
