/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.c - the transport: opens a connection, tests requests, closes it.
 */
#include "nccl-plugin/verbs/verbs.h"

#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/ibv_qp.h"
#include "nccl-plugin/verbs/state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t timeout_ns(void)
{
    return dpn_options.timeout_s * DP_NS_PER_S;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Both sides start with the same values. */
static void init_counters(struct dpn_verbs *v)
{
    const uint32_t n = dpn_verbs_state.first_count;

    v->control.channel.sent = v->control.channel.acked = v->control.channel.received = n;
    v->send.cts_read = v->recv.cts_made = v->recv.cts_new = v->recv.cts_sent = n;
    v->send.eager_sent = v->recv.eager_seen = v->eager_taken = v->recv.credited = n;
    v->recv.buffers_made = v->recv.buffers_closed = n;
    v->recv.credit_every = DPN_EAGER_SLOTS / 2;
    for (int i = 0; i < DPN_MAX_QPS; i++)
        v->queues.qps[i].epoch = (uint16_t)n;
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        v->recv.recvs[i].generation = n % DPN_GENERATIONS;
    for (int r = 0; r < DPN_MAX_RAILS; r++) {
        v->queues.rails[r].loop.epoch = (uint16_t)n;
        v->queues.rails[r].loop.written = v->queues.rails[r].loop.flushed = n;
    }
}

static int new_state(struct dpn_comm *comm)
{
    struct dpn_verbs *v = calloc(1, sizeof(*v));

    if (!v)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    v->comm = comm;
    v->queues.is_sender = comm->is_sender;
    v->recv.free = v->recv.flushes_free = UINT32_MAX;
    v->control.channel.is_resumed = true;
    init_counters(v);
    for (unsigned i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        v->recv.recvs[i].base = dpn_verbs_new_request(v, DPN_RECV, i);
        v->recv.flushes[i].base = dpn_verbs_new_request(v, DPN_FLUSH, i);
    }
    comm->state = v;
    int err = dpn_net_device(comm->dev, &v->choice.device);
    if (!err)
        dpn_choice_gather(&v->choice, v->queues.is_sender);
    return err;
}

/* Without queue pairs only control messages are received; afterwards dpn_verbs_progress does that.
 */
static int open_verbs(struct dpn_comm *comm)
{
    int err = comm->state ? 0 : new_state(comm);
    struct dpn_verbs *v = comm->state;

    if (err)
        return err;
    if (v->step == DPN_STEP_QPS)
        dpn_verbs_progress(v);
    else
        comm->wire->ops->progress(comm->wire);
    if (v->error)
        return dp_fail(v->error, "connecting over RDMA: %s", v->why);
    err = dpn_verbs_handshake(v);
    if (!err)
        dpn_watchdog_add(v);
    if (err == DP_EAGAIN && comm->wire->error)
        return dp_fail(comm->wire->error, "connecting over RDMA: the peer is gone: %s",
                       comm->wire->why);
    return err;
}

static bool close_qps(struct dpn_verbs *v)
{
    const int64_t until_ns = dp_now_ns() + timeout_ns();
    bool have_ended = dpn_qps_close(&v->queues, until_ns);

    for (int r = 0; r < v->queues.rail_count; r++)
        have_ended &= dpn_loop_close(&v->queues.rails[r], until_ns);
    return have_ended;
}

static void free_state(struct dpn_verbs *v)
{
    dpn_rails_close(&v->queues);
    dpn_control_free_all(v);
    free(v->queues.block);
    free(v);
}

static void close_verbs(struct dpn_comm *comm)
{
    struct dpn_verbs *v = comm->state;

    if (!v)
        return;
    dpn_watchdog_remove(v);
    dpn_verbs_release_acceptor(v);
    dpn_channel_close(v);
    const bool has_ended = close_qps(v);
    /* The wire uses control messages in flight and the buffer of the next one until it is closed.
     * If both sides have declined there are none. */
    if (v->step != DPN_STEP_DECLINED || dpn_control_is_sending(v)) {
        dpn_control_drain(v);
        dp_wire_close(comm->wire);
        comm->wire = NULL;
    }
    comm->state = NULL;
    if (has_ended)
        free_state(v);
    else
        dp_log(DP_LOG_WARN,
               "%s has not answered for %lld s (DUALPIPE_NET_TIMEOUT); what a "
               "connection over it has in memory is kept",
               v->choice.device->name, (long long)dpn_options.timeout_s);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* After a call that has begun no request: 0, and NCCL calls again, or the error that ended the
 * connection. */
static int go_on(struct dpn_verbs *v, const char *what)
{
    if (!v->error)
        dpn_verbs_progress(v);
    return v->error && dpn_verbs_has_ended(v) ? dp_fail(v->error, "%s: %s", what, v->why) : 0;
}

static int isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out)
{
    int err = dpn_verbs_isend(comm, piece, out);

    return err || *out ? err : go_on(comm->state, "send");
}

static int irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                 struct dpn_request **out)
{
    int err = dpn_verbs_irecv(comm, n, pieces, out);

    return err || *out ? err : go_on(comm->state, "receive");
}

/* Without a request there is nothing to flush. */
static int iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                  struct dpn_request **out)
{
    struct dpn_verbs *v = comm->state;
    int err = dpn_verbs_iflush(comm, n, pieces, out);

    if (!v->error)
        return err;
    dpn_verbs_has_ended(v);
    return err ? err : dp_fail(v->error, "flush: %s", v->why);
}

/* ---- test ------------------------------------------------------------------------------------ */

static bool is_free(const struct dpn_verbs_request *req)
{
    const struct dpn_verbs *v = req->verbs;

    if (req->kind == DPN_SEND)
        return !(v->send.sends_used[req->index / 64] >> req->index % 64 & 1);
    return (req->kind == DPN_FLUSH ? v->recv.flushes_free : v->recv.free) >> req->index & 1;
}

static void finish(struct dpn_verbs_request *req, int *sizes)
{
    struct dpn_verbs *v = req->verbs;
    switch (req->kind) {
    case DPN_SEND:
        v->send.sends_used[req->index / 64] &= ~(UINT64_C(1) << req->index % 64);
        if (sizes)
            sizes[0] = (int)v->send.sends[req->index].size;
        break;
    case DPN_RECV:
        v->recv.free |= 1u << req->index;
        for (unsigned i = 0; sizes && i < v->recv.recvs[req->index].count; i++)
            sizes[i] = (int)v->recv.recvs[req->index].buffers[i].size;
        break;
    case DPN_FLUSH:
        v->recv.flushes_free |= 1u << req->index;
        break;
    }
}

static int test(struct dpn_request *request, bool *done, int *sizes)
{
    static const char *const names[] = {"send", "receive", "flush"};
    struct dpn_verbs_request *req = (struct dpn_verbs_request *)request;
    struct dpn_verbs *v = req->verbs;

    if (is_free(req))
        return dp_fail(DP_EINVAL, "test of a request that is done already");
    if (req->left && !v->error)
        dpn_verbs_progress(v);
    *done = !req->left;
    if (*done)
        finish(req, sizes);
    else if (v->error && dpn_verbs_has_ended(v))
        return dp_fail(v->error, "%s: %s", names[req->kind], v->why);
    return 0;
}

const struct dpn_transport dpn_verbs = {
    .name = "verbs",
    .open = open_verbs,
    .reg = dpn_verbs_reg,
    .dereg = dpn_verbs_dereg,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close = close_verbs,
};
