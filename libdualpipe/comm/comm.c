/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.c - what all communicators have in common: arguments are checked here, and here is the one
 * loop that waits.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/internal.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "comm/comm_core.h"
#include "comm/comm_ops.h"
#include "comm/engine.h"
#include "comm/settings.h"

#include <inttypes.h>
#include <stdio.h>

static const int64_t POLL_EVERY_NS = DP_NS_PER_MS;
enum { QUICK_ENDS = 64 }; /* of collectives in succession, all but one of them */

static const char *const channel_names[DP_CHANNELS] = {"activation", "gradient", "reduce",
                                                       "control", "collective"};

void dp_comm_init(struct dp_comm *comm, const struct dp_comm_ops *ops, int rank, int size,
                  int ranks_here, const struct dp_comm_settings *settings)
{
    *comm = (struct dp_comm){
        .ops = ops,
        .rank = rank,
        .size = size,
        .world = comm,
        .users = 1,
        .contexts = 1,
        .deadline_ns = settings->timeout_ms * DP_NS_PER_MS,
        .spin_ns = dp_comm_spin_ns(settings, ranks_here),
        .doing = &comm->own_doing,
    };
}

/* The rank in comm, or -1 if it is not one of its ranks. */
static int rank_in(const struct dp_comm *comm, int world_rank)
{
    for (int i = 0; comm->ranks && i < comm->size; i++)
        if (comm->ranks[i] == world_rank)
            return i;
    return comm->ranks ? -1 : world_rank;
}

static int explain_abort(struct dp_comm *comm, int err)
{
    struct dp_abort why;

    if (comm->world->hooks)
        err = comm->world->hooks->explain(comm, err);
    if (err != DP_EABORTED || !comm->ops->aborted(comm->world, &why))
        return err;
    why.rank = rank_in(comm, why.rank);
    dp_fail_quietly(DP_EABORTED, "the run was ended by rank %d (%s): %s", why.rank,
                    dp_strerror(why.error), why.text);
    if (!comm->world->has_said_end && why.rank != comm->world->rank)
        dp_log(DP_LOG_ERROR, "rank %d: %s", comm->world->rank, dp_last_error());
    comm->world->has_said_end = true;
    return err;
}

/* DP_EABORTED: add the culprit to the text. All ranks log the same once: the one that failed may have
 * been killed. */
static inline int explain(struct dp_comm *comm, int err)
{
    return err == DP_EABORTED || err == DP_ECOMM ? explain_abort(comm, err) : err;
}

static int refuse_transfer(const struct dp_comm *comm, int peer, int channel, size_t len,
                           const struct dp_request *req)
{
    if (!comm || !req)
        return dp_fail(DP_EINVAL, "a transfer without a %s", comm ? "request" : "comm");
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return dp_fail(DP_EINVAL, "peer %d: expected a rank from 0 to %d other than the own, %d",
                       peer, comm->size - 1, comm->rank);
    if (channel < 0 || channel >= DP_CHANNELS)
        return dp_fail(DP_EINVAL, "channel %d: expected 0 to %d", channel, DP_CHANNELS - 1);
    return dp_fail(DP_EINVAL, "no buffer for a message of %zu bytes (peer %d, %s)", len, peer,
                   channel_names[channel]);
}

static inline int check_transfer(const struct dp_comm *comm, int peer, int channel, const void *buf,
                                 size_t len, const struct dp_request *req)
{
    if (!comm || !req || peer < 0 || peer >= comm->size || peer == comm->rank || channel < 0 ||
        channel >= DP_CHANNELS || (!buf && len))
        return refuse_transfer(comm, peer, channel, len, req);
    return 0;
}

int dp_comm_check_transfer(const struct dp_comm *comm, int peer, int channel, const void *buf,
                           size_t len, const struct dp_request *req)
{
    return check_transfer(comm, peer, channel, buf, len, req);
}

int dp_comm_enter(struct dp_comm *comm, struct dp_engine **engine)
{
    struct dp_comm *world = comm->world;
    int err = 0;

    dp_comm_progress_stop(comm);
    if (world->ops->aborted(world, NULL) || comm->is_revoked)
        return explain(comm, DP_EABORTED);
    if (!world->engine)
        err = dp_engine_new(world, &world->engine);
    *engine = world->engine;
    return err;
}

/* In a group that survives. peer -1: any. */
static inline int check_peer(struct dp_comm *comm, int peer)
{
    const int world_rank = peer < 0 ? 0 : dp_comm_world_rank(comm, peer);

    if (comm->is_revoked)
        return explain(comm, DP_EABORTED);
    if (peer < 0 || !dp_comm_has_lost(comm->world, world_rank, false))
        return 0;
    /* The whole group may have ended since. */
    return explain(comm, comm->world->hooks->fail(comm->world, world_rank));
}

int dp_comm_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                  size_t len, struct dp_request *req)
{
    int err = check_transfer(comm, peer, channel, buf, len, req);

    if (!err)
        err = check_peer(comm, peer);
    if (err)
        return err;
    dp_comm_progress_stop(comm);
    return explain(comm, comm->ops->isend(comm->world, dp_comm_world_rank(comm, peer),
                                          comm->first_channel + channel, tag, buf, len, req));
}

int dp_comm_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf, size_t len,
                  struct dp_request *req)
{
    int err = check_transfer(comm, peer, channel, buf, len, req);

    if (!err)
        err = check_peer(comm, peer);
    if (err)
        return err;
    dp_comm_progress_stop(comm);
    return explain(comm, comm->ops->irecv(comm->world, dp_comm_world_rank(comm, peer),
                                          comm->first_channel + channel, tag, buf, len, req));
}

int dp_comm_irecv_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                      struct dp_request *req)
{
    const int other = comm && !comm->rank;
    int err =
        check_transfer(comm, peer == DP_ANY_SOURCE ? other : peer, channel, buf, room, req);

    if (!err)
        err = check_peer(comm, peer);
    if (err)
        return err;
    dp_comm_progress_stop(comm);
    return explain(comm,
                   comm->ops->irecv_any(comm->world, peer < 0 ? -1 : dp_comm_world_rank(comm, peer),
                                        comm->first_channel + channel, buf, room, req));
}

void dp_comm_received(const struct dp_comm *comm, const struct dp_request *req,
                      struct dp_received *out)
{
    comm->ops->received(comm->world, req, out);
    out->peer = rank_in(comm, out->peer);
}

int dp_comm_check_other(int peer, bool any_tag, uint64_t tag, size_t room, uint64_t met_tag,
                        size_t met_len)
{
    if (any_tag && met_len > room)
        return dp_fail(DP_EMISMATCH, "message of rank %d: expected at most %zu bytes, it has %zu",
                       peer, room, met_len);
    if (any_tag)
        return 0;
    return dp_fail(DP_EMISMATCH,
                   "message of rank %d: expected tag %" PRIu64 " and %zu bytes, it has tag %" PRIu64
                   " and %zu bytes",
                   peer, tag, room, met_tag, met_len);
}

/* ---- testing --------------------------------------------------------------------------------- */

static inline bool is_collective(const struct dp_request *req)
{
    return ((const struct dp_request_head *)req)->collective;
}

/* Move messages, and with them the collectives. An abort ends these too. */
static int progress(struct dp_comm *world, int waiting_for)
{
    int err = world->ops->progress(world, waiting_for);

    if (!world->engine || !dp_engine_busy(world->engine))
        return err;
    if (err)
        dp_engine_drop(world->engine, NULL, err);
    else
        dp_engine_progress(world->engine);
    return err;
}

/* Without progress, which would publish that the rank waits for none. */
static int look_at_collective(struct dp_comm *world, struct dp_request *req)
{
    struct dp_comm *comm = dp_engine_comm(req);
    int err = dp_engine_test(world->engine, req);

    if (err != DP_ECOMM || !world->hooks)
        return err;
    const int dead = comm ? world->hooks->find_dead(comm) : -1;
    if (dead >= 0)
        return world->hooks->fail(world, dead);
    return dp_fail_quietly(err, "a collective was given up by another rank of the communicator");
}

/* A message that has come may be all that the collective waits for; what else there is to look after
 * takes several clocks, longer than a short collective. It has its turn all the same: a rank may do
 * nothing but collectives that end so. */
static bool finish_quickly(struct dp_comm *world)
{
    if (!dp_engine_ready(world->engine) || ++world->quick_ends % QUICK_ENDS == 0)
        return false;
    dp_engine_progress(world->engine);
    return true;
}

static int test_collective(struct dp_comm *world, struct dp_request *req)
{
    int err = look_at_collective(world, req);

    if (err == DP_EAGAIN && finish_quickly(world))
        err = look_at_collective(world, req);
    if (err != DP_EAGAIN)
        return err;
    progress(world, -1);
    return look_at_collective(world, req);
}

static inline int test(struct dp_comm *world, struct dp_request *req)
{
    if (is_collective(req))
        return test_collective(world, req);
    int err = world->ops->test(world, req);
    if (err == DP_EAGAIN && world->engine && dp_engine_busy(world->engine))
        dp_engine_progress(world->engine);
    return err;
}

static inline int check_batch(const struct dp_comm *comm, const char *what)
{
    return comm->world->in_batch ? dp_fail(DP_EINVAL, "%s between begin and commit", what) : 0;
}

int dp_comm_test(struct dp_comm *comm, struct dp_request *req)
{
    if (!comm || !req)
        return dp_fail(DP_EINVAL, "a test without a %s", comm ? "request" : "comm");
    int err = check_batch(comm, "a test");
    if (err)
        return err;
    dp_comm_progress_stop(comm);
    return explain(comm, test(comm->world, req));
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* In a group that survives only this request, and those that share its link. */
static void cancel(struct dp_comm *world, struct dp_request *req)
{
    if (!is_collective(req)) {
        world->ops->survival->cancel(world, req);
        return;
    }
    dp_engine_cancel(world->engine, req, DP_ETIMEDOUT);
    dp_engine_test(world->engine, req); /* gives it back */
}

static int give_up(struct dp_comm *world, struct dp_request *req, int peer, int64_t waited_ns)
{
    struct dp_abort why = {.rank = peer, .error = DP_ETIMEDOUT};
    char source[32] = "a message of any rank", connection[sizeof(why.text)] = "";

    if (peer >= 0)
        dp_snprintf(source, sizeof(source), "rank %d", peer);
    if (peer >= 0 && world->ops->describe)
        world->ops->describe(world, peer, connection, sizeof(connection));
    dp_snprintf(why.text, sizeof(why.text), "rank %d waited %.1f s in vain for %s%s", world->rank,
                (double)waited_ns / DP_NS_PER_S, source, connection);
    if (world->hooks) {
        world->silent = peer + 1;
        cancel(world, req);
        return dp_fail(DP_ETIMEDOUT, "%s (DUALPIPE_COMM_TIMEOUT_MS says how long to wait)",
                       why.text);
    }
    world->ops->abort(world, &why);
    world->ops->aborted(world, &why);
    if (world->engine)
        dp_engine_drop(world->engine, NULL, DP_ETIMEDOUT);
    return dp_fail(DP_ETIMEDOUT, "%s (DUALPIPE_COMM_TIMEOUT_MS says how long to wait)", why.text);
}

/* The caller wants the wait to end. */
static int interrupt(struct dp_comm *world, int error)
{
    struct dp_abort why = {.rank = world->rank, .error = error < 0 ? error : DP_EINTERRUPTED};

    dp_snprintf(why.text, sizeof(why.text), "interrupted");
    world->ops->abort(world, &why);
    if (world->engine)
        dp_engine_drop(world->engine, NULL, why.error);
    return dp_fail(why.error, "a wait was interrupted by the caller's poll function");
}

/* What a wait is about: the caller's request and deadline; the transport and what it looks at. */
struct wait {
    struct dp_comm *comm, *world;
    struct dp_request *req;
    int peer; /* of the world; -1: it follows from the collective, or any */
    const struct dp_comm *group; /* any death in it ends the wait, and the request stays; or NULL */
    int64_t start_ns, polled_ns;
    int published; /* the peer that the last look published */
    bool slept;
};

/* The cheapest check of one request; false: there is none. A rank with spin_ns 0 shares its core
 * with the rank that it waits for, and does not spin. */
static inline bool watch(const struct dp_comm *comm, const struct dp_request *req)
{
    struct dp_comm *world = comm->world;
    int peer;

    if (!world->ops->watch || comm->spin_ns <= 0)
        return false;
    if (is_collective(req))
        req = dp_engine_waits_for(world->engine, req, &peer);
    if (!req)
        return false;
    world->ops->watch(world, req);
    return true;
}

static int peer_of(const struct wait *w)
{
    int peer = w->peer;

    if (is_collective(w->req))
        dp_engine_waits_for(w->world->engine, w->req, &peer);
    return peer;
}

/* One look; the order matters: progress first, then test, then sleep, which ends early for whatever
 * arrived after that progress. The peer that this rank waits for is published only before a sleep,
 * since publishing costs and short waits are not searched for a culprit. */
static int look(struct wait *w)
{
    w->published = w->slept ? peer_of(w) : -1;
    int err = progress(w->world, w->published);

    if (is_collective(w->req))
        return look_at_collective(w->world, w->req);
    return err ? err : test(w->world, w->req);
}

/* A receive from any source does not end with the rank that the caller expects the message of. */
static int check_awaited(const struct wait *w)
{
    if (w->peer < 0 || !dp_comm_has_lost(w->world, w->peer, false))
        return 0;
    cancel(w->world, w->req);
    return w->world->hooks->fail(w->world, w->peer);
}

/* 0: all ranks of the group live, as far as this rank has heard. */
static int check_group(const struct wait *w)
{
    for (int i = 0; w->world->hooks && w->group && i < w->group->size; i++)
        if (dp_comm_has_lost(w->world, dp_comm_world_rank(w->group, i), true))
            return w->world->hooks->fail(w->world, dp_comm_world_rank(w->group, i));
    return 0;
}

/* 0: go on. */
static int check_time(struct wait *w, int64_t now_ns)
{
    const int64_t waited_ns = now_ns - w->start_ns;
    int err = check_awaited(w);

    if (err)
        return err;
    if (waited_ns >= w->comm->deadline_ns &&
        now_ns >= w->world->ops->busy_until(w->world) + w->comm->deadline_ns) {
        if (w->group && w->world->hooks) {
            w->world->silent = peer_of(w) + 1;
            return dp_fail_quietly(DP_ETIMEDOUT, "rank %d waited %.1f s in vain", w->world->rank,
                                   (double)waited_ns / DP_NS_PER_S);
        }
        return give_up(w->world, w->req, peer_of(w), waited_ns);
    }
    if (!w->world->poll || now_ns - w->polled_ns < POLL_EVERY_NS)
        return 0;
    w->polled_ns = now_ns;
    return dp_comm_poll(w->world);
}

static void sleep_until(struct wait *w, int64_t until_ns, int64_t now_ns)
{
    if (w->world->engine && dp_engine_ready(w->world->engine))
        return;
    if (w->world->poll && until_ns > now_ns + POLL_EVERY_NS)
        until_ns = now_ns + POLL_EVERY_NS;
    w->world->ops->sleep(w->world, until_ns);
}

/* The deadline, or soon where it has been passed because a rank is busy, or where the news of a
 * death may come from a rank that has nothing to do with the request. */
static int64_t end_of_wait(const struct wait *w, int64_t now_ns)
{
    const int64_t end_ns = w->start_ns + w->comm->deadline_ns, soon_ns = now_ns + 10 * DP_NS_PER_MS;

    return end_ns > now_ns && (!w->group || end_ns < soon_ns) ? end_ns : soon_ns;
}

static int wait_long(struct wait *w)
{
    int err;

    w->start_ns = w->polled_ns = w->world->wait_began_ns = dp_now_ns();
    /* The clock is read before each look: a thread that is stopped for long between the two must not
     * give up on a message that has come. */
    for (int64_t now_ns = w->start_ns;; now_ns = dp_now_ns()) {
        err = look(w);
        if (err != DP_EAGAIN)
            break;
        err = check_group(w);
        if (!err)
            err = check_time(w, now_ns);
        if (err)
            break;
        if (now_ns - w->start_ns < w->comm->spin_ns) {
            if (!watch(w->comm, w->req))
                dp_cpu_pause();
            continue;
        }
        /* A collective that moved on meanwhile waits for another peer: publish that one first, as
         * the sleep may last until the deadline. */
        if (w->slept && w->published == peer_of(w))
            sleep_until(w, end_of_wait(w, now_ns), now_ns);
        w->slept = true;
    }
    if (!w->slept)
        return err;
    int aborted = w->world->ops->progress(w->world, -1);
    return err ? err : aborted;
}

int dp_comm_wait_in(struct dp_comm *comm, struct dp_request *req, int peer,
                    const struct dp_comm *group)
{
    if (!comm || !req)
        return dp_fail(DP_EINVAL, "a wait without a %s", comm ? "request" : "comm");
    if (peer != -1 && (peer < 0 || peer >= comm->size || peer == comm->rank))
        return dp_fail(DP_EINVAL, "wait for peer %d: expected a rank from 0 to %d other than %d",
                       peer, comm->size - 1, comm->rank);
    int err = check_batch(comm, "a wait");
    if (err)
        return err;
    dp_comm_progress_stop(comm);
    watch(comm, req);
    err = test(comm->world, req);
    if (err == DP_EAGAIN) {
        atomic_fetch_add_explicit(&comm->world->waits, 1, memory_order_relaxed);
        err = wait_long(&(struct wait){.comm = comm,
                                       .world = comm->world,
                                       .req = req,
                                       .peer = peer < 0 ? -1 : dp_comm_world_rank(comm, peer),
                                       .group = group});
        atomic_fetch_sub_explicit(&comm->world->waits, 1, memory_order_relaxed);
    }
    return explain(comm, err);
}

int dp_comm_wait(struct dp_comm *comm, struct dp_request *req, int peer)
{
    return dp_comm_wait_in(comm, req, peer, NULL);
}

/* ---- properties ------------------------------------------------------------------------------ */

int64_t dp_comm_get(const struct dp_comm *comm, enum dp_comm_property property)
{
    const struct dp_comm_caps *caps = &comm->ops->caps;

    switch (property) {
    case DP_COMM_RANK: return comm->rank;
    case DP_COMM_SIZE: return comm->size;
    case DP_COMM_CAPS: return caps->device_memory | caps->stream_ordered << 1 | caps->tags << 2;
    case DP_COMM_DEADLINE: return comm->deadline_ns;
    case DP_COMM_SPIN: return comm->spin_ns;
    case DP_COMM_SHARED_BYTES: return (int64_t)comm->shared_bytes;
    case DP_COMM_SURVIVES: return comm->world->survival != NULL;
    case DP_COMM_REVOKED: return comm->is_revoked;
    }
    return 0;
}

void dp_comm_set(struct dp_comm *comm, enum dp_comm_property property, int64_t value)
{
    if (property == DP_COMM_DEADLINE)
        comm->deadline_ns = value;
    if (property == DP_COMM_SPIN)
        comm->spin_ns = value;
}

const char *dp_comm_name(const struct dp_comm *comm)
{
    return comm->ops->name;
}

int dp_comm_register(struct dp_comm *comm, void *ptr, size_t bytes)
{
    if (!comm || !ptr || !bytes)
        return dp_fail(DP_EINVAL, "registering %zu bytes at %p with %s: expected memory and a comm",
                       bytes, ptr, comm ? "a comm" : "none");
    if (!comm->ops->register_memory || comm->world != comm)
        return 0;
    return comm->ops->register_memory(comm, ptr, bytes);
}

void dp_comm_unregister(struct dp_comm *comm, void *ptr)
{
    if (comm && ptr && comm->ops->unregister_memory && comm->world == comm)
        comm->ops->unregister_memory(comm, ptr);
}

/* ---- progress, failure, end ------------------------------------------------------------------ */

int dp_comm_begin(struct dp_comm *comm)
{
    if (!comm)
        return dp_fail(DP_EINVAL, "begin without a comm");
    int err = check_batch(comm, "begin");
    if (err)
        return err;
    dp_comm_progress_stop(comm);
    if (comm->ops->begin)
        err = comm->ops->begin(comm->world);
    comm->world->in_batch = !err;
    return err;
}

int dp_comm_commit(struct dp_comm *comm)
{
    if (!comm || !comm->world->in_batch)
        return dp_fail(DP_EINVAL, "commit without a %s", comm ? "begin" : "comm");
    comm->world->in_batch = false;
    return comm->ops->commit ? explain(comm, comm->ops->commit(comm->world)) : 0;
}

int dp_comm_after(struct dp_comm *comm, struct dp_device_stream *stream)
{
    if (!comm || !stream)
        return dp_fail(DP_EINVAL, "after without a %s", comm ? "stream" : "comm");
    if (!comm->ops->after)
        return dp_fail(DP_EUNSUPPORTED, "communicator %s: it is not stream-ordered",
                       comm->ops->name);
    return comm->ops->after(comm->world, stream);
}

int dp_comm_stream_wait(struct dp_comm *comm, struct dp_request *req,
                        struct dp_device_stream *stream)
{
    if (!comm || !req || !stream)
        return dp_fail(DP_EINVAL, "stream_wait without a %s",
                       !comm ? "comm"
                       : req ? "stream"
                             : "request");
    if (!comm->ops->stream_wait)
        return dp_fail(DP_EUNSUPPORTED, "communicator %s: it is not stream-ordered",
                       comm->ops->name);
    return explain(comm, comm->ops->stream_wait(comm->world, req, stream));
}

int dp_comm_progress(struct dp_comm *comm)
{
    if (!comm)
        return dp_fail(DP_EINVAL, "progress without a comm");
    dp_comm_progress_stop(comm);
    int err = progress(comm->world, -1);
    return explain(comm, !err && comm->is_revoked ? DP_EABORTED : err);
}

int dp_comm_progress_all(struct dp_comm *world)
{
    dp_comm_progress_stop(world);
    return explain(world, progress(world, -1));
}

void dp_comm_progress_start(struct dp_comm *comm)
{
    struct dp_comm *world = comm ? comm->world : NULL;

    if (world && !world->progress_runs && world->ops->progress_start)
        world->progress_runs = world->ops->progress_start(world);
}

int dp_comm_busy(struct dp_comm *comm, int64_t ns)
{
    if (!comm || ns < 0)
        return dp_fail(DP_EINVAL, "busy for %lld ns: expected a comm and 0 or more", (long long)ns);
    return comm->ops->busy(comm->world, ns);
}

bool dp_comm_polls(const struct dp_comm *comm)
{
    return comm->world->poll;
}

int dp_comm_poll(struct dp_comm *comm)
{
    struct dp_comm *world = comm->world;
    int err = world->poll ? world->poll(world->poll_user) : 0;

    return err ? interrupt(world, err) : 0;
}

void dp_comm_note(struct dp_comm *comm, uint64_t doing)
{
    if (comm && comm->world->doing)
        atomic_store_explicit(comm->world->doing, doing, memory_order_relaxed);
}

void dp_comm_set_poll(struct dp_comm *comm, int (*poll)(void *user), void *user)
{
    comm->world->poll = poll;
    comm->world->poll_user = user;
}

int dp_comm_abort(struct dp_comm *comm, int error, const char *text)
{
    if (!comm || error >= 0)
        return dp_fail(DP_EINVAL, "abort with error %d: expected a comm and a negative error",
                       error);
    if (comm->world->hooks && comm->world->hooks->is_excluded(comm->world, NULL))
        return 0; /* the others go on without it */
    struct dp_abort why = {.rank = comm->world->rank, .error = error};
    snprintf(why.text, sizeof(why.text), "%s", text ? text : "");
    return comm->ops->abort(comm->world, &why);
}

void dp_comm_fail(struct dp_comm *comm, int error)
{
    if (comm->world->hooks && dp_comm_is_own_fault(error))
        comm->world->hooks->end(comm->world, error, dp_last_error());
    dp_comm_abort(comm, error, dp_last_error());
}

static _Thread_local struct {
    int err;
    char text[DP_ABORT_TEXT];
} reason;

int dp_callback_error_text(int err, const char *text)
{
    snprintf(reason.text, sizeof(reason.text), "%s", text ? text : "");
    reason.err = err;
    return err;
}

const char *dp_callback_reason(int err)
{
    bool given = reason.err == err;

    reason.err = 0;
    return given ? reason.text : "";
}

bool dp_comm_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    if (!comm)
        return false;
    if (!comm->ops->aborted(comm->world, why)) {
        if (!comm->is_revoked)
            return false;
        if (why)
            *why = comm->revocation;
        if (why && !why->doing && why->rank >= 0) /* told since */
            why->doing = comm->world->hooks->doing(comm->world, why->rank);
    }
    if (why)
        why->rank = rank_in(comm, why->rank);
    return true;
}

int dp_comm_reset(struct dp_comm *comm)
{
    if (!comm)
        return dp_fail(DP_EINVAL, "reset without a comm");
    if (comm != comm->world)
        return dp_fail(DP_EINVAL, "reset: expected the communicator that was opened, not a part");
    if (comm->hooks)
        return dp_fail(DP_EUNSUPPORTED,
                       "reset: this group survives failures; expected dp_comm_shrink");
    dp_comm_progress_stop(comm);
    if (comm->engine)
        dp_engine_drop(comm->engine, NULL, DP_EABORTED);
    for (struct dp_comm *member = comm; member; member = member->next)
        member->collectives = 0; /* ranks may have come to different ones */
    comm->has_said_end = false;
    return comm->ops->reset(comm);
}
