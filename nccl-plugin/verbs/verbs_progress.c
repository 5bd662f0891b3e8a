/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_progress.c - what happens whenever somebody tests, sends or waits: completions each time, and
 * now and then, without a system call in between, all the rest.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_load.h"

#include <stdio.h>
#include <string.h>

static const int64_t LOOK_NS = DP_NS_PER_MS, LOOK_IN_TROUBLE_NS = 50 * DP_NS_PER_US;
enum { BATCH = 16, IDLE_POLLS = 64 };

/* ---- completions ----------------------------------------------------------------------------- */

static const char *hint_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return ": the peer's port does not answer; look at the link, the switch, and whether the "
               "GIDs reach each other (ping); NCCL_IB_TIMEOUT";
    case IBV_WC_WR_FLUSH_ERR:
        return ": the queue pair was ended by the device, or by the peer";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
        return ": memory was deregistered or freed too early, or ACS or the IOMMU is in the way of "
               "peer-to-peer traffic";
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_GENERAL_ERR:
        return ": the port is down, or the device in trouble; look at the kernel's log";
    default:
        return "";
    }
}

static void take_failure(struct dpn_verbs *v, struct dpn_lane *lane, enum dpn_work_kind kind,
                         const struct ibv_wc *wc)
{
    static const char *const names[] = {"send", "connecting", "clear-to-send", "receive", "flush",
                                        "copy", "sign of life", "send"};
    char status[96];

    snprintf(status, sizeof(status), "%s (%d, vendor 0x%x)", dpn_ibv.wc_status_str(wc->status),
             wc->status, wc->vendor_err);
    dpn_lane_fence(v, lane, names[kind], status, hint_of(wc->status));
}

static void take_recv(struct dpn_verbs *v, struct dpn_lane *lane, const struct ibv_wc *wc)
{
    const uint32_t imm = be32toh(wc->imm_data);

    if (imm == DPN_GENERATIONS) {
        dpn_lane_is_up(v, lane);
    } else {
        lane->failures = 0; /* what fails next is news again */
        if ((imm & DPN_EAGER_MARK) == DPN_EAGER_MARK)
            dpn_eager_take(v, (uint16_t)(imm >> 16), wc->byte_len);
        else
            dpn_verbs_take_mark(v, lane, imm, wc->byte_len);
    }
    lane->recvs_owed++;
    if (lane->recvs_owed >= BATCH && lane->state != DPN_LANE_FENCING && !v->error &&
        dpn_lane_post_recvs(v, lane, lane->recvs_owed))
        dpn_lane_fence(v, lane, "receive", dp_last_error(), "");
}

static void take_success(struct dpn_verbs *v, struct dpn_lane *lane, struct dpn_work work,
                         const struct ibv_wc *wc)
{
    switch (work.kind) {
    case DPN_WORK_DATA:
        dpn_verbs_sent(v, work);
        break;
    case DPN_WORK_PROBE:
        if (lane->state == DPN_LANE_PROBING)
            dpn_lane_is_up(v, lane);
        break;
    case DPN_WORK_RECV:
        take_recv(v, lane, wc);
        break;
    case DPN_WORK_LINES:
        dpn_verbs_lines_came(v, lane, work);
        break;
    case DPN_WORK_FLUSH:
    case DPN_WORK_COPY:
    case DPN_WORK_BEAT:
    case DPN_WORK_PART:
        break;
    }
}

static void count(struct dpn_lane *lane, struct dpn_work work)
{
    lane->completed++;
    if (work.kind == DPN_WORK_RECV) {
        lane->recvs_out--;
    } else if (work.kind != DPN_WORK_PART) {
        lane->sends_out--;
        lane->requests_out -= work.requests;
    }
}

/* Of a life that is over nothing counts. */
static void take(struct dpn_verbs *v, const struct ibv_wc *wc)
{
    const struct dpn_work work = dpn_work_unpack(wc->wr_id);

    if (work.kind == DPN_WORK_FLUSH || work.kind == DPN_WORK_COPY) {
        dpn_loop_take(v, work, wc);
        return;
    }
    struct dpn_lane *lane = &v->lanes[work.lane];
    if (lane->epoch != work.epoch || !lane->qp)
        return;
    count(lane, work);
    if (wc->status)
        take_failure(v, lane, work.kind, wc);
    else
        take_success(v, lane, work, wc);
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
                take(v, &wcs[i]);
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

/* ---- the rest -------------------------------------------------------------------------------- */

static void look_around(struct dpn_verbs *v, int64_t now_ns)
{
    for (int r = 0; r < v->rail_count; r++)
        dpn_hca_hear(v->rails[r].port->hca, now_ns);
    dpn_verbs_listen(v);
    if (!v->error)
        dpn_words_tend(v, now_ns);
    if (!v->error)
        dpn_lanes_tend(v, now_ns);
    if (!v->error)
        dpn_loops_tend(v, now_ns);
    v->looked_ns = now_ns;
}

static void push(struct dpn_verbs *v)
{
    if (v->waiting)
        dpn_verbs_push(v);
    if (v->lines_sent != v->lines_made)
        dpn_verbs_push_lines(v);
}

/* Who waits for a quick message is not to wait for completions, too; but they have their turn. */
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
    dpn_verbs_wait_for_lines(v, found);
    const bool is_troubled = v->is_troubled || v->has_lost_loop || v->words.is_lost;
    if (is_troubled || v->idle % IDLE_POLLS == IDLE_POLLS - 1) {
        const int64_t now_ns = dp_now_ns();
        if (now_ns - v->looked_ns >= (is_troubled ? LOOK_IN_TROUBLE_NS : LOOK_NS))
            look_around(v, now_ns);
    }
    if (!v->error)
        push(v);
}

void dpn_verbs_look(struct dpn_verbs *v)
{
    dpn_verbs_poll(v);
    if (!v->error)
        look_around(v, dp_now_ns());
    dpn_verbs_release_lines(v);
    if (!v->error)
        push(v);
}
