/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c - progress of a connection, made by every test, send and receive: completions each
 * time; events, control messages and deadlines at intervals, without a system call in between.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"

static const int64_t REST_EVERY_NS = DP_NS_PER_MS, DEGRADED_EVERY_NS = 50 * DP_NS_PER_US;
enum { INLINE_POLLS = 16, IDLE_POLLS = 64, BUSY_POLLS = 1024 };

static void poll_rest(struct dpn_verbs *v, int64_t now_ns)
{
    for (int r = 0; r < v->queues.rail_count; r++)
        dpn_hca_read_events(v->queues.rails[r].port->hca, now_ns);
    dpn_control_poll(v);
    if (!v->error)
        dpn_channel_poll(v, now_ns);
    if (!v->error)
        dpn_qps_poll(v, now_ns);
    if (!v->error)
        dpn_loops_poll(v, now_ns);
    if (!v->error)
        dpn_stall_poll(v, now_ns);
    v->polled_ns = now_ns;
}

static void push(struct dpn_verbs *v)
{
    if (v->send.waiting)
        dpn_verbs_push(v);
    if (v->recv.cts_sent != v->recv.cts_made)
        dpn_cts_push(v);
}

/* Look for an inline message in memory without polling for completions each time; completions are
 * polled for at intervals. */
static bool find(struct dpn_verbs *v)
{
    if (v->recv.unpolled++ < INLINE_POLLS && dpn_eager_poll(v))
        return true;
    v->recv.unpolled = 0;
    return dpn_verbs_poll_queues(v);
}

static bool end_qps(struct dpn_verbs *v)
{
    bool have_ended = dpn_qps_end(&v->queues);

    for (int r = 0; r < v->queues.rail_count; r++)
        have_ended &= dpn_loop_end(v, &v->queues.rails[r]);
    return have_ended;
}

bool dpn_verbs_has_ended(struct dpn_verbs *v)
{
    if (!v->has_told)
        dpn_control_send_failed(v);
    v->has_told = true;
    return end_qps(v) || dp_now_ns() - v->failed_ns > dpn_options.timeout_s * DP_NS_PER_S;
}

void dpn_verbs_progress(struct dpn_verbs *v)
{
    const bool found = find(v);

    v->idle = found ? 0 : v->idle + 1;
    v->stall.has_moved |= found;
    dpn_cts_release_if_idle(v, found);
    const bool is_degraded =
        v->queues.is_degraded || v->recv.has_lost_loop || v->control.channel.is_lost;
    if (is_degraded || v->idle % IDLE_POLLS == IDLE_POLLS - 1 || ++v->polls % BUSY_POLLS == 0) {
        const int64_t now_ns = dp_now_ns();
        if (now_ns - v->polled_ns >= (is_degraded ? DEGRADED_EVERY_NS : REST_EVERY_NS))
            poll_rest(v, now_ns);
    }
    if (!v->error)
        push(v);
    if (v->error)
        dpn_verbs_has_ended(v);
}

void dpn_verbs_progress_all(struct dpn_verbs *v)
{
    v->stall.has_moved |= dpn_verbs_poll(v);
    if (!v->error)
        poll_rest(v, dp_now_ns());
    dpn_cts_release(v);
    if (!v->error)
        push(v);
    if (v->error)
        dpn_verbs_has_ended(v);
}
