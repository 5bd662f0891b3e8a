/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/stall.h"

#include "base/clock.h"
#include "nccl-plugin/verbs/comm.h"

#include <string.h>

enum { REPORTS = 4 };

static int64_t timeout_ns(void)
{
    return dpn_options.timeout_s * DP_NS_PER_S;
}

/* ---- open requests --------------------------------------------------------------------------- */

static bool is_open(const struct dpn_verbs *v)
{
    for (unsigned i = dpn_verbs_next_send(v, 0); i < DPN_SENDS; i = dpn_verbs_next_send(v, i + 1))
        if (v->send.sends[i].base.left)
            return true;
    for (uint32_t used = ~v->recv.free; used; used &= used - 1)
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
    dpn_verbs_report(v, &body.stalled.has);
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

    if (was_acked && s->stalled_ns - s->reported_ns >= timeout_ns() / REPORTS)
        send_report(v);
}

/* ---- polling: only time with polls counts ---------------------------------------------------- */

static void reset(struct dpn_stall *s)
{
    s->moves += s->has_moved;
    s->has_moved = false;
    s->stalled_ns = s->reported_ns = 0;
}

void dpn_stall_poll(struct dpn_verbs *v, int64_t now_ns)
{
    struct dpn_stall *s = &v->stall;
    const int64_t step_ns = now_ns - v->polled_ns;

    if (s->has_moved || v->step != DPN_STEP_READY || !is_open(v)) {
        reset(s);
        return;
    }
    s->stalled_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (!v->queues.is_sender && v->recv.cts_sent == v->recv.cts_made)
        report_to_sender(v);
    else if (s->stalled_ns > timeout_ns())
        dpn_verbs_fail(v, DP_ETIMEDOUT, "%s for %lld s (DUALPIPE_NET_TIMEOUT)",
                       v->queues.is_sender ? "no part of any send has completed"
                                           : "clear-to-send entries could not be written",
                       (long long)dpn_options.timeout_s);
}

/* ---- the sender ------------------------------------------------------------------------------ */

void dpn_stall_take(struct dpn_verbs *v, const struct dpn_stalled *report)
{
    struct dpn_stall *s = &v->stall;

    dpn_verbs_read_cts(v);
    if (v->error)
        return;
    const bool lacks_cts = (int32_t)(report->cts_made - v->send.cts_read) > 0;
    const bool has_lost = dpn_verbs_has_lost(v, &report->has);
    const bool is_same =
        s->reports && s->peer_moves == report->moves && s->cts_read == v->send.cts_read;

    s->peer_moves = report->moves;
    s->cts_read = v->send.cts_read;
    s->reports = !lacks_cts && !has_lost ? 0 : is_same ? s->reports + 1 : 1;
    if (s->reports < REPORTS)
        return;
    dpn_verbs_fail(
        v, DP_ETIMEDOUT,
        "nothing has moved for %lld s (DUALPIPE_NET_TIMEOUT), although %s: a write that the "
        "device has acknowledged did not arrive",
        (long long)dpn_options.timeout_s,
        lacks_cts ? "the receiver has cleared more to send than has arrived here"
                  : "the receiver waits for a message that was sent");
}
