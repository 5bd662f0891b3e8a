/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c - progress of a connection, made by every test, send and receive: completions each
 * time; events, control messages and deadlines at intervals, without a system call in between.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/load.h"

#include <stdio.h>
#include <string.h>

static const int64_t REST_EVERY_NS = DP_NS_PER_MS, DEGRADED_EVERY_NS = 50 * DP_NS_PER_US;
enum { BATCH = 16, IDLE_POLLS = 64, BUSY_POLLS = 1024 };

/* ---- completions ----------------------------------------------------------------------------- */

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
    dpn_qp_fail(v, qp, names[kind], status, hint_of(wc->status));
}

static void take_recv(struct dpn_verbs *v, struct dpn_qp *qp, const struct ibv_wc *wc)
{
    const uint32_t imm = be32toh(wc->imm_data);

    if (imm == DPN_GENERATIONS) {
        dpn_qp_is_up(v, qp);
    } else {
        qp->failures = 0; /* the next failure is logged as a warning again */
        if ((imm & DPN_EAGER_IMM) == DPN_EAGER_IMM)
            dpn_eager_take(v, (uint16_t)(imm >> 16), wc->byte_len);
        else
            dpn_verbs_take_imm(v, qp, imm, wc->byte_len);
    }
    qp->recvs_owed++;
    if (qp->recvs_owed >= BATCH && dpn_qp_is_connected(qp) && !v->error &&
        dpn_qp_post_recvs(v, qp, qp->recvs_owed))
        dpn_qp_fail(v, qp, "receive", dp_last_error(), "");
}

static void take_success(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_work work,
                         const struct ibv_wc *wc)
{
    switch (work.kind) {
    case DPN_WORK_DATA:
        dpn_verbs_sent(v, work);
        break;
    case DPN_WORK_PROBE:
        if (qp->state == DPN_QP_PROBING)
            dpn_qp_is_up(v, qp);
        break;
    case DPN_WORK_RECV:
        take_recv(v, qp, wc);
        break;
    case DPN_WORK_CTS:
        dpn_cts_write_done(v, qp, work);
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
        dpn_loop_take(v, work, wc);
        return;
    }
    struct dpn_qp *qp = &v->qps[work.qp];
    if (qp->epoch != work.epoch || !qp->ibv)
        return;
    count(qp, work);
    if (wc->status)
        take_failure(v, qp, work.kind, wc);
    else
        take_success(v, qp, work, wc);
}

static bool poll_queues(struct dpn_verbs *v)
{
    struct ibv_wc wcs[BATCH];
    bool found = false;

    for (int r = 0; r < v->rail_count; r++) {
        int n = BATCH;
        while (n == BATCH && !v->error) {
            n = ibv_poll_cq(v->rails[r].cq, BATCH, wcs);
            for (int i = 0; i < n && !v->error; i++)
                handle(v, &wcs[i]);
            found |= n > 0;
        }
        if (n < 0)
            dpn_verbs_fail(v, DP_EIO, "%s: the completion queue cannot be read",
                           v->rails[r].port->name);
    }
    return found;
}

bool dpn_verbs_poll(struct dpn_verbs *v)
{
    const bool found = dpn_eager_poll(v);

    return poll_queues(v) || found;
}

/* ---- events, control messages and deadlines -------------------------------------------------- */

static void poll_rest(struct dpn_verbs *v, int64_t now_ns)
{
    for (int r = 0; r < v->rail_count; r++)
        dpn_hca_read_events(v->rails[r].port->hca, now_ns);
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
    if (v->waiting)
        dpn_verbs_push(v);
    if (v->cts_sent != v->cts_made)
        dpn_cts_push(v);
}

/* Look for an inline message in memory without polling for completions each time; completions are
 * polled for at intervals. */
static bool find(struct dpn_verbs *v)
{
    if (v->unpolled++ < BATCH && dpn_eager_poll(v))
        return true;
    v->unpolled = 0;
    return poll_queues(v);
}

void dpn_verbs_progress(struct dpn_verbs *v)
{
    const bool found = find(v);

    v->idle = found ? 0 : v->idle + 1;
    v->stall.has_moved |= found;
    dpn_cts_release_if_idle(v, found);
    const bool is_degraded = v->is_degraded || v->has_lost_loop || v->channel.is_lost;
    if (is_degraded || v->idle % IDLE_POLLS == IDLE_POLLS - 1 || ++v->polls % BUSY_POLLS == 0) {
        const int64_t now_ns = dp_now_ns();
        if (now_ns - v->polled_ns >= (is_degraded ? DEGRADED_EVERY_NS : REST_EVERY_NS))
            poll_rest(v, now_ns);
    }
    if (!v->error)
        push(v);
}

void dpn_verbs_progress_all(struct dpn_verbs *v)
{
    v->stall.has_moved |= dpn_verbs_poll(v);
    if (!v->error)
        poll_rest(v, dp_now_ns());
    dpn_cts_release(v);
    if (!v->error)
        push(v);
}
