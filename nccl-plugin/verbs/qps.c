/* SPDX-License-Identifier: Apache-2.0
 *
 * qps.c - the queue pairs of a connection: completions, each for the file that posted the work, and
 * what both sides tell each other about them.
 *
 *      sender                                     receiver
 *      DOWN                                       DOWN
 *      MAKING
 *      OPENING    -- OPEN -->                     MAKING    connected; receives are posted
 *                 <-- OPENED --                   OPENING
 *      CONNECTING
 *      PROBING    -- an immediate over the queue pair ->  UP
 *      UP         <-- acknowledged
 *
 *      the side that sees an error                the peer
 *      STOPPING
 *      DRAINING   in the error state
 *      DESTROYING
 *      DOWN       -- CLOSED -->                   STOPPING ...
 *                 <-- CLOSED --                   DOWN
 *
 * The first connection and every attempt to reopen a queue pair are the same. MAKING, CONNECTING,
 * STOPPING and DESTROYING are calls to the device that may block: a worker makes them, and
 * dpn_qps_poll goes on when they have returned.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/load.h"

#include <stdio.h>
#include <string.h>

/* ---- completions ----------------------------------------------------------------------------- */

enum { BATCH = 16 };

static const char *hint_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return ": the peer's port does not answer; look at the link, the switch, and whether the "
               "GIDs reach each other (ping); NCCL_IB_TIMEOUT";
    case IBV_WC_WR_FLUSH_ERR:
        return ": the queue pair was closed by the device, or by the peer";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
        return ": memory was deregistered or freed too early, or ACS or the IOMMU is in the way of "
               "peer-to-peer traffic";
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_GENERAL_ERR:
        return ": the port is down, or the device has failed; look at the kernel's log";
    default:
        return "";
    }
}

static void take_failure(struct dpn_verbs *v, struct dpn_qp *qp, enum dpn_work_kind kind,
                         const struct ibv_wc *wc)
{
    static const char *const names[] = {"send", "connecting", "clear-to-send", "receive", "flush",
                                        "copy", "heartbeat", "send"};
    char status[96];

    /* What fails then fails for that, and not for a link. */
    if (dpn_control_tells_the_end(v))
        return;
    snprintf(status, sizeof(status), "%s (%d, vendor 0x%x)", dpn_ibv.wc_status_str(wc->status),
             wc->status, wc->vendor_err);
    dpn_qp_fail(&v->q, qp, names[kind], status, hint_of(wc->status));
}

static void take_recv(struct dpn_verbs *v, struct dpn_qp *qp, unsigned index,
                      const struct ibv_wc *wc)
{
    const uint32_t imm = be32toh(wc->imm_data);

    if (imm == DPN_GENERATIONS) {
        dpn_qp_is_up(&v->q, qp);
    } else {
        qp->failures = 0; /* the next failure is logged as a warning again */
        if ((imm & DPN_EAGER_IMM) == DPN_EAGER_IMM)
            dpn_eager_take(&v->recv, (uint16_t)(imm >> 16), wc->byte_len);
        else
            dpn_verbs_take_imm(&v->recv, index, imm, wc->byte_len);
    }
    qp->recvs_owed++;
    if (qp->recvs_owed >= BATCH && dpn_qp_is_connected(qp) && !v->q.error &&
        dpn_qp_post_recvs(&v->q, qp, qp->recvs_owed))
        dpn_qp_fail(&v->q, qp, "receive", dp_last_error(), "");
}

static void take_success(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_work work,
                         const struct ibv_wc *wc)
{
    switch (work.kind) {
    case DPN_WORK_DATA:
        dpn_verbs_sent(&v->send, work);
        break;
    case DPN_WORK_PROBE:
        if (qp->state == DPN_QP_PROBING)
            dpn_qp_is_up(&v->q, qp);
        break;
    case DPN_WORK_RECV:
        take_recv(v, qp, work.qp, wc);
        break;
    case DPN_WORK_CTS:
        dpn_cts_write_done(&v->recv, qp, work);
        break;
    case DPN_WORK_FLUSH:
    case DPN_WORK_COPY:
    case DPN_WORK_HEARTBEAT:
    case DPN_WORK_UNSIGNALED:
        break;
    }
}

static void count(struct dpn_qp *qp, struct dpn_work work)
{
    qp->completed++;
    if (work.kind == DPN_WORK_RECV) {
        qp->recvs_out--;
    } else if (work.kind != DPN_WORK_UNSIGNALED) {
        qp->sends_out--;
        qp->requests_out -= work.requests;
    }
}

/* Completions of an earlier epoch are ignored. */
static void handle(struct dpn_verbs *v, const struct ibv_wc *wc)
{
    const struct dpn_work work = dpn_work_unpack(wc->wr_id);

    if (work.kind == DPN_WORK_FLUSH || work.kind == DPN_WORK_COPY) {
        if (dpn_loop_take(&v->recv, work, wc) && work.kind == DPN_WORK_COPY)
            dpn_eager_copied(&v->recv, &v->recv.recvs[work.slot], work.stripe, work.requests);
        return;
    }
    struct dpn_qp *qp = &v->q.qps[work.qp];
    if (qp->epoch != work.epoch || !qp->ibv)
        return;
    count(qp, work);
    if (wc->status)
        take_failure(v, qp, work.kind, wc);
    else
        take_success(v, qp, work, wc);
}

bool dpn_verbs_poll_queues(struct dpn_verbs *v)
{
    struct ibv_wc wcs[BATCH];
    bool found = false;

    for (int r = 0; r < v->q.rail_count; r++) {
        int n = BATCH;
        while (n == BATCH && !v->q.error) {
            n = ibv_poll_cq(v->q.rails[r].cq, BATCH, wcs);
            for (int i = 0; i < n && !v->q.error; i++)
                handle(v, &wcs[i]);
            found |= n > 0;
        }
        if (n < 0)
            dpn_verbs_fail(&v->q, DP_EIO, "%s: the completion queue cannot be read",
                           v->q.rails[r].port->name);
    }
    return found;
}

bool dpn_verbs_poll(struct dpn_verbs *v)
{
    const bool found = !v->q.is_sender && dpn_eager_poll(&v->recv);

    return dpn_verbs_poll_queues(v) || found;
}

static const int64_t DRAIN_NS = 5 * DP_NS_PER_S;
enum { DRAIN_POLLS = 1000 }; /* the process may have been stopped for all of DRAIN_NS */
static const int64_t FIRST_RETRY_NS = 100 * DP_NS_PER_MS, LAST_RETRY_NS = 5 * DP_NS_PER_S;

/* Retry with exponential backoff. */
static void schedule_retry(struct dpn_qp *qp)
{
    qp->retry_ns = dp_now_ns() + dpn_backoff_ns(qp->failures > 0 ? qp->failures - 1 : 0,
                                                FIRST_RETRY_NS, LAST_RETRY_NS);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* There is no queue pair; the sender tries again. */
static void abandon(struct dpn_verbs *v, struct dpn_qp *qp, const char *reason)
{
    dpn_qp_set_state(&v->q, qp, DPN_QP_DOWN);
    qp->is_closed_here = false;
    if (!qp->failures++)
        dp_log(DP_LOG_WARN, "%s -> %s: cannot connect: %s", dpn_qp_port(&v->q, qp)->name,
               v->q.rails[qp->rail].peer, reason);
    if (!v->q.is_sender)
        return;
    snprintf(v->q.reason, sizeof(v->q.reason), "%s", reason);
    schedule_retry(qp);
}

static void send_open(struct dpn_verbs *v, struct dpn_qp *qp)
{
    union dpn_control_body body = {.open = {.index = (uint8_t)dpn_qp_index(&v->q, qp)}};

    if (qp->job.err) {
        abandon(v, qp, qp->job.why);
        return;
    }
    body.open.epoch = qp->epoch;
    body.open.qp = qp->job.ours;
    body.open.gids = qp->job.gids;
    dpn_qp_set_state(&v->q, qp, DPN_QP_OPENING);
    dpn_control_send(v, DPN_OPEN, &body);
}

void dpn_qp_take_open(struct dpn_verbs *v, const struct dpn_open_qp *open)
{
    struct dpn_qp *qp = &v->q.qps[open->index];

    if (qp->state != DPN_QP_DOWN) {
        dpn_verbs_fail(&v->q, DP_EMISMATCH, "the peer opens queue pair %u, which is in use",
                       open->index);
        return;
    }
    dpn_qp_answer(&v->q, qp, open);
}

static void send_opened(struct dpn_verbs *v, struct dpn_qp *qp)
{
    union dpn_control_body body = {.opened = {.index = (uint8_t)dpn_qp_index(&v->q, qp)}};

    body.opened.epoch = qp->epoch;
    body.opened.is_open = !qp->job.err;
    if (body.opened.is_open) {
        body.opened.qp = qp->job.ours;
        body.opened.sender = qp->peer_gid;
        body.opened.receiver = qp->gid;
        dpn_qp_set_state(&v->q, qp, DPN_QP_OPENING);
    } else {
        snprintf(body.opened.reason, sizeof(body.opened.reason), "%.*s", DPN_CONTROL_REASON - 1,
                 qp->job.why);
        abandon(v, qp, qp->job.why);
    }
    dpn_control_send(v, DPN_OPENED, &body);
}

void dpn_qp_take_opened(struct dpn_verbs *v, const struct dpn_opened_qp *opened)
{
    struct dpn_qp *qp = &v->q.qps[opened->index];

    if (qp->state != DPN_QP_OPENING || qp->epoch != opened->epoch)
        return;
    if (!opened->is_open) {
        snprintf(qp->job.why, sizeof(qp->job.why), "%s", opened->reason);
        dpn_qp_destroy(&v->q, qp, DPN_QP_ABANDONING);
        return;
    }
    dpn_qp_connect(&v->q, qp, opened);
}

static void send_probe(struct dpn_verbs *v, struct dpn_qp *qp)
{
    dpn_qp_set_state(&v->q, qp, DPN_QP_OPENING);
    dpn_inline_prepare(&v->q, qp);
    if (qp->is_given_up)
        dpn_qp_fail(&v->q, qp, "the peer closed the queue pair", "see its log", "");
    else if (qp->job.err)
        dpn_qp_fail(&v->q, qp, "connecting", qp->job.why, "");
    else if (dpn_qp_probe(&v->q, qp))
        dpn_qp_fail(&v->q, qp, "connecting", dp_last_error(), "");
    else
        dpn_qp_set_state(&v->q, qp, DPN_QP_PROBING);
}

/* ---- closing --------------------------------------------------------------------------------- */

static void send_closed(struct dpn_verbs *v, struct dpn_qp *qp)
{
    const uint8_t index = (uint8_t)dpn_qp_index(&v->q, qp);
    union dpn_control_body body;

    qp->is_closed_here = true;
    memset(&body, 0, sizeof(body));
    if (v->q.is_sender) {
        body.closed_sender = (struct dpn_closed_sender){index, 0, qp->epoch, v->send.cts_read};
        dpn_control_send(v, DPN_CLOSED_SENDER, &body);
    } else {
        body.closed_receiver.index = index;
        body.closed_receiver.epoch = qp->epoch;
        dpn_verbs_report(&v->recv, &body.closed_receiver);
        dpn_control_send(v, DPN_CLOSED_RECEIVER, &body);
    }
}

/* Both queue pairs are destroyed: nothing of this epoch can arrive any more. */
static void resend_if_closed(struct dpn_verbs *v, struct dpn_qp *qp)
{
    if (!qp->is_closed_here || !qp->is_closed_there || !v->q.is_sender)
        return;
    qp->is_closed_there = false;
    dpn_verbs_resend(&v->send, dpn_qp_index(&v->q, qp), &v->send.reports[dpn_qp_index(&v->q, qp)]);
    schedule_retry(qp);
}

void dpn_qp_take_closed(struct dpn_verbs *v, unsigned index, unsigned epoch)
{
    struct dpn_qp *qp = &v->q.qps[index];

    if (qp->epoch != epoch)
        return;
    qp->is_closed_there = true;
    dpn_qp_fail(&v->q, qp, "the peer closed the queue pair", "see its log", "");
    if (qp->state == DPN_QP_DOWN && !qp->is_closed_here && !v->q.error)
        send_closed(v, qp);
    resend_if_closed(v, qp);
}

static bool is_drained(const struct dpn_verbs *v, const struct dpn_qp *qp)
{
    return v->q.is_sender ? !qp->sends_out : !qp->recvs_out;
}

/* If the peer were told that the queue pair is closed, the rest would be sent over others, while a
 * late write or read of this one could still access memory that has been reused. */
static void fail_undestroyed(struct dpn_verbs *v, const struct dpn_qp *qp, int error)
{
    dpn_verbs_fail(
        &v->q, DP_EIO,
        "%s: queue pair 0x%x, which had failed, could not be destroyed (%s), so it may still "
        "write or read; it had failed because: %s",
        dpn_qp_port(&v->q, qp)->name, qp->ibv->qp_num, strerror(error), v->q.reason);
}

/* Work that a failing device does not flush in time counts as not done. It may be done twice, with
 * the same bytes. */
static void continue_draining(struct dpn_verbs *v, struct dpn_qp *qp, int64_t now_ns)
{
    const bool may_wait =
        now_ns - qp->since_ns < DRAIN_NS && !atomic_load(&dpn_qp_port(&v->q, qp)->hca->is_dead);

    if (!is_drained(v, qp) && (may_wait || qp->drain_polls++ < DRAIN_POLLS))
        return;
    dpn_verbs_poll(v);
    if (!v->q.error)
        dpn_qp_destroy(&v->q, qp, DPN_QP_DESTROYING);
}

static void finish_closing(struct dpn_verbs *v, struct dpn_qp *qp)
{
    if (qp->job.err && !atomic_load(&dpn_qp_port(&v->q, qp)->hca->is_dead)) {
        fail_undestroyed(v, qp, qp->job.err);
        return;
    }
    qp->ibv = NULL;
    dpn_qp_set_state(&v->q, qp, DPN_QP_DOWN);
    send_closed(v, qp);
    resend_if_closed(v, qp);
}

/* Nothing was sent over it. */
static void finish_abandoning(struct dpn_verbs *v, struct dpn_qp *qp)
{
    qp->ibv = NULL;
    abandon(v, qp, qp->job.why);
}

/* ---- polling --------------------------------------------------------------------------------- */

static bool has_other_rail(const struct dpn_verbs *v, const struct dpn_qp *qp)
{
    for (int i = 0; i < v->q.qp_count; i++)
        if (v->q.up >> i & 1 && v->q.qps[i].rail != qp->rail &&
            !dpn_port_is_down(dpn_qp_port(&v->q, &v->q.qps[i])))
            return true;
    return false;
}

/* Without another rail it is better to wait: a link that is down for a moment costs only some
 * retransmitted packets. */
static void check_port(struct dpn_verbs *v, struct dpn_qp *qp)
{
    const struct dpn_port *port = dpn_qp_port(&v->q, qp);

    if (!dpn_port_is_down(port) || !dpn_verbs_state.options.handles_events)
        return;
    if (atomic_load(&port->hca->is_dead))
        dpn_qp_fail(&v->q, qp, "device", "it has failed", ": look at the kernel's log");
    else if (has_other_rail(v, qp))
        dpn_qp_fail(&v->q, qp, "port", "it is down", ": look at the cable and the switch");
}

static void check_progress(struct dpn_verbs *v, struct dpn_qp *qp, int64_t now_ns)
{
    if (qp->completed != qp->seen || !qp->sends_out) {
        qp->seen = qp->completed;
        qp->since_ns = now_ns;
    } else if (now_ns - qp->since_ns > dpn_timeout_ns() / 2) {
        dpn_qp_fail(&v->q, qp, "send", "no completion in half of DUALPIPE_NET_TIMEOUT",
                    ": is there a route, with the same MTU on all of it?");
    }
}

static void poll_one(struct dpn_verbs *v, struct dpn_qp *qp, int64_t now_ns)
{
    if (dpn_job_is_running(&qp->job.base))
        return;
    switch (qp->state) {
    case DPN_QP_MAKING:
        v->q.is_sender ? send_open(v, qp) : send_opened(v, qp);
        break;
    case DPN_QP_CONNECTING:
        send_probe(v, qp);
        break;
    case DPN_QP_STOPPING:
        dpn_qp_set_state(&v->q, qp, DPN_QP_DRAINING);
        continue_draining(v, qp, now_ns);
        break;
    case DPN_QP_DRAINING:
        continue_draining(v, qp, now_ns);
        break;
    case DPN_QP_DESTROYING:
        finish_closing(v, qp);
        break;
    case DPN_QP_ABANDONING:
        finish_abandoning(v, qp);
        break;
    case DPN_QP_DOWN:
        if (v->q.is_sender && qp->retry_ns && now_ns >= qp->retry_ns &&
            !v->control.channel.is_lost && !dpn_port_is_down(dpn_qp_port(&v->q, qp)))
            dpn_qp_open(&v->q, qp);
        break;
    case DPN_QP_UP:
    case DPN_QP_PROBING:
        check_progress(v, qp, now_ns);
        check_port(v, qp);
        break;
    case DPN_QP_OPENING:
    case DPN_QP_ENDING:
        break;
    }
}

/* A device that has failed stays failed in this process. */
static bool are_devices_dead(const struct dpn_verbs *v)
{
    for (int r = 0; r < v->q.rail_count; r++)
        if (!atomic_load(&v->q.rails[r].port->hca->is_dead))
            return false;
    return true;
}

/* The sender opens queue pairs, and says so if it cannot. A peer whose answer is missing is late, and
 * not gone, as long as there is a wire to it. */
static bool waits_for_peer(const struct dpn_verbs *v)
{
    bool waits = !v->q.is_sender;

    for (int i = 0; i < v->q.qp_count; i++) {
        const struct dpn_qp *qp = &v->q.qps[i];
        waits |= qp->state == DPN_QP_OPENING ||
                 (qp->state == DPN_QP_DOWN && qp->is_closed_here && !qp->retry_ns);
    }
    return waits && !v->control.channel.is_lost;
}

/* Only time with polls counts: NCCL may not have called for an hour. */
static void check_timeouts(struct dpn_verbs *v, int64_t now_ns)
{
    const int64_t step_ns = now_ns - v->polled_ns;

    if (v->q.up || waits_for_peer(v))
        v->q.down_ns = 0;
    else
        v->q.down_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (are_devices_dead(v))
        dpn_verbs_fail(&v->q, DP_EIO, "all its devices have failed: %s", v->q.reason);
    else if (v->q.down_ns > dpn_timeout_ns())
        dpn_verbs_fail(&v->q, DP_ETIMEDOUT, "no queue pair for %lld s (DUALPIPE_NET_TIMEOUT): %s",
                       (long long)dpn_options.timeout_s, v->q.reason);
}

bool dpn_qps_are_changing(const struct dpn_verbs *v)
{
    bool any = v->q.has_lost_loop;

    for (int i = 0; i < v->q.qp_count; i++)
        any |= v->q.qps[i].state != DPN_QP_DOWN && v->q.qps[i].state != DPN_QP_UP;
    return any;
}

void dpn_qps_poll(struct dpn_verbs *v, int64_t now_ns)
{
    for (int i = 0; i < v->q.qp_count && !v->q.error; i++)
        poll_one(v, &v->q.qps[i], now_ns);
    if (!v->q.error)
        check_timeouts(v, now_ns);
}
