/* SPDX-License-Identifier: Apache-2.0
 *
 * qp.c - one queue pair of this side: its states (verbs/qps.c has a drawing), and the calls to the
 * device, which a worker makes; and how it fails, and the connection with it.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/hmac.h"
#include "nccl-plugin/verbs/queues.h"
#include "nccl-plugin/verbs/ibv_qp.h"
#include "nccl-plugin/verbs/load.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void dpn_qp_set_state(struct dpn_queues *q, struct dpn_qp *qp, enum dpn_qp_state state)
{
    const uint16_t bit = (uint16_t)(1u << dpn_qp_index(q, qp));

    qp->state = state;
    qp->since_ns = dp_now_ns();
    q->up = state == DPN_QP_UP ? q->up | bit : q->up & (uint16_t)~bit;
    q->is_degraded = __builtin_popcount(q->up) < q->qp_count;
}

/* A probe may be polled after its queue pair has failed. Setting it UP again would post work to a
 * queue pair that is about to be destroyed, and that work would never be repeated. */
void dpn_qp_is_up(struct dpn_queues *q, struct dpn_qp *qp)
{
    char ours[DPN_GID_TEXT], theirs[DPN_GID_TEXT];

    if (qp->state != DPN_QP_OPENING && qp->state != DPN_QP_PROBING)
        return;
    dpn_qp_set_state(q, qp, DPN_QP_UP);
    if (qp->has_been_up)
        dp_log(DP_LOG_INFO, "%s -> %s is in use again: %s -> %s", dpn_qp_port(q, qp)->name,
               q->rails[qp->rail].peer, dpn_gid_text(&qp->gid, ours),
               dpn_gid_text(&qp->peer_gid, theirs));
    qp->has_been_up = true;
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

/* ---- calls to the device --------------------------------------------------------------------- */

/* A worker does this in the meantime. */
static void begin(struct dpn_queues *q, struct dpn_qp *qp, enum dpn_qp_state state,
                  void (*run)(struct dpn_job *job))
{
    dpn_qp_set_state(q, qp, state);
    qp->job.queues = q;
    qp->job.of.qp = qp;
    qp->job.err = 0;
    qp->job.has_destroyed = false;
    dpn_job_begin(&qp->job.base, run);
}

static bool uses_inline_data(const struct dpn_queues *q)
{
    return q->is_sender || dpn_verbs_state.options.inlines_cts;
}

static int make_qp(struct dpn_queues *q, struct dpn_qp *qp, struct dpn_qp_info *ours)
{
    const struct dpn_rail *rail = &q->rails[qp->rail];
    const unsigned recvs = q->is_sender ? 1 : DPN_RECV_QUEUE;

    qp->inline_bytes = uses_inline_data(q) ? DPN_INLINE_BYTES : 0;
    int err = dpn_ibv_qp_new(rail->port, &dpn_verbs_state.options, rail->cq, DPN_SEND_QUEUE, recvs,
                             q->any_order, &qp->inline_bytes, &qp->ibv);
    if (!err)
        err = dp_random_bytes(&qp->psn, sizeof(qp->psn));
    if (err)
        return err;
    qp->psn &= 0xffffff;
    *ours = (struct dpn_qp_info){
        .number = qp->ibv->qp_num,
        .psn = qp->psn,
        .key = rail->block_mr->rkey,
        .address = (uintptr_t)q->block,
    };
    dpn_port_query(rail->port, &ours->lid, &ours->mtu, &ours->needs_grh);
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
static uint8_t class_of(const struct dpn_queues *q)
{
    const int wanted = dpn_verbs_state.options.cts_class;

    return q->is_sender || wanted == DPN_AUTO ? q->traffic_class : (uint8_t)wanted;
}

static int connect_qp(struct dpn_queues *q, struct dpn_qp *qp, const struct dpn_qp_info *peer)
{
    const struct dpn_port *port = dpn_qp_port(q, qp);
    const struct ibv_ece ece = {peer->ece_vendor, peer->ece_options, peer->ece_mask};

    qp->uses_ece = peer->has_ece && supports_ece(qp);
    qp->peer_block = peer->address;
    qp->peer_key = peer->key;
    qp->peer_number = peer->number;
    return dpn_ibv_qp_connect(qp->ibv, &(struct dpn_path){
                                           .port = port,
                                           .options = &dpn_verbs_state.options,
                                           .peer_number = peer->number,
                                           .psn = qp->psn,
                                           .peer_psn = peer->psn,
                                           .peer_lid = peer->lid,
                                           .mtu = peer->mtu < qp->mtu ? peer->mtu : qp->mtu,
                                           .gid = qp->gid,
                                           .peer_gid = qp->peer_gid,
                                           .needs_grh = qp->job.ours.needs_grh | peer->needs_grh,
                                           .traffic_class = class_of(q),
                                           .service_level = q->service_level,
                                           .ece = qp->uses_ece ? &ece : NULL,
                                       });
}

void dpn_inline_prepare(struct dpn_queues *q, struct dpn_qp *qp)
{
    const struct dpn_work work = {DPN_WORK_DATA, dpn_qp_index(q, qp), qp->epoch, 0, 0, 1};

    qp->inline_work = dpn_work_pack(work);
    qp->inline_sge = (struct ibv_sge){.lkey = q->rails[qp->rail].block_mr->lkey};
    qp->inline_wr = (struct ibv_send_wr){
        .sg_list = &qp->inline_sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma.rkey = qp->peer_key,
    };
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
    int err = make_qp(job->queues, qp, &job->ours);

    if (!err)
        err = dpn_port_gids(dpn_qp_port(job->queues, qp), &dpn_verbs_state.options, &job->gids);
    if (!err)
        describe_ece(qp, &job->ours);
    finish_making(job, err);
}

void dpn_qp_open(struct dpn_queues *q, struct dpn_qp *qp)
{
    begin_epoch(qp, (uint16_t)(qp->epoch + 1));
    begin(q, qp, DPN_QP_MAKING, run_making);
}

/* InfiniBand needs no matching GIDs: the LID is enough. */
static int choose_gids(const struct dpn_queues *q, struct dpn_qp *qp, const struct dpn_gids *theirs)
{
    const struct dpn_port *port = dpn_qp_port(q, qp);
    struct dpn_gids ours;

    qp->gid = qp->peer_gid = (struct dpn_gid){.index = 0};
    int err = dpn_port_gids(port, &dpn_verbs_state.options, &ours);
    if (err)
        return err;
    if (dpn_gids_match(&ours, theirs, &dpn_verbs_state.options, &qp->gid, &qp->peer_gid) ||
        !port->is_ethernet)
        return 0;
    return dp_fail_quietly(DP_EUNSUPPORTED,
                           "none of the %d GIDs of %s and the %d of the peer are of the same kind "
                           "and address family (show_gids; NCCL_IB_GID_INDEX, "
                           "NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE)",
                           ours.count, port->name, theirs->count);
}

int dpn_qp_post_recvs(struct dpn_queues *q, struct dpn_qp *qp, unsigned count)
{
    struct ibv_recv_wr *bad, wr = {
                                 .wr_id = dpn_work_pack((struct dpn_work){
                                     DPN_WORK_RECV, dpn_qp_index(q, qp), qp->epoch, 0, 0, 0}),
                             };

    for (qp->recvs_owed = count; qp->recvs_owed; qp->recvs_owed--) {
        int error = ibv_post_recv(qp->ibv, &wr, &bad);
        if (error)
            return dp_fail_quietly(DP_EIO, "%s takes no receive: %s", q->rails[qp->rail].port->name,
                                   strerror(error));
        qp->recvs_out++;
    }
    return 0;
}

static int answer_open(struct dpn_queues *q, struct dpn_qp *qp, struct dpn_qp_job *job)
{
    if (dpn_port_is_down(dpn_qp_port(q, qp)))
        return dp_fail_quietly(DP_EIO, "%s is down", dpn_qp_port(q, qp)->name);
    int err = make_qp(q, qp, &job->ours);
    if (!err)
        err = choose_gids(q, qp, &job->gids);
    if (!err)
        err = connect_qp(q, qp, &job->theirs);
    if (!err && qp->uses_ece)
        describe_ece(qp, &job->ours);
    if (!err)
        err = dpn_qp_post_recvs(q, qp, DPN_RECV_QUEUE);
    return err;
}

static void run_answering(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    finish_making(job, answer_open(job->queues, job->of.qp, job));
}

void dpn_qp_answer(struct dpn_queues *q, struct dpn_qp *qp, const struct dpn_open_qp *open)
{
    begin_epoch(qp, open->epoch);
    qp->job.theirs = open->qp;
    qp->job.gids = open->gids;
    begin(q, qp, DPN_QP_MAKING, run_answering);
}

static void run_connecting(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    set_result(job, connect_qp(job->queues, job->of.qp, &job->theirs));
}

void dpn_qp_connect(struct dpn_queues *q, struct dpn_qp *qp, const struct dpn_opened_qp *opened)
{
    qp->gid = opened->sender;
    qp->peer_gid = opened->receiver;
    qp->job.theirs = opened->qp;
    begin(q, qp, DPN_QP_CONNECTING, run_connecting);
}

static void run_stopping(struct dpn_job *base)
{
    dpn_ibv_qp_stop(((struct dpn_qp_job *)base)->of.qp->ibv);
}

/* The pointer is cleared under the lock, as it is read there meanwhile. */
static void run_destroying(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    job->err = dpn_ibv_qp_free(job->of.qp->ibv);
    job->has_destroyed = !job->err;
}

void dpn_qp_destroy(struct dpn_queues *q, struct dpn_qp *qp, enum dpn_qp_state state)
{
    begin(q, qp, state, run_destroying);
}

/* ---- failing --------------------------------------------------------------------------------- */

enum { FAILURES_PER_QP = 20 }; /* consecutive, without a completed message */

void dpn_verbs_fail(struct dpn_queues *q, int error, const char *fmt, ...)
{
    va_list args;

    if (q->error)
        return;
    q->error = error;
    va_start(args, fmt);
    vsnprintf(q->why, sizeof(q->why), fmt, args);
    va_end(args);
    q->failed_ns = dp_now_ns();
}

/* One log line with all facts that are needed to find the cause. */
static void log_end(struct dpn_queues *q, const struct dpn_qp *qp, const char *what,
                    const char *status, const char *hint)
{
    const struct dpn_port *port = dpn_qp_port(q, qp);
    char ours[DPN_GID_TEXT], theirs[DPN_GID_TEXT];
    const int left = __builtin_popcount(q->up);

    snprintf(q->reason, sizeof(q->reason), "%s port %d -> %s, GID %s -> %s: %s: %s%s",
             port->hca->name, port->number, q->rails[qp->rail].peer, dpn_gid_text(&qp->gid, ours),
             dpn_gid_text(&qp->peer_gid, theirs), what, status, hint);
    dp_log(qp->failures > 1 ? DP_LOG_INFO : DP_LOG_WARN,
           "%s; queue pair 0x%x -> 0x%x, "
           "%d of %d queue pairs are left",
           q->reason, qp->ibv->qp_num, qp->peer_number, left, q->qp_count);
}

void dpn_qp_fail(struct dpn_queues *q, struct dpn_qp *qp, const char *what, const char *status,
                 const char *hint)
{
    const bool was_up = qp->state == DPN_QP_UP;

    if (qp->state == DPN_QP_MAKING || qp->state == DPN_QP_CONNECTING)
        qp->is_given_up = true;
    if (!dpn_qp_is_connected(qp))
        return;
    if (qp->uses_ece && !was_up)
        qp->is_without_ece = true;
    qp->failures++;
    dpn_qp_set_state(q, qp, DPN_QP_STOPPING);
    log_end(q, qp, what, status, hint);
    begin(q, qp, DPN_QP_STOPPING, run_stopping);
    if (was_up) {                          /* failed attempts to open do not count */
        q->failures += q->open_count != 0; /* a link may flap while no request is open */
        dpn_stat_count(&q->comm->stat, DPN_STAT_FAILOVERS, 1);
    }
    if (q->failures > FAILURES_PER_QP * q->qp_count)
        dpn_verbs_fail(q, DP_ECOMM, "%d failures in a row, the last one: %s", q->failures,
                       q->reason);
}

/* ---- writing nothing ------------------------------------------------------------------------- */

/* Returns an errno. */
static int write_nothing(struct dpn_queues *q, struct dpn_qp *qp, enum dpn_work_kind kind,
                         enum ibv_wr_opcode opcode)
{
    struct ibv_send_wr *bad,
        wr = {
            .wr_id =
                dpn_work_pack((struct dpn_work){kind, dpn_qp_index(q, qp), qp->epoch, 0, 0, 1}),
            .opcode = opcode,
            .send_flags = IBV_SEND_SIGNALED,
            .imm_data = htobe32(DPN_GENERATIONS),
            .wr.rdma = {qp->peer_block, qp->peer_key},
        };

    qp->sends_out++;
    qp->requests_out++;
    int error = ibv_post_send(qp->ibv, &wr, &bad);
    qp->sends_out -= error != 0; /* it will not complete */
    return error;
}

/* An acknowledged write proves that the path works; two connected queue pairs do not. */
int dpn_qp_probe(struct dpn_queues *q, struct dpn_qp *qp)
{
    int error = write_nothing(q, qp, DPN_WORK_PROBE, IBV_WR_RDMA_WRITE_WITH_IMM);

    return error ? dp_fail_quietly(DP_EIO, "%s: cannot probe: %s", dpn_qp_port(q, qp)->name,
                                   strerror(error))
                 : 0;
}

void dpn_qp_heartbeat(struct dpn_queues *q, struct dpn_qp *qp)
{
    int error = qp->requests_out < DPN_SEND_QUEUE
                    ? write_nothing(q, qp, DPN_WORK_HEARTBEAT, IBV_WR_RDMA_WRITE)
                    : 0;

    if (error)
        dpn_qp_fail(q, qp, "heartbeat", strerror(error), ": the send queue takes no more");
}

/* ---- the end of the connection --------------------------------------------------------------- */

/* One that cannot be destroyed is leaked. */
static bool end_one(struct dpn_queues *q, struct dpn_qp *qp)
{
    if (dpn_job_is_running(&qp->job.base))
        return false;
    if (qp->job.has_destroyed || qp->state == DPN_QP_ENDING)
        qp->ibv = NULL;
    if (qp->ibv)
        begin(q, qp, DPN_QP_ENDING, run_destroying);
    else
        dpn_qp_set_state(q, qp, DPN_QP_DOWN);
    return !qp->ibv;
}

bool dpn_qps_end(struct dpn_queues *q)
{
    bool have_ended = true;

    for (int i = 0; i < q->qp_count; i++)
        have_ended &= end_one(q, &q->qps[i]);
    return have_ended;
}

static bool close_one(struct dpn_qp *qp, int64_t until_ns)
{
    if (!dpn_job_end(&qp->job.base, until_ns))
        return false;
    if (!qp->job.has_destroyed)
        dpn_ibv_qp_free(qp->ibv);
    qp->ibv = NULL;
    return true;
}

bool dpn_qps_close(struct dpn_queues *q, int64_t until_ns)
{
    bool have_ended = true;

    for (int i = 0; i < q->qp_count; i++)
        have_ended &= close_one(&q->qps[i], until_ns);
    return have_ended;
}
