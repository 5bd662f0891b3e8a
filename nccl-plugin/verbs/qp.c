/* SPDX-License-Identifier: Apache-2.0
 *
 * qp.c - the states of a queue pair.
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
#include "nccl-plugin/verbs/ibv_qp.h"
#include "nccl-plugin/verbs/state.h"
#include "wire/net.h"

#include <stdio.h>
#include <string.h>

static const int64_t DRAIN_NS = 5 * DP_NS_PER_S;
enum { DRAIN_POLLS = 1000 }; /* the process may have been stopped for all of DRAIN_NS */
static const int64_t FIRST_RETRY_NS = 100 * DP_NS_PER_MS, LAST_RETRY_NS = 5 * DP_NS_PER_S;
enum { FAILURES_PER_QP = 20 }; /* consecutive, without a completed message */

static const struct dpn_port *port_of(const struct dpn_verbs *v, const struct dpn_qp *qp)
{
    return v->rails[qp->rail].port;
}

static void set_state(struct dpn_verbs *v, struct dpn_qp *qp, enum dpn_qp_state state)
{
    const uint16_t bit = (uint16_t)(1u << dpn_qp_index(v, qp));

    qp->state = state;
    qp->since_ns = dp_now_ns();
    v->up = state == DPN_QP_UP ? v->up | bit : v->up & (uint16_t)~bit;
    v->is_degraded = __builtin_popcount(v->up) < v->qp_count;
}

/* A probe may be polled after its queue pair has failed. Setting it UP again would post work to a
 * queue pair that is about to be destroyed, and that work would never be repeated. */
void dpn_qp_is_up(struct dpn_verbs *v, struct dpn_qp *qp)
{
    char ours[DPN_GID_TEXT], theirs[DPN_GID_TEXT];

    if (qp->state != DPN_QP_OPENING && qp->state != DPN_QP_PROBING)
        return;
    set_state(v, qp, DPN_QP_UP);
    if (qp->has_been_up)
        dp_log(DP_LOG_INFO, "%s -> %s is in use again: %s -> %s", port_of(v, qp)->name,
               v->rails[qp->rail].peer, dpn_gid_text(&qp->gid, ours),
               dpn_gid_text(&qp->peer_gid, theirs));
    qp->has_been_up = true;
}

/* Retry with exponential backoff. */
static void schedule_retry(struct dpn_qp *qp)
{
    const int shift = qp->failures > 6 ? 6 : qp->failures > 0 ? qp->failures - 1 : 0;
    const int64_t wait_ns = FIRST_RETRY_NS << shift;

    qp->retry_ns = dp_now_ns() + (wait_ns < LAST_RETRY_NS ? wait_ns : LAST_RETRY_NS);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool uses_inline_data(const struct dpn_verbs *v)
{
    return v->is_sender || dpn_verbs_state.options.inlines_cts;
}

/* A new epoch: nothing that is known of the previous one counts. */
static void begin_epoch(struct dpn_qp *qp, uint16_t epoch)
{
    qp->epoch = epoch;
    qp->sends_out = qp->requests_out = qp->recvs_out = qp->recvs_owed = 0;
    qp->unsignaled = qp->completed = qp->seen = qp->drain_polls = 0;
    qp->is_closed_here = qp->is_closed_there = qp->is_given_up = qp->uses_ece = false;
    qp->retry_ns = 0;
}

/* A worker does this in the meantime. */
static void begin(struct dpn_verbs *v, struct dpn_qp *qp, enum dpn_qp_state state,
                  void (*run)(struct dpn_job *job))
{
    set_state(v, qp, state);
    qp->job.v = v;
    qp->job.of.qp = qp;
    qp->job.err = 0;
    qp->job.has_destroyed = false;
    dpn_job_begin(&qp->job.base, run);
}

static int make_qp(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_qp_info *ours)
{
    const struct dpn_rail *rail = &v->rails[qp->rail];
    const unsigned recvs = v->is_sender ? 1 : DPN_RECV_QUEUE;

    qp->inline_bytes = uses_inline_data(v) ? DPN_INLINE_BYTES : 0;
    int err = dpn_ibv_qp_new(rail->port, &dpn_verbs_state.options, rail->cq, DPN_SEND_QUEUE, recvs,
                         v->any_order, &qp->inline_bytes, &qp->ibv);
    if (!err)
        err = dp_random_bytes(&qp->psn, sizeof(qp->psn));
    if (err)
        return err;
    qp->psn &= 0xffffff;
    *ours = (struct dpn_qp_info){
        .number = qp->ibv->qp_num, .psn = qp->psn, .key = rail->block_mr->rkey,
        .address = (uintptr_t)v->block,
    };
    dpn_port_query(rail->port, &ours->lid, &ours->mtu);
    qp->mtu = ours->mtu;
    return 0;
}

static bool supports_ece(const struct dpn_qp *qp)
{
    return dpn_verbs_state.options.ece && dpn_ibv.query_ece && dpn_ibv.set_ece &&
           !qp->is_without_ece;
}

static void describe_ece(struct dpn_qp *qp, struct dpn_qp_info *ours)
{
    struct ibv_ece ece;

    if (!supports_ece(qp) || dpn_ibv.query_ece(qp->ibv, &ece))
        return;
    ours->has_ece = 1;
    ours->ece_vendor = ece.vendor_id;
    ours->ece_options = ece.options;
    ours->ece_mask = ece.comp_mask;
}

/* A receiver sends only CTS entries and acknowledgements. */
static uint8_t class_of(const struct dpn_verbs *v)
{
    const int wanted = dpn_verbs_state.options.cts_class;

    return v->is_sender || wanted == DPN_AUTO ? v->traffic_class : (uint8_t)wanted;
}

static int connect_qp(struct dpn_verbs *v, struct dpn_qp *qp, const struct dpn_qp_info *peer)
{
    const struct dpn_port *port = port_of(v, qp);
    const struct ibv_ece ece = {peer->ece_vendor, peer->ece_options, peer->ece_mask};

    qp->uses_ece = peer->has_ece && supports_ece(qp);
    qp->peer_block = peer->address;
    qp->peer_key = peer->key;
    qp->peer_number = peer->number;
    dpn_inline_prepare(v, qp);
    return dpn_ibv_qp_connect(qp->ibv, &(struct dpn_path){
        .port = port, .options = &dpn_verbs_state.options, .peer_number = peer->number,
        .psn = qp->psn, .peer_psn = peer->psn, .peer_lid = peer->lid,
        .mtu = peer->mtu < qp->mtu ? peer->mtu : qp->mtu,
        .gid = qp->gid, .peer_gid = qp->peer_gid,
        .traffic_class = class_of(v), .service_level = v->service_level,
        .ece = qp->uses_ece ? &ece : NULL,
    });
}

/* There is no queue pair; the sender tries again. */
static void abandon(struct dpn_verbs *v, struct dpn_qp *qp, const char *reason)
{
    set_state(v, qp, DPN_QP_DOWN);
    qp->is_closed_here = false;
    if (!qp->failures++)
        dp_log(DP_LOG_WARN, "%s -> %s: cannot connect: %s", port_of(v, qp)->name,
               v->rails[qp->rail].peer, reason);
    if (!v->is_sender)
        return;
    snprintf(v->reason, sizeof(v->reason), "%s", reason);
    schedule_retry(qp);
}

/* What a job returns, with the error text of its thread. */
static void set_result(struct dpn_qp_job *job, int err)
{
    job->err = err;
    snprintf(job->why, sizeof(job->why), "%s", err ? dp_last_error() : "");
}

/* Nothing was sent over it, so a queue pair that cannot be destroyed is only leaked. */
static void finish_making(struct dpn_qp_job *job, int err)
{
    struct dpn_qp *qp = job->of.qp;

    set_result(job, err);
    if (!err)
        return;
    dpn_ibv_qp_free(qp->ibv);
    qp->ibv = NULL;
}

static void run_making(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;
    struct dpn_qp *qp = job->of.qp;
    int err = make_qp(job->v, qp, &job->ours);

    if (!err) {
        describe_ece(qp, &job->ours);
        dpn_port_gids(port_of(job->v, qp), &dpn_verbs_state.options, &job->gids);
    }
    finish_making(job, err);
}

void dpn_qp_open(struct dpn_verbs *v, struct dpn_qp *qp)
{
    begin_epoch(qp, (uint16_t)(qp->epoch + 1));
    begin(v, qp, DPN_QP_MAKING, run_making);
}

static void send_open(struct dpn_verbs *v, struct dpn_qp *qp)
{
    union dpn_control_body body = {.open = {.index = (uint8_t)dpn_qp_index(v, qp)}};

    if (qp->job.err) {
        abandon(v, qp, qp->job.why);
        return;
    }
    body.open.epoch = qp->epoch;
    body.open.qp = qp->job.ours;
    body.open.gids = qp->job.gids;
    set_state(v, qp, DPN_QP_OPENING);
    dpn_control_send(v, DPN_OPEN, &body);
}

/* InfiniBand needs no matching GIDs: the LID is enough. */
static int choose_gids(const struct dpn_verbs *v, struct dpn_qp *qp,
                       const struct dpn_gids *theirs)
{
    const struct dpn_port *port = port_of(v, qp);
    struct dpn_gids ours;

    qp->gid = qp->peer_gid = (struct dpn_gid){.index = 0};
    dpn_port_gids(port, &dpn_verbs_state.options, &ours);
    if (dpn_gids_match(&ours, theirs, &dpn_verbs_state.options, &qp->gid, &qp->peer_gid) ||
        !port->is_ethernet)
        return 0;
    return dp_fail_quietly(DP_EUNSUPPORTED,
                           "none of the %d GIDs of %s and the %d of the peer are of the same kind "
                           "and address family (show_gids; NCCL_IB_GID_INDEX, "
                           "NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE)",
                           ours.count, port->name, theirs->count);
}

static int answer_open(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_qp_job *job)
{
    if (dpn_port_is_down(port_of(v, qp)))
        return dp_fail_quietly(DP_EIO, "%s is down", port_of(v, qp)->name);
    int err = make_qp(v, qp, &job->ours);
    if (!err)
        err = choose_gids(v, qp, &job->gids);
    if (!err)
        err = connect_qp(v, qp, &job->theirs);
    if (!err && qp->uses_ece)
        describe_ece(qp, &job->ours);
    if (!err)
        err = dpn_qp_post_recvs(v, qp, DPN_RECV_QUEUE);
    return err;
}

static void run_answering(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    finish_making(job, answer_open(job->v, job->of.qp, job));
}

void dpn_qp_take_open(struct dpn_verbs *v, const struct dpn_open_qp *open)
{
    struct dpn_qp *qp = &v->qps[open->index];

    if (qp->state != DPN_QP_DOWN) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer opens queue pair %u, which is in use",
                       open->index);
        return;
    }
    begin_epoch(qp, open->epoch);
    qp->job.theirs = open->qp;
    qp->job.gids = open->gids;
    begin(v, qp, DPN_QP_MAKING, run_answering);
}

static void send_opened(struct dpn_verbs *v, struct dpn_qp *qp)
{
    union dpn_control_body body = {.opened = {.index = (uint8_t)dpn_qp_index(v, qp)}};

    body.opened.epoch = qp->epoch;
    body.opened.is_open = !qp->job.err;
    if (body.opened.is_open) {
        body.opened.qp = qp->job.ours;
        body.opened.sender = qp->peer_gid;
        body.opened.receiver = qp->gid;
        set_state(v, qp, DPN_QP_OPENING);
    } else {
        snprintf(body.opened.reason, sizeof(body.opened.reason), "%.*s", DPN_CONTROL_REASON - 1,
                 qp->job.why);
        abandon(v, qp, qp->job.why);
    }
    dpn_control_send(v, DPN_OPENED, &body);
}

/* Returns an errno. */
static int write_nothing(struct dpn_verbs *v, struct dpn_qp *qp, enum dpn_work_kind kind,
                         enum ibv_wr_opcode opcode)
{
    struct ibv_send_wr *bad, wr = {
        .wr_id = dpn_work_pack((struct dpn_work){kind, dpn_qp_index(v, qp), qp->epoch, 0, 0, 1}),
        .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(DPN_GENERATIONS),
        .wr.rdma = {qp->peer_block, qp->peer_key},
    };

    qp->sends_out++;
    qp->requests_out++;
    int error = ibv_post_send(qp->ibv, &wr, &bad);
    qp->sends_out -= error != 0; /* it will not complete */
    return error;
}

/* An acknowledged write proves that the path works; two connected queue pairs do not. */
static int probe(struct dpn_verbs *v, struct dpn_qp *qp)
{
    int error = write_nothing(v, qp, DPN_WORK_PROBE, IBV_WR_RDMA_WRITE_WITH_IMM);

    return error ? dp_fail_quietly(DP_EIO, "%s: cannot probe: %s", port_of(v, qp)->name,
                                   strerror(error)) : 0;
}

static void run_connecting(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    set_result(job, connect_qp(job->v, job->of.qp, &job->theirs));
}

/* `has_destroyed` is for whoever clears the pointer, as others read it meanwhile. */
static void run_destroying(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    job->err = dpn_ibv_qp_free(job->of.qp->ibv);
    job->has_destroyed = !job->err;
}

void dpn_qp_take_opened(struct dpn_verbs *v, const struct dpn_opened_qp *opened)
{
    struct dpn_qp *qp = &v->qps[opened->index];

    if (qp->state != DPN_QP_OPENING || qp->epoch != opened->epoch)
        return;
    if (!opened->is_open) {
        snprintf(qp->job.why, sizeof(qp->job.why), "%s", opened->reason);
        begin(v, qp, DPN_QP_ABANDONING, run_destroying);
        return;
    }
    qp->gid = opened->sender;
    qp->peer_gid = opened->receiver;
    qp->job.theirs = opened->qp;
    begin(v, qp, DPN_QP_CONNECTING, run_connecting);
}

static void send_probe(struct dpn_verbs *v, struct dpn_qp *qp)
{
    set_state(v, qp, DPN_QP_OPENING);
    if (qp->is_given_up)
        dpn_qp_fail(v, qp, "the peer closed the queue pair", "see its log", "");
    else if (qp->job.err)
        dpn_qp_fail(v, qp, "connecting", qp->job.why, "");
    else if (probe(v, qp))
        dpn_qp_fail(v, qp, "connecting", dp_last_error(), "");
    else
        set_state(v, qp, DPN_QP_PROBING);
}

/* ---- failing and closing --------------------------------------------------------------------- */

/* One log line with all facts that are needed to find the cause. */
static void log_end(struct dpn_verbs *v, const struct dpn_qp *qp, const char *what,
                     const char *status, const char *hint)
{
    const struct dpn_port *port = port_of(v, qp);
    char ours[DPN_GID_TEXT], theirs[DPN_GID_TEXT];
    const int left = __builtin_popcount(v->up);

    snprintf(v->reason, sizeof(v->reason), "%s port %d -> %s, GID %s -> %s: %s: %s%s",
             port->hca->name, port->number, v->rails[qp->rail].peer,
             dpn_gid_text(&qp->gid, ours), dpn_gid_text(&qp->peer_gid, theirs), what, status,
             hint);
    dp_log(qp->failures > 1 ? DP_LOG_INFO : DP_LOG_WARN, "%s; queue pair 0x%x -> 0x%x, "
           "%d of %d queue pairs are left", v->reason, qp->ibv->qp_num, qp->peer_number, left,
           v->qp_count);
}

static void run_stopping(struct dpn_job *base)
{
    dpn_ibv_qp_stop(((struct dpn_qp_job *)base)->of.qp->ibv);
}

void dpn_qp_fail(struct dpn_verbs *v, struct dpn_qp *qp, const char *what, const char *status,
                 const char *hint)
{
    if (qp->state == DPN_QP_MAKING || qp->state == DPN_QP_CONNECTING)
        qp->is_given_up = true;
    if (!dpn_qp_is_connected(qp))
        return;
    if (qp->uses_ece && qp->state != DPN_QP_UP)
        qp->is_without_ece = true;
    qp->failures++;
    if (qp->state == DPN_QP_UP) {            /* failed attempts to open do not count */
        v->failures += dpn_verbs_is_busy(v); /* a link may flap while no request is open */
        dpn_stat_count(&v->comm->stat, DPN_STAT_FAILOVERS, 1);
    }
    set_state(v, qp, DPN_QP_STOPPING);
    log_end(v, qp, what, status, hint);
    begin(v, qp, DPN_QP_STOPPING, run_stopping);
    if (v->failures > FAILURES_PER_QP * v->qp_count)
        dpn_verbs_fail(v, DP_ECOMM, "%d failures in a row, the last one: %s", v->failures,
                       v->reason);
}

void dpn_qp_heartbeat(struct dpn_verbs *v, struct dpn_qp *qp)
{
    int error = qp->requests_out < DPN_SEND_QUEUE
                    ? write_nothing(v, qp, DPN_WORK_HEARTBEAT, IBV_WR_RDMA_WRITE) : 0;

    if (error)
        dpn_qp_fail(v, qp, "heartbeat", strerror(error), ": the send queue takes no more");
}

static void send_closed(struct dpn_verbs *v, struct dpn_qp *qp)
{
    const uint8_t index = (uint8_t)dpn_qp_index(v, qp);
    union dpn_control_body body;

    qp->is_closed_here = true;
    memset(&body, 0, sizeof(body));
    if (v->is_sender) {
        body.closed_sender = (struct dpn_closed_sender){index, 0, qp->epoch, v->cts_read};
        dpn_control_send(v, DPN_CLOSED_SENDER, &body);
    } else {
        body.closed_receiver.index = index;
        body.closed_receiver.epoch = qp->epoch;
        dpn_verbs_report(v, &body.closed_receiver);
        dpn_control_send(v, DPN_CLOSED_RECEIVER, &body);
    }
}

/* Both queue pairs are destroyed: nothing of this epoch can arrive any more. */
static void resend_if_closed(struct dpn_verbs *v, struct dpn_qp *qp)
{
    if (!qp->is_closed_here || !qp->is_closed_there || !v->is_sender)
        return;
    qp->is_closed_there = false;
    dpn_verbs_resend(v, dpn_qp_index(v, qp), &v->reports[dpn_qp_index(v, qp)]);
    schedule_retry(qp);
}

void dpn_qp_take_closed(struct dpn_verbs *v, unsigned index, unsigned epoch)
{
    struct dpn_qp *qp = &v->qps[index];

    if (qp->epoch != epoch)
        return;
    qp->is_closed_there = true;
    dpn_qp_fail(v, qp, "the peer closed the queue pair", "see its log", "");
    if (qp->state == DPN_QP_DOWN && !qp->is_closed_here && !v->error)
        send_closed(v, qp);
    resend_if_closed(v, qp);
}

static bool is_drained(const struct dpn_verbs *v, const struct dpn_qp *qp)
{
    return v->is_sender ? !qp->sends_out : !qp->recvs_out;
}

/* If the peer were told that the queue pair is closed, the rest would be sent over others, while a
 * late write or read of this one could still access memory that has been reused. */
static void fail_undestroyed(struct dpn_verbs *v, const struct dpn_qp *qp, int error)
{
    dpn_verbs_fail(
        v, DP_EIO,
        "%s: queue pair 0x%x, which had failed, could not be destroyed (%s), so it may still "
        "write or read; it had failed because: %s",
        port_of(v, qp)->name, qp->ibv->qp_num, strerror(error), v->reason);
}

/* Work that a failing device does not flush in time counts as not done. It may be done twice, with
 * the same bytes. */
static void continue_draining(struct dpn_verbs *v, struct dpn_qp *qp, int64_t now_ns)
{
    const bool may_wait = now_ns - qp->since_ns < DRAIN_NS &&
                            !atomic_load(&port_of(v, qp)->hca->is_dead);

    if (!is_drained(v, qp) && (may_wait || qp->drain_polls++ < DRAIN_POLLS))
        return;
    dpn_verbs_poll(v);
    if (!v->error)
        begin(v, qp, DPN_QP_DESTROYING, run_destroying);
}

static void finish_closing(struct dpn_verbs *v, struct dpn_qp *qp)
{
    if (qp->job.err && !atomic_load(&port_of(v, qp)->hca->is_dead)) {
        fail_undestroyed(v, qp, qp->job.err);
        return;
    }
    qp->ibv = NULL;
    set_state(v, qp, DPN_QP_DOWN);
    send_closed(v, qp);
    resend_if_closed(v, qp);
}

/* Nothing was sent over it. */
static void finish_abandoning(struct dpn_verbs *v, struct dpn_qp *qp)
{
    qp->ibv = NULL;
    abandon(v, qp, qp->job.why);
}

/* ---- the end of the connection --------------------------------------------------------------- */

/* One that cannot be destroyed is leaked. */
static bool end_one(struct dpn_verbs *v, struct dpn_qp *qp)
{
    if (dpn_job_is_running(&qp->job.base))
        return false;
    if (qp->job.has_destroyed || qp->state == DPN_QP_ENDING)
        qp->ibv = NULL;
    if (qp->ibv)
        begin(v, qp, DPN_QP_ENDING, run_destroying);
    else
        set_state(v, qp, DPN_QP_DOWN);
    return !qp->ibv;
}

bool dpn_qps_end(struct dpn_verbs *v)
{
    bool have_ended = true;

    for (int i = 0; i < v->qp_count; i++)
        have_ended &= end_one(v, &v->qps[i]);
    return have_ended;
}

/* A child that was forked while a worker of its parent was busy leaves that queue pair alone. */
static bool close_one(struct dpn_qp *qp, int64_t until_ns)
{
    if (!dpn_job_end(&qp->job.base, until_ns))
        return false;
    if (!qp->job.has_destroyed && !dpn_job_is_running(&qp->job.base))
        dpn_ibv_qp_free(qp->ibv);
    qp->ibv = NULL;
    return true;
}

bool dpn_qps_close(struct dpn_verbs *v, int64_t until_ns)
{
    bool have_ended = true;

    for (int i = 0; i < v->qp_count; i++)
        have_ended &= close_one(&v->qps[i], until_ns);
    return have_ended;
}

/* ---- polling --------------------------------------------------------------------------------- */

static bool has_other_rail(const struct dpn_verbs *v, const struct dpn_qp *qp)
{
    for (int i = 0; i < v->qp_count; i++)
        if (v->up >> i & 1 && v->qps[i].rail != qp->rail &&
            !dpn_port_is_down(port_of(v, &v->qps[i])))
            return true;
    return false;
}

/* Without another rail it is better to wait: a link that is down for a moment costs only some
 * retransmitted packets. */
static void check_port(struct dpn_verbs *v, struct dpn_qp *qp)
{
    const struct dpn_port *port = port_of(v, qp);

    if (!dpn_port_is_down(port) || !dpn_verbs_state.options.handles_events)
        return;
    if (atomic_load(&port->hca->is_dead))
        dpn_qp_fail(v, qp, "device", "it has failed", ": look at the kernel's log");
    else if (has_other_rail(v, qp))
        dpn_qp_fail(v, qp, "port", "it is down", ": look at the cable and the switch");
}

static void check_progress(struct dpn_verbs *v, struct dpn_qp *qp, int64_t now_ns)
{
    if (qp->completed != qp->seen || !qp->sends_out) {
        qp->seen = qp->completed;
        qp->since_ns = now_ns;
    } else if (now_ns - qp->since_ns > dpn_options.timeout_s * DP_NS_PER_S / 2) {
        dpn_qp_fail(v, qp, "send", "no completion in half of DUALPIPE_NET_TIMEOUT",
                    ": is there a route, with the same MTU on all of it?");
    }
}

static void poll_one(struct dpn_verbs *v, struct dpn_qp *qp, int64_t now_ns)
{
    if (dpn_job_is_running(&qp->job.base))
        return;
    switch (qp->state) {
    case DPN_QP_MAKING:
        v->is_sender ? send_open(v, qp) : send_opened(v, qp);
        break;
    case DPN_QP_CONNECTING:
        send_probe(v, qp);
        break;
    case DPN_QP_STOPPING:
        set_state(v, qp, DPN_QP_DRAINING);
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
        if (v->is_sender && qp->retry_ns && now_ns >= qp->retry_ns && !v->channel.is_lost &&
            !dpn_port_is_down(port_of(v, qp)))
            dpn_qp_open(v, qp);
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
    for (int r = 0; r < v->rail_count; r++)
        if (!atomic_load(&v->rails[r].port->hca->is_dead))
            return false;
    return true;
}

/* Only time with polls counts: NCCL may not have called for an hour. */
static void check_timeouts(struct dpn_verbs *v, int64_t now_ns)
{
    const int64_t step_ns = now_ns - v->polled_ns;

    if (v->up)
        v->down_ns = 0;
    else
        v->down_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (are_devices_dead(v))
        dpn_verbs_fail(v, DP_EIO, "all its devices have failed: %s", v->reason);
    else if (v->down_ns > dpn_options.timeout_s * DP_NS_PER_S)
        dpn_verbs_fail(v, DP_ETIMEDOUT, "no queue pair for %lld s (DUALPIPE_NET_TIMEOUT): %s",
                       (long long)dpn_options.timeout_s, v->reason);
}

bool dpn_qps_are_changing(const struct dpn_verbs *v)
{
    bool any = v->has_lost_loop;

    for (int i = 0; i < v->qp_count; i++)
        any |= v->qps[i].state != DPN_QP_DOWN && v->qps[i].state != DPN_QP_UP;
    return any;
}

void dpn_qps_poll(struct dpn_verbs *v, int64_t now_ns)
{
    for (int i = 0; i < v->qp_count && !v->error; i++)
        poll_one(v, &v->qps[i], now_ns);
    if (!v->error)
        check_timeouts(v, now_ns);
}
