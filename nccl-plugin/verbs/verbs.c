/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.c - the transport: opens a connection, tests requests, closes it; and what watches it
 * meanwhile.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "nccl-plugin/verbs/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- connections that are not in use --------------------------------------------------------- */

/* Progress of connections that are not in use. NCCL calls a connection only while it
 * has work for it: a receiver whose receives are all done is not called, although the sender, whose
 * queue pair failed before the last acknowledgement, needs its report. So one thread of the process
 * polls every connection that has not been polled, four times a second, and accepts peers that
 * connect again (verbs/control.c). It ends with the last connection.
 */

static const int64_t ROUND_NS = 250 * DP_NS_PER_MS;
/* While a queue pair is connected or destroyed, which goes step by step. */
static const int64_t SOON_NS = 5 * DP_NS_PER_MS;

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* taken after a connection's lock, which is only tried here */
static struct dpn_verbs *watched;
static bool is_running;

/* Returns after how long it is to be looked at again. */
static int64_t check(struct dpn_verbs *v)
{
    struct dpn_comm *comm = v->q.comm;

    if (pthread_mutex_trylock(&comm->lock))
        return ROUND_NS; /* another thread makes progress */
    if (v->q.error)
        dpn_verbs_has_ended(v);
    else if (dp_now_ns() - v->polled_ns >= (dpn_qps_are_changing(v) ? SOON_NS : ROUND_NS))
        dpn_verbs_progress_all(v);
    const int64_t next_ns = dpn_qps_are_changing(v) ? SOON_NS : ROUND_NS;
    pthread_mutex_unlock(&comm->lock);
    return next_ns;
}

/* A sender connects again after it has lost the wire for control messages. A connection whose label
 * belongs to no receiver is a mistake, or only tests whether this process is alive (label 0): it is
 * closed. */
static void hand_over(struct dp_wire *wire, uint64_t label)
{
    for (struct dpn_verbs *v = label ? watched : NULL; v && wire; v = v->next_watched)
        if (!v->q.is_sender && v->control.channel.label == label)
            wire = atomic_exchange(&v->control.channel.accepted, wire);
    dp_wire_close(wire);
}

static void accept_all(void)
{
    struct dp_wire *wire;
    uint64_t label;

    while (!dpn_acceptor_accept(&label, &wire))
        hand_over(wire, label);
}

/* Returns how long to sleep; 0: no connection is left. */
static int64_t check_all(void)
{
    int64_t sleep_ns = ROUND_NS;

    pthread_mutex_lock(&lock);
    accept_all();
    for (struct dpn_verbs *v = watched; v; v = v->next_watched) {
        const int64_t next_ns = check(v);
        sleep_ns = next_ns < sleep_ns ? next_ns : sleep_ns;
    }
    is_running = watched;
    if (!is_running)
        sleep_ns = 0;
    pthread_mutex_unlock(&lock);
    return sleep_ns;
}

static void *run(void *none)
{
    (void)none;
    for (int64_t sleep_ns = ROUND_NS; sleep_ns; sleep_ns = check_all())
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
    return NULL;
}

/* ---- forks: the thread, what it watched and the acceptors stay with the parent --------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    dpn_acceptors_lock();
}

static void after_fork(void)
{
    dpn_acceptors_unlock();
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    dpn_acceptors_forget();
    watched = NULL;
    is_running = false;
    after_fork();
}

/* Connections that fail in the thread begin jobs under the lock, so a fork takes theirs after it. */
static void add_handlers(void)
{
    dpn_jobs_handle_forks();
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static void handle_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, add_handlers);
}

static void watch(struct dpn_verbs *v)
{
    pthread_mutex_lock(&lock);
    v->next_watched = watched;
    v->is_watched = true;
    watched = v;
    int error = is_running ? 0 : dp_thread_start("dp-watchdog", run, NULL, NULL);
    is_running = !error;
    pthread_mutex_unlock(&lock);
    if (error)
        dp_log(DP_LOG_WARN, "no thread for connections that are not in use: %s", strerror(error));
}

static void unwatch(struct dpn_verbs *v)
{
    pthread_mutex_lock(&lock);
    for (struct dpn_verbs **at = &watched; v->is_watched && *at; at = &(*at)->next_watched)
        if (*at == v) {
            *at = v->next_watched;
            break;
        }
    v->is_watched = false;
    pthread_mutex_unlock(&lock);
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Both sides start with the same values. */
static void init_queues(struct dpn_queues *q, struct dpn_comm *comm)
{
    const uint32_t n = dpn_verbs_state.first_count;

    q->comm = comm;
    q->is_sender = comm->is_sender;
    for (int i = 0; i < DPN_MAX_QPS; i++)
        q->qps[i].epoch = (uint16_t)n;
    for (int r = 0; r < DPN_MAX_RAILS; r++) {
        q->rails[r].loop.epoch = (uint16_t)n;
        q->rails[r].loop.written = q->rails[r].loop.flushed = n;
    }
}

static void init_receiver(struct dpn_receiver *rx)
{
    const uint32_t n = dpn_verbs_state.first_count;

    rx->cts_made = rx->cts_new = rx->cts_sent = n;
    rx->eager_seen = rx->eager_taken = rx->credited = n;
    rx->buffers_made = rx->buffers_closed = n;
    rx->credit_every = DPN_EAGER_SLOTS / 2;
    rx->free = rx->flushes_free = UINT32_MAX;
    for (unsigned i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        rx->recvs[i].generation = n % DPN_GENERATIONS;
        rx->recvs[i].base = dpn_verbs_new_request(&rx->q, DPN_RECV, i);
        rx->flushes[i].base = dpn_verbs_new_request(&rx->q, DPN_FLUSH, i);
    }
}

static void init_state(struct dpn_verbs *v, struct dpn_comm *comm)
{
    struct dpn_channel *ch = &v->control.channel;

    init_queues(&v->q, comm);
    ch->sent = ch->acked = ch->received = dpn_verbs_state.first_count;
    ch->is_resumed = true;
    if (comm->is_sender)
        v->send.cts_read = v->send.eager_sent = v->send.eager_taken = dpn_verbs_state.first_count;
    else
        init_receiver(&v->recv);
}

static int new_state(struct dpn_comm *comm)
{
    struct dpn_verbs *v = calloc(1, sizeof(*v));

    if (!v)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    init_state(v, comm);
    comm->state = v;
    handle_forks(); /* before there is an acceptor */
    int err = dpn_net_device(comm->dev, &v->choice.device);
    if (!err)
        dpn_choice_gather(&v->choice, v->q.is_sender);
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
    if (v->q.error)
        return dp_fail(v->q.error, "connecting over RDMA: %s", v->q.why);
    err = dpn_verbs_handshake(v);
    if (!err)
        watch(v);
    if (err == DP_EAGAIN && comm->wire->error)
        return dp_fail(comm->wire->error, "connecting over RDMA: the peer is gone: %s",
                       comm->wire->why);
    return err;
}

static bool close_qps(struct dpn_verbs *v)
{
    const int64_t until_ns = dp_now_ns() + dpn_timeout_ns();
    bool have_ended = dpn_qps_close(&v->q, until_ns);

    for (int r = 0; r < v->q.rail_count; r++)
        have_ended &= dpn_loop_close(&v->q.rails[r], until_ns);
    return have_ended;
}

static void free_state(struct dpn_verbs *v)
{
    dpn_rails_close(&v->q);
    dpn_control_free_all(v);
    free(v->q.block);
    free(v);
}

static void close_verbs(struct dpn_comm *comm)
{
    struct dpn_verbs *v = comm->state;

    if (!v)
        return;
    unwatch(v);
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

/* ---- memory ---------------------------------------------------------------------------------- */

static int reg(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out)
{
    return dpn_verbs_reg(&((const struct dpn_verbs *)comm->state)->q, region, out);
}

static bool recv_uses(const struct dpn_recv *recv, const struct dpn_memory *memory)
{
    for (unsigned i = 0; i < recv->count; i++)
        if (!recv->buffers[i].done && recv->buffers[i].memory == memory)
            return true;
    return false;
}

static bool flush_uses(const struct dpn_receiver *rx, const struct dpn_memory *memory)
{
    for (uint32_t used = ~rx->flushes_free; used; used &= used - 1) {
        const struct dpn_flush *flush = &rx->flushes[__builtin_ctz(used)];
        if (flush->base.left && &flush->memory->base == memory)
            return true;
    }
    return false;
}

static bool receiver_uses(const struct dpn_receiver *rx, const struct dpn_memory *memory)
{
    for (uint32_t used = ~rx->free; used; used &= used - 1)
        if (recv_uses(&rx->recvs[__builtin_ctz(used)], memory))
            return true;
    return flush_uses(rx, memory);
}

static bool sender_uses(const struct dpn_sender *tx, const struct dpn_memory *memory)
{
    for (unsigned i = dpn_verbs_next_send(tx, 0); i < DPN_SENDS; i = dpn_verbs_next_send(tx, i + 1))
        if (tx->sends[i].base.left && &tx->sends[i].memory->base == memory)
            return true;
    return false;
}

static bool is_in_flight(const struct dpn_verbs *v, const struct dpn_memory *memory)
{
    return v->q.is_sender ? sender_uses(&v->send, memory) : receiver_uses(&v->recv, memory);
}

/* Whether nothing uses it any more. A connection that does ends; then its queue pairs are destroyed
 * first. */
static bool has_given_back(struct dpn_comm *comm, const struct dpn_memory *memory)
{
    bool has_ended = true;

    pthread_mutex_lock(&comm->lock);
    struct dpn_verbs *v = comm->state;
    if (v && is_in_flight(v, memory))
        dpn_verbs_fail(&v->q, DP_EABORTED, "memory was deregistered while a request still used it");
    if (v && v->q.error)
        has_ended = dpn_verbs_has_ended(v);
    pthread_mutex_unlock(&comm->lock);
    return has_ended;
}

static void dereg(struct dpn_comm *comm, struct dpn_memory *base)
{
    static const struct timespec pause = {.tv_nsec = 100 * DP_NS_PER_US};

    while (!has_given_back(comm, base))
        nanosleep(&pause, NULL);
    dpn_verbs_memory_free((struct dpn_verbs_memory *)base);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* After a call that has begun no request: 0, and NCCL calls again, or the error that ended the
 * connection. */
static int go_on(struct dpn_verbs *v, const char *what)
{
    if (!v->q.error)
        dpn_verbs_progress(v);
    return v->q.error && dpn_verbs_has_ended(v) ? dp_fail(v->q.error, "%s: %s", what, v->q.why) : 0;
}

static int isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out)
{
    struct dpn_verbs *v = comm->state;
    int err = dpn_verbs_isend(&v->send, piece, out);

    if (!err)
        return *out ? 0 : go_on(v, "send");
    char why[512];
    snprintf(why, sizeof(why), "%s", dp_last_error()); /* which telling the peer may replace */
    dpn_verbs_send_refusal(v);
    return dp_fail_quietly(err, "%s", why);
}

static int irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                 struct dpn_request **out)
{
    struct dpn_verbs *v = comm->state;
    int err = dpn_verbs_irecv(&v->recv, n, pieces, out);

    return err || *out ? err : go_on(v, "receive");
}

/* Without a request there is nothing to flush. */
static int iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                  struct dpn_request **out)
{
    struct dpn_verbs *v = comm->state;
    int err = dpn_verbs_iflush(&v->recv, n, pieces, out);

    if (!v->q.error)
        return err;
    dpn_verbs_has_ended(v);
    return err ? err : dp_fail(v->q.error, "flush: %s", v->q.why);
}

/* ---- test ------------------------------------------------------------------------------------ */

static bool is_free(const struct dpn_verbs_request *req)
{
    const struct dpn_verbs *v = (const struct dpn_verbs *)req->q;

    if (req->kind == DPN_SEND)
        return !(v->send.sends_used[req->index / 64] >> req->index % 64 & 1);
    return (req->kind == DPN_FLUSH ? v->recv.flushes_free : v->recv.free) >> req->index & 1;
}

static void finish(struct dpn_verbs_request *req, int *sizes)
{
    struct dpn_verbs *v = (struct dpn_verbs *)req->q;
    switch (req->kind) {
    case DPN_SEND:
        v->q.open_count--;
        v->send.sends_used[req->index / 64] &= ~(UINT64_C(1) << req->index % 64);
        if (sizes)
            sizes[0] = (int)v->send.sends[req->index].size;
        break;
    case DPN_RECV:
        v->q.open_count--;
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
    struct dpn_verbs *v = (struct dpn_verbs *)req->q;

    if (is_free(req))
        return dp_fail(DP_EINVAL, "test of a request that is done already");
    if (req->left && !v->q.error)
        dpn_verbs_progress(v);
    *done = !req->left;
    if (*done)
        finish(req, sizes);
    else if (v->q.error && dpn_verbs_has_ended(v))
        return dp_fail(v->q.error, "%s: %s", names[req->kind], v->q.why);
    return 0;
}

const struct dpn_transport dpn_verbs = {
    .name = "verbs",
    .open = open_verbs,
    .reg = reg,
    .dereg = dereg,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close = close_verbs,
};
