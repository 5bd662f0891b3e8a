/* SPDX-License-Identifier: Apache-2.0
 *
 * flush.c - data that a device has written to a GPU may still be in flight when its completion is
 * seen. A read of the last byte by the same device completes only after the write. It goes over a
 * queue pair that is connected to itself, the loopback queue pair of its rail. An eager message for
 * a GPU is copied over it, too, and followed by such a read, so a completed copy needs no flush.
 *
 *      a completion of data for a GPU               written++
 *      iflush                                       a read by each rail with written != flushed
 *      the read completes                           flushed = the value of written at iflush
 *
 * So a rail that carried nothing, or has failed, gets no read. A loopback queue pair that fails is
 * opened again, and its outstanding work is repeated: it is another queue pair of the same device,
 * whose reads come after its writes. A read by another device would not flush this one's writes,
 * and the sender has its buffer back, so a device that fails with unflushed writes ends the
 * connection. A copy comes from host memory, so any other rail can repeat it.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/receiver.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/ibv_qp.h"

#include <stdio.h>
#include <string.h>

static const int64_t FIRST_RETRY_NS = 10 * DP_NS_PER_MS, LAST_RETRY_NS = 1 * DP_NS_PER_S;

bool dpn_port_reaches_gpus(const struct dpn_port *port)
{
    return port->hca->pointers & (NCCL_PTR_CUDA | NCCL_PTR_DMABUF);
}

bool dpn_port_takes_eager(const struct dpn_port *port)
{
    return !dpn_port_reaches_gpus(port) || dpn_verbs_state.options.flushes;
}

static bool is_dead(const struct dpn_rail *rail)
{
    return atomic_load(&rail->port->hca->is_dead);
}

/* ---- the loopback queue pair ----------------------------------------------------------------- */

static int connect_with_itself(struct dpn_rail *rail, struct ibv_qp *qp)
{
    struct dpn_path path = {.port = rail->port,
                            .options = &dpn_verbs_state.options,
                            .peer_number = qp->qp_num,
                            .is_loop = true};
    struct dpn_gids gids;
    int err = dpn_port_gids(rail->port, &dpn_verbs_state.options, &gids);

    if (err)
        return err;
    dpn_port_query(rail->port, &path.peer_lid, &path.mtu, &path.needs_grh);
    dpn_gids_match(&gids, &gids, &dpn_verbs_state.options, &path.gid, &path.peer_gid);
    return dpn_ibv_qp_connect(qp, &path);
}

static int make_qp(struct dpn_rail *rail, struct ibv_qp **out)
{
    unsigned inline_bytes = 0;
    struct ibv_qp *qp;
    int err = dpn_ibv_qp_new(rail->port, &dpn_verbs_state.options, rail->cq, DPN_LOOP_QUEUE, 1,
                             false, &inline_bytes, &qp);

    if (err)
        return err;
    err = connect_with_itself(rail, qp);
    if (err)
        dpn_ibv_qp_free(qp);
    else
        *out = qp;
    return err;
}

static void use(struct dpn_loop *loop, struct ibv_qp *qp)
{
    loop->epoch++;
    loop->qp = qp;
}

int dpn_loop_open(struct dpn_rail *rail)
{
    struct ibv_qp *qp;

    rail->loop.is_wanted = dpn_port_reaches_gpus(rail->port) && dpn_verbs_state.options.flushes;
    int err = rail->loop.is_wanted ? make_qp(rail, &qp) : 0;
    if (rail->loop.is_wanted && !err)
        use(&rail->loop, qp);
    return err;
}

/* ---- by a worker ----------------------------------------------------------------------------- */

static void run_opening(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    job->err = make_qp(job->of.rail, &job->of.rail->loop.next);
    snprintf(job->why, sizeof(job->why), "%s", job->err ? dp_last_error() : "");
}

static void run_closing(struct dpn_job *base)
{
    struct dpn_qp_job *job = (struct dpn_qp_job *)base;

    job->err = dpn_ibv_qp_free(job->of.rail->loop.next);
    job->has_destroyed = !job->err;
}

static void begin_job(struct dpn_rail *rail, enum dpn_loop_state state,
                      void (*run)(struct dpn_job *job))
{
    struct dpn_loop *loop = &rail->loop;

    loop->state = state;
    loop->next = loop->qp;
    loop->qp = NULL;
    loop->job.of.rail = rail;
    loop->job.has_destroyed = false;
    dpn_job_begin(&loop->job.base, run);
}

/* What a worker has opened is closed again. */
bool dpn_loop_end(struct dpn_rail *rail)
{
    struct dpn_loop *loop = &rail->loop;

    if (dpn_job_is_running(&loop->job.base))
        return false;
    if (loop->state == DPN_LOOP_OPENING && !loop->job.err)
        loop->qp = loop->next;
    loop->state = DPN_LOOP_IDLE;
    loop->next = NULL;
    if (!loop->qp)
        return true;
    begin_job(rail, DPN_LOOP_CLOSING, run_closing);
    return false;
}

bool dpn_loop_close(struct dpn_rail *rail, int64_t until_ns)
{
    struct dpn_loop *loop = &rail->loop;

    if (!dpn_job_end(&loop->job.base, until_ns))
        return false;
    if (loop->next && !loop->job.has_destroyed)
        dpn_ibv_qp_free(loop->next);
    dpn_ibv_qp_free(loop->qp);
    loop->qp = loop->next = NULL;
    return true;
}

/* ---- failure --------------------------------------------------------------------------------- */

/* Its outstanding work counts as not done; dpn_loops_poll opens it again. */
static void fail_loop(struct dpn_receiver *rx, struct dpn_rail *rail, const char *what,
                      const char *status)
{
    struct dpn_loop *loop = &rail->loop;

    snprintf(loop->why, sizeof(loop->why), "%s: %s", what, status);
    loop->retry_ns = dp_now_ns() + dpn_backoff_ns(loop->failures, FIRST_RETRY_NS, LAST_RETRY_NS);
    rx->q.has_lost_loop = true;
    dp_log(loop->failures++ ? DP_LOG_INFO : DP_LOG_WARN, "%s: %s%s", rail->port->name, loop->why,
           is_dead(rail) ? "" : "; trying again");
    if (loop->qp)
        begin_job(rail, DPN_LOOP_CLOSING, run_closing);
}

/* If it could not be destroyed, a copy could be carried out late, after its receive is done and the
 * memory has been reused. */
static void finish_closing(struct dpn_receiver *rx, struct dpn_rail *rail)
{
    struct dpn_loop *loop = &rail->loop;

    loop->state = DPN_LOOP_IDLE;
    if (loop->job.err && !is_dead(rail))
        dpn_verbs_fail(
            &rx->q, DP_EIO,
            "%s: the loopback queue pair, which had failed (%s), could not be destroyed (%s), so "
            "it may still write to the GPU",
            rail->port->name, loop->why, strerror(loop->job.err));
    loop->next = NULL;
}

/* Linked work requests complete with the last one, which is a read of what the device wrote. */
static void post(struct dpn_receiver *rx, unsigned r, struct dpn_work work, struct ibv_send_wr *wr,
                 const char *what)
{
    struct dpn_rail *rail = &rx->q.rails[r];
    struct ibv_send_wr *bad;

    work.qp = r;
    work.epoch = rail->loop.epoch;
    for (struct ibv_send_wr *each = wr; each; each = each->next) {
        each->wr_id = dpn_work_pack(work);
        each->num_sge = 1;
        each->send_flags = each->next ? 0 : IBV_SEND_SIGNALED;
    }
    int error = rail->loop.qp ? ibv_post_send(rail->loop.qp, wr, &bad) : 0;
    if (error)
        fail_loop(rx, rail, what, strerror(error));
}

/* The data that is read is ignored; only its arrival matters. */
static struct ibv_sge to_scratch(const struct dpn_receiver *rx, unsigned r)
{
    return (struct ibv_sge){(uintptr_t)rx->q.block->scratch, 1, rx->q.rails[r].block_mr->lkey};
}

/* ---- flushes --------------------------------------------------------------------------------- */

/* Does nothing while there is no queue pair: reopen repeats it. */
static void read_back(struct dpn_receiver *rx, unsigned r, const struct dpn_flush *flush)
{
    struct ibv_sge sge = to_scratch(rx, r);
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ,
                             .sg_list = &sge,
                             .wr.rdma = {(uintptr_t)flush->at, flush->memory->mrs[r]->rkey}};

    post(rx, r, (struct dpn_work){.kind = DPN_WORK_FLUSH, .slot = flush->base.index}, &wr, "flush");
}

static void finish_read(struct dpn_receiver *rx, unsigned r, struct dpn_flush *flush)
{
    struct dpn_loop *loop = &rx->q.rails[r].loop;

    if ((int32_t)(flush->written[r] - loop->flushed) > 0)
        loop->flushed = flush->written[r];
    flush->rails &= (uint8_t)~(1u << r);
    flush->base.left--;
}

static const struct dpn_verbs_memory *memory_of(const struct dpn_piece *piece)
{
    return (const struct dpn_verbs_memory *)piece->memory;
}

/* The last piece is enough: reads do not pass writes. */
static const struct dpn_piece *find_gpu_piece(int n, const struct dpn_piece *pieces)
{
    for (int i = n - 1; i >= 0; i--)
        if (memory_of(&pieces[i]) && memory_of(&pieces[i])->type == NCCL_PTR_CUDA && pieces[i].size)
            return &pieces[i];
    return NULL;
}

static void begin(struct dpn_receiver *rx, struct dpn_flush *flush, const struct dpn_piece *piece)
{
    flush->at = piece->data;
    flush->memory = memory_of(piece);
    flush->base.left = flush->rails = 0;
    for (int r = 0; r < rx->q.rail_count; r++) {
        const struct dpn_loop *loop = &rx->q.rails[r].loop;
        if (!loop->is_wanted || loop->written == loop->flushed)
            continue;
        flush->written[r] = loop->written;
        flush->rails |= (uint8_t)(1u << r);
        flush->base.left++;
        read_back(rx, (unsigned)r, flush);
    }
}

int dpn_verbs_iflush(struct dpn_receiver *rx, int n, const struct dpn_piece *pieces,
                     struct dpn_request **out)
{
    const struct dpn_piece *piece = find_gpu_piece(n, pieces);

    if (rx->q.error)
        return dp_fail(rx->q.error, "flush: %s", rx->q.why);
    if (!piece || !rx->flushes_free)
        return piece ? dp_fail(DP_EINVAL, "more than %d flushes at once", NCCL_NET_MAX_REQUESTS)
                     : 0;
    struct dpn_flush *flush = &rx->flushes[__builtin_ctz(rx->flushes_free)];
    begin(rx, flush, piece);
    if (!flush->base.left)
        return 0; /* nothing to flush */
    rx->flushes_free &= ~(1u << flush->base.index);
    *out = &flush->base.base;
    return 0;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Any rail with a loopback queue pair, otherwise one that will have one again. */
static int choose_rail(const struct dpn_receiver *rx)
{
    int found = -1;

    for (int r = rx->q.rail_count - 1; r >= 0; r--)
        if (rx->q.rails[r].loop.qp || (!is_dead(&rx->q.rails[r]) && found < 0))
            found = r;
    return found;
}

/* The acknowledgement of a write says that the device has the data, not that it is in the GPU's
 * memory. The device carries out a read of its last byte after the write, so its completion proves
 * that. */
static void copy(struct dpn_receiver *rx, struct dpn_recv *recv, unsigned sub)
{
    struct dpn_recv_buffer *buffer = &recv->buffers[sub];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)buffer->memory;
    const int r = choose_rail(rx);

    if (r < 0) {
        dpn_verbs_fail(&rx->q, DP_EIO,
                       "no device is left that could copy an eager message to the GPU");
        return;
    }
    buffer->copy_rail = (uint8_t)r;
    const uintptr_t to = (uintptr_t)buffer->data;
    const uint32_t rkey = memory->mrs[r]->rkey;
    struct ibv_sge from = {(uintptr_t)buffer->from, (uint32_t)buffer->size,
                           rx->q.rails[r].block_mr->lkey};
    struct ibv_sge back = to_scratch(rx, (unsigned)r);
    struct ibv_send_wr read = {
        .opcode = IBV_WR_RDMA_READ, .sg_list = &back, .wr.rdma = {to + buffer->size - 1, rkey}};
    struct ibv_send_wr write = {
        .opcode = IBV_WR_RDMA_WRITE, .sg_list = &from, .next = &read, .wr.rdma = {to, rkey}};
    post(rx, (unsigned)r,
         (struct dpn_work){.kind = DPN_WORK_COPY,
                           .slot = recv->base.index,
                           .stripe = sub,
                           .requests = buffer->copy_slot},
         &write, "copy to the GPU");
}

/* The CPU may not have access to that memory, so the device copies from itself to itself. */
void dpn_verbs_copy_to_gpu(struct dpn_receiver *rx, struct dpn_recv *recv, unsigned sub,
                           const void *from, unsigned slot)
{
    recv->buffers[sub].from = from;
    recv->buffers[sub].copy_slot = (uint8_t)slot;
    copy(rx, recv, sub);
}

static bool is_being_copied(const struct dpn_recv_buffer *buffer, unsigned r)
{
    return buffer->from && !buffer->done && buffer->copy_rail == r;
}

/* ---- completions ----------------------------------------------------------------------------- */

/* Completions of an earlier queue pair are ignored. */
bool dpn_loop_take(struct dpn_receiver *rx, struct dpn_work work, const struct ibv_wc *wc)
{
    struct dpn_rail *rail = &rx->q.rails[work.qp];

    if (!rail->loop.qp || rail->loop.epoch != work.epoch)
        return false;
    if (wc->status) {
        fail_loop(rx, rail, work.kind == DPN_WORK_FLUSH ? "flush" : "copy to the GPU",
                  dpn_ibv.wc_status_str(wc->status));
        return false;
    }
    rail->loop.failures = 0;
    rail->loop.asked_ns = 0;
    if (work.kind == DPN_WORK_FLUSH)
        finish_read(rx, work.qp, &rx->flushes[work.slot]);
    return true;
}

/* ---- polling --------------------------------------------------------------------------------- */

static bool is_flushing(const struct dpn_receiver *rx, unsigned r)
{
    for (uint32_t used = ~rx->flushes_free; used; used &= used - 1)
        if (rx->flushes[__builtin_ctz(used)].rails >> r & 1)
            return true;
    return false;
}

static void flush_again(struct dpn_receiver *rx, unsigned r)
{
    for (uint32_t used = ~rx->flushes_free; used; used &= used - 1) {
        const struct dpn_flush *flush = &rx->flushes[__builtin_ctz(used)];
        if (flush->rails >> r & 1)
            read_back(rx, r, flush);
    }
}

static void copy_again(struct dpn_receiver *rx, unsigned r)
{
    for (uint32_t used = ~rx->free; used && !rx->q.error; used &= used - 1) {
        struct dpn_recv *recv = &rx->recvs[__builtin_ctz(used)];
        for (unsigned sub = 0; sub < recv->count && !rx->q.error; sub++)
            if (is_being_copied(&recv->buffers[sub], r))
                copy(rx, recv, sub);
    }
}

/* The timeout counts from the first read that is outstanding, or from the last completion. */
static void check_timeouts(struct dpn_receiver *rx, struct dpn_rail *rail, int64_t now_ns)
{
    struct dpn_loop *loop = &rail->loop;

    if (!is_flushing(rx, (unsigned)(rail - rx->q.rails)))
        loop->asked_ns = 0;
    else if (is_dead(rail))
        dpn_verbs_fail(&rx->q, DP_EIO,
                       "%s has failed, and with it what it wrote to the GPU may be lost: "
                       "look at the kernel's log",
                       rail->port->name);
    else if (!loop->asked_ns)
        loop->asked_ns = now_ns;
    else if (now_ns - loop->asked_ns > dpn_timeout_ns())
        dpn_verbs_fail(&rx->q, DP_ETIMEDOUT,
                       "%s has not flushed what it wrote to the GPU for %lld s "
                       "(DUALPIPE_NET_TIMEOUT)",
                       rail->port->name, (long long)dpn_options.timeout_s);
}

static void finish_opening(struct dpn_receiver *rx, struct dpn_rail *rail)
{
    struct dpn_loop *loop = &rail->loop;

    loop->state = DPN_LOOP_IDLE;
    if (loop->job.err) {
        fail_loop(rx, rail, "queue pair for flushes", loop->job.why);
        return;
    }
    use(loop, loop->next);
    loop->next = NULL;
    flush_again(rx, (unsigned)(rail - rx->q.rails));
    copy_again(rx, (unsigned)(rail - rx->q.rails));
}

static void finish_job(struct dpn_receiver *rx, struct dpn_rail *rail)
{
    if (rail->loop.state == DPN_LOOP_CLOSING)
        finish_closing(rx, rail);
    else if (rail->loop.state == DPN_LOOP_OPENING)
        finish_opening(rx, rail);
}

static void poll_one(struct dpn_receiver *rx, struct dpn_rail *rail, int64_t now_ns)
{
    check_timeouts(rx, rail, now_ns);
    if (rx->q.error)
        return;
    if (dpn_job_is_running(&rail->loop.job.base))
        return;
    finish_job(rx, rail);
    if (rx->q.error)
        return;
    if (rail->loop.qp) {
        if (is_dead(rail))
            begin_job(rail, DPN_LOOP_CLOSING, run_closing);
        return;
    }
    copy_again(rx, (unsigned)(rail - rx->q.rails)); /* over another rail, if there is one */
    if (!is_dead(rail) && now_ns >= rail->loop.retry_ns)
        begin_job(rail, DPN_LOOP_OPENING, run_opening);
}

void dpn_loops_poll(struct dpn_receiver *rx, int64_t now_ns)
{
    rx->q.has_lost_loop = false;
    for (int r = 0; r < rx->q.rail_count && !rx->q.error; r++) {
        struct dpn_rail *rail = &rx->q.rails[r];
        if (!rail->loop.is_wanted)
            continue;
        poll_one(rx, rail, now_ns);
        rx->q.has_lost_loop |= !rail->loop.qp && (!is_dead(rail) || rail->loop.state);
    }
}
