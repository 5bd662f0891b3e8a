/* SPDX-License-Identifier: Apache-2.0
 *
 * completion.c - completions: each goes to the file that posted the work.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/load.h"

#include <stdio.h>
#include <string.h>

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
    dpn_qp_fail(v, qp, names[kind], status, hint_of(wc->status));
}

static void take_recv(struct dpn_verbs *v, struct dpn_qp *qp, unsigned index,
                      const struct ibv_wc *wc)
{
    const uint32_t imm = be32toh(wc->imm_data);

    if (imm == DPN_GENERATIONS) {
        dpn_qp_is_up(&v->queues, qp);
    } else {
        qp->failures = 0; /* the next failure is logged as a warning again */
        if ((imm & DPN_EAGER_IMM) == DPN_EAGER_IMM)
            dpn_eager_take(v, (uint16_t)(imm >> 16), wc->byte_len);
        else
            dpn_verbs_take_imm(v, index, imm, wc->byte_len);
    }
    qp->recvs_owed++;
    if (qp->recvs_owed >= BATCH && dpn_qp_is_connected(qp) && !v->error &&
        dpn_qp_post_recvs(&v->queues, qp, qp->recvs_owed))
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
            dpn_qp_is_up(&v->queues, qp);
        break;
    case DPN_WORK_RECV:
        take_recv(v, qp, work.qp, wc);
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
        if (dpn_loop_take(v, work, wc) && work.kind == DPN_WORK_COPY)
            dpn_eager_copied(v, &v->recv.recvs[work.slot], work.stripe, work.requests);
        return;
    }
    struct dpn_qp *qp = &v->queues.qps[work.qp];
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

    for (int r = 0; r < v->queues.rail_count; r++) {
        int n = BATCH;
        while (n == BATCH && !v->error) {
            n = ibv_poll_cq(v->queues.rails[r].cq, BATCH, wcs);
            for (int i = 0; i < n && !v->error; i++)
                handle(v, &wcs[i]);
            found |= n > 0;
        }
        if (n < 0)
            dpn_verbs_fail(v, DP_EIO, "%s: the completion queue cannot be read",
                           v->queues.rails[r].port->name);
    }
    return found;
}

bool dpn_verbs_poll(struct dpn_verbs *v)
{
    const bool found = dpn_eager_poll(v);

    return dpn_verbs_poll_queues(v) || found;
}
