/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_comm.c - ranks that are processes: wires to the peers for messages, and control connections
 * (rendezvous.h) for everything that concerns all ranks.
 *
 * The hot path is one wire: isend and irecv queue a request there, test moves it along. Wires with
 * something to do are on a list, which is gone through when a test has been in vain. The rendezvous
 * is looked after now and then, between tests in vain.
 *
 * A wire that breaks does not say why. Has its peer left? Then it is the caller's error. Has it
 * died? The root will soon know. So the request waits for the root's message, for a second at most.
 */
#include "config.h" /* GNU extensions: ppoll */

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "comm/comm_core.h"
#include "comm/comm_ops.h"
#include "comm/engine.h"
#include "comm/peers.h"
#include "comm/progress_thread.h"
#include "wire/shm.h"
#include "wire/sockets.h"
#include "wire/tcp.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static const int64_t RENDEZVOUS_EVERY_NS = 200 * DP_NS_PER_US,
                     RENDEZVOUS_PER_PEER_NS = 20 * DP_NS_PER_US;
static const int64_t ACCEPT_EVERY_NS = 20 * DP_NS_PER_MS; /* of peers that are not waited for */
enum { LOOKS = 16 };                               /* of one watch */
static const int64_t SUSPECT_NS = DP_NS_PER_S;     /* how long a broken wire waits for its reason */
static const int64_t NEWS_NS = 250 * DP_NS_PER_MS; /* the same in a group that survives */
static const int64_t LATE_NS = 100 * DP_NS_PER_MS; /* what a rank that has left may still send */
/* Rank 0 has as many messages to take and to send as there are ranks: 8 for each of these times. */
static const int64_t TELL_DOING_NS = 50 * DP_NS_PER_MS;
static const int64_t TELL_NS = 100 * DP_NS_PER_MS; /* a wait this long is reported to the root */

struct request {
    struct dp_request_head head;
    struct dp_link_request part;
    uint64_t tag; /* the wire's becomes that of the message */
    int32_t peer; /* -1: any, until a message has come */
    bool is_send, any_tag;
    uint16_t epoch; /* of the peers, when it was begun */
};
_Static_assert(sizeof(struct request) <= sizeof(struct dp_request), "a request fits");

struct wire_comm {
    struct dp_comm base;
    struct dp_rendezvous *rendezvous;
    struct dp_peers peers;
    struct dp_peers_mpi mpi;
    struct dp_endpoint endpoint;

    struct pollfd *fds;
    int wake; /* an eventfd: another thread has called abort */

    int64_t polled_ns;
    unsigned moves; /* dp_peers_moves when last looked at, and since when */
    int64_t moved_ns;
    int waiting_for;
    int64_t waiting_since_ns;
    bool waiting_told;
    int64_t *broken_since_ns; /* [size] 0: no wire to this peer is broken */
    bool any_broken;
    int64_t news_until_ns; /* a link waits so long for the reason of its end */
    uint64_t told_doing;
    int64_t told_doing_ns;
    bool finished; /* after an abort: no request of this rank is left */
    struct dp_progress_thread *progress_thread;

    struct wire_comm *next_open; /* see leave_at_exit */
    unsigned forks;              /* dp_forks_passed when it was opened */
    bool has_left;
};

static struct wire_comm *of(struct dp_comm *comm)
{
    return (struct wire_comm *)comm;
}

/* ---- abort --------------------------------------------------------------------------------- */

/* No request of this rank is left. */
static void finish_requests(struct wire_comm *c)
{
    dp_peers_fail(&c->peers);
    c->finished = true;
}

static inline bool wire_comm_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    return dp_abort_record_get(&of(comm)->rendezvous->abort_record, why) ||
           (comm->hooks && comm->hooks->is_excluded(comm, why));
}

/* Rank 0, which tells all of an abort, may be dead. */
static void pass_on_abort(struct wire_comm *c)
{
    struct dp_abort why;

    if (c->base.hooks && dp_abort_record_get(&c->rendezvous->abort_record, &why))
        c->base.hooks->tell_abort(&c->base, &why);
}

/* " (CONNECTION)", of one on which the network does not take what is sent. */
static bool tell_stuck(const struct dp_link *link, char *text, size_t room)
{
    const struct dp_wire *wires[] = {link->out, link->in};
    char connection[200];

    for (int i = 0; i < 2; i++)
        if (wires[i] && wires[i]->ops == &dp_wire_tcp && wires[i]->connected &&
            dp_wire_tcp_tell(wires[i], connection, sizeof(connection))) {
            dp_snprintf(text, room, " (%s)", connection);
            return true;
        }
    return false;
}

static void wire_comm_describe(struct dp_comm *comm, int peer, char *text, size_t room)
{
    const struct dp_peers *peers = &of(comm)->peers;

    for (int i = 0; i < peers->link_count; i++)
        if (peers->links[i]->peer == peer && tell_stuck(peers->links[i], text, room))
            return;
}

/* The rank that has waited in vain may be the one that was to receive, and does not see what is lost. */
static void log_stuck(struct wire_comm *c)
{
    struct dp_abort why;
    char text[200];

    for (int peer = 0; peer < c->base.size && wire_comm_aborted(&c->base, &why) &&
                       why.error == DP_ETIMEDOUT; peer++) {
        *text = '\0';
        wire_comm_describe(&c->base, peer, text, sizeof(text));
        if (*text)
            dp_log(DP_LOG_WARN, "what rank %d has sent to rank %d is stuck in the network%s",
                   c->base.rank, peer, text);
    }
}

static int end_by_abort(struct wire_comm *c)
{
    if (!c->finished) {
        log_stuck(c);
        finish_requests(c);
        pass_on_abort(c);
    }
    return DP_EABORTED;
}

static inline int check_abort(struct wire_comm *c)
{
    return wire_comm_aborted(&c->base, NULL) ? end_by_abort(c) : 0;
}

/* This rank itself cannot go on, which is no fault of a peer: it may open no file, or has no memory. */
static int abort_self(struct wire_comm *c, int error, const char *text)
{
    struct dp_abort why = {.rank = c->base.rank, .error = error};

    dp_snprintf(why.text, sizeof(why.text), "%s", text);
    if (!c->base.hooks) {
        dp_rendezvous_abort(c->rendezvous, &why);
        return check_abort(c);
    }
    c->base.hooks->end(&c->base, error, why.text);
    end_by_abort(c);
    return dp_fail(error, "%s", why.text);
}

/* ---- rendezvous ------------------------------------------------------------------------------ */

static int poll_rendezvous(struct wire_comm *c, int64_t now_ns)
{
    if (now_ns - c->polled_ns >= RENDEZVOUS_EVERY_NS + RENDEZVOUS_PER_PEER_NS * c->base.size) {
        c->polled_ns = now_ns;
        dp_rendezvous_poll(c->rendezvous);
        dp_peers_accept_every(&c->peers, ACCEPT_EVERY_NS);
        if (c->base.hooks)
            c->base.hooks->poll(c->base.survival);
    }
    if (dp_peers_are_refused(&c->peers, now_ns))
        return abort_self(c, c->peers.refusal.error, c->peers.refusal.text);
    return check_abort(c);
}

/* Only a wait that has become long is worth a message; rank 0, which keeps them, needs none. */
static int64_t tell_after_ns(const struct wire_comm *c)
{
    if (!c->base.rank)
        return 0;
    return c->base.deadline_ns / 4 < TELL_NS ? c->base.deadline_ns / 4 : TELL_NS;
}

static void note_waiting(struct wire_comm *c, int peer, int64_t now_ns)
{
    if (peer != c->waiting_for) {
        if (c->waiting_told)
            dp_rendezvous_tell_waiting(c->rendezvous, -1, now_ns);
        c->waiting_told = false;
        c->waiting_for = peer;
        c->waiting_since_ns = now_ns;
    }
    if (peer >= 0 && !c->waiting_told && now_ns - c->waiting_since_ns >= tell_after_ns(c)) {
        dp_rendezvous_tell_waiting(c->rendezvous, peer, c->base.wait_began_ns);
        c->waiting_told = true;
    }
}

/* ---- requests ------------------------------------------------------------------------------ */

static struct request *begin(const struct wire_comm *c, struct dp_request *req, int peer, uint64_t tag,
                             bool is_send)
{
    struct request *r = (struct request *)req;

    r->head.collective = NULL;
    r->tag = tag;
    r->peer = peer;
    r->is_send = is_send;
    r->any_tag = false;
    r->epoch = (uint16_t)c->peers.epoch;
    return r;
}

/* A request that was not begun: for want of files or memory this rank leaves a group that survives.
 */
static int check_begun(struct wire_comm *c, int err)
{
    return c->base.hooks && dp_comm_is_own_fault(err) ? abort_self(c, err, dp_last_error()) : err;
}

static int wire_comm_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag,
                           const void *buf, size_t len, struct dp_request *req)
{
    struct wire_comm *c = of(comm);
    struct request *r = begin(c, req, peer, tag, true);
    int err = check_abort(c);

    return err ? err
               : check_begun(c, dp_peers_isend(&c->peers, peer, channel, tag, buf, len, &r->part));
}

static int wire_comm_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                           size_t len, struct dp_request *req)
{
    struct wire_comm *c = of(comm);
    struct request *r = begin(c, req, peer, tag, false);
    int err = check_abort(c);

    if (!err)
        err = dp_peers_irecv(&c->peers, peer, channel, buf, len, &r->part);
    if (!err && comm->hooks && !dp_peers_wire_of(&r->part, false))
        err = comm->hooks->watch(comm->survival, peer); /* no wire of the peer tells of its end */
    return check_begun(c, err);
}

static int wire_comm_irecv_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                               struct dp_request *req)
{
    struct wire_comm *c = of(comm);
    struct request *r = begin(c, req, peer, 0, false);
    int err = check_abort(c);

    r->any_tag = true;
    if (err)
        return err;
    return check_begun(c, peer < 0 ? dp_peers_irecv_any(&c->peers, channel, buf, room, &r->part)
                                   : dp_peers_irecv(&c->peers, peer, channel, buf, room, &r->part));
}

static void wire_comm_received(struct dp_comm *comm, const struct dp_request *req,
                               struct dp_received *out)
{
    const struct request *r = (const struct request *)req;

    (void)comm;
    *out = (struct dp_received){
        .peer = r->part.link->peer, .tag = r->part.wire.tag, .len = r->part.wire.moved};
}

/* In a group that survives the request fails, whatever the reason. If the other end has ended the link,
 * the news why may take another way: a death, or a revocation. */
static int fail_request(struct wire_comm *c, int peer, struct dp_link *link)
{
    const int64_t now_ns = dp_now_ns();

    c->polled_ns = 0;
    int err = poll_rendezvous(c, now_ns);
    if (err)
        return err;
    if (peer < 0)
        return dp_fail_quietly(DP_ECOMM, "a receive from any rank was given up");
    if (dp_comm_has_lost(&c->base, peer, true))
        return c->base.hooks->fail(&c->base, peer);
    err = c->base.hooks->watch(c->base.survival, peer);
    if (err)
        return err;
    if (link && !link->is_ended) {
        if (!link->broken_since_ns)
            link->broken_since_ns = now_ns;
        c->news_until_ns = link->broken_since_ns + NEWS_NS;
        if (now_ns < c->news_until_ns)
            return DP_EAGAIN;
    }
    return dp_fail_quietly(DP_ECOMM,
                           "the connection of this channel between rank %d and rank %d has ended",
                           c->base.rank, peer);
}

/* See the top. DP_EAGAIN while the reason is not known. wire: NULL if it never came. */
static int find_reason(struct wire_comm *c, const struct request *r, const struct dp_wire *wire)
{
    const int peer = r->part.link ? r->part.link->peer : r->peer;

    if (wire && dp_comm_is_own_fault(wire->error))
        return abort_self(c, wire->error, wire->why);
    if (c->base.hooks)
        return fail_request(c, peer, r->part.link);
    if (r->epoch != (uint16_t)c->peers.epoch) /* a reset has ended it: the wire is another one */
        return DP_EABORTED;
    const int64_t now_ns = dp_now_ns();
    struct dp_abort why = {.rank = peer, .error = wire && wire->error ? wire->error : DP_ECOMM};

    dp_rendezvous_poll(c->rendezvous);
    if (check_abort(c))
        return DP_EABORTED;
    if (dp_rendezvous_has_left(c->rendezvous, peer))
        return dp_fail(DP_ECOMM, "rank %d has left the group", peer);
    if (!c->broken_since_ns[peer]) {
        c->broken_since_ns[peer] = now_ns;
        c->any_broken = true;
    }
    if (now_ns - c->broken_since_ns[peer] < SUSPECT_NS)
        return DP_EAGAIN;
    dp_snprintf(why.text, sizeof(why.text), "the connection between rank %d and rank %d broke: %s",
             c->base.rank, peer, wire ? wire->why : "it was closed");
    dp_rendezvous_abort(c->rendezvous, &why);
    return check_abort(c);
}

/* A peer that has left does not connect any more; but what it had sent may still be on its way. */
static bool has_left(const struct wire_comm *c, int peer)
{
    return dp_rendezvous_has_left(c->rendezvous, peer) || dp_comm_has_lost(&c->base, peer, true);
}

/* A request whose wire may never be there: a receive before the peer has connected, or any on a wire
 * that the peer has not accepted; MPI, whose wires are made without the peer: has given no sign of. */
static bool lacks_peer(const struct request *r)
{
    const struct dp_wire *wire = dp_peers_wire_of(&r->part, r->is_send);

    return wire ? !wire->connected : !r->is_send;
}

static void give_up(struct wire_comm *c, struct request *r)
{
    struct dp_wire *wire = dp_peers_wire_of(&r->part, r->is_send);

    if (wire)
        dp_wire_fail(wire, DP_ECOMM, "rank %d has left the group", r->peer);
    else
        dp_peers_finish_early(&c->peers, r->part.link);
}

static int check_early(struct wire_comm *c, struct request *r)
{
    const int peer = r->peer;

    if (peer < 0 || !lacks_peer(r) || !has_left(c, peer))
        return DP_EAGAIN;
    const int64_t now_ns = dp_now_ns();
    if (!c->broken_since_ns[peer]) {
        c->broken_since_ns[peer] = now_ns;
        c->any_broken = true; /* no message announces that the time is over */
    }
    if (now_ns - c->broken_since_ns[peer] < LATE_NS)
        return DP_EAGAIN;
    dp_peers_accept(&c->peers);
    if (!lacks_peer(r))
        return DP_EAGAIN;
    give_up(c, r);
    return dp_fail(DP_ECOMM, "rank %d has left the group", peer);
}

/* A receive may also be refused its message, by a wire that works. */
static bool is_lost(const struct request *r, const struct dp_wire *wire)
{
    return r->part.wire.status && (r->is_send || r->part.wire.status != DP_EMISMATCH || !wire ||
                                   wire->error == DP_EMISMATCH);
}

static int wire_comm_test(struct dp_comm *comm, struct dp_request *req)
{
    struct wire_comm *c = of(comm);
    struct request *r = (struct request *)req;
    struct dp_wire *wire = dp_peers_wire_of(&r->part, r->is_send);
    int err = check_abort(c);

    if (err)
        return err;
    if (r->part.wire.status == DP_EAGAIN && wire)
        wire->ops->progress(wire);
    if (r->part.wire.status == DP_EAGAIN) {
        dp_peers_progress(&c->peers);
        err = poll_rendezvous(c, dp_now_ns());
        if (err)
            return err;
    }
    /* Check once more: a caller that gets DP_EAGAIN may sleep, and a request that is done wakes no
     * one. */
    if (r->part.wire.status == DP_EAGAIN)
        return check_early(c, r);
    wire = dp_peers_wire_of(&r->part, r->is_send);
    if (is_lost(r, wire))
        return find_reason(c, r, wire);
    return r->is_send ? 0
                      : dp_comm_check_message(r->part.link->peer, r->any_tag, r->tag,
                                              r->part.wire.len, r->part.wire.tag,
                                              r->part.wire.moved);
}

static bool wire_comm_is_done(struct dp_comm *comm, const struct dp_request *req)
{
    (void)comm;
    return ((const struct request *)req)->part.wire.status != DP_EAGAIN;
}

/* Rank 0 is told, which makes the record; where deaths end nothing, the neighbors. */
static void tell_doing(struct wire_comm *c, int64_t now_ns)
{
    const uint64_t doing = atomic_load_explicit(&c->base.own_doing, memory_order_relaxed);

    if (doing == c->told_doing || now_ns - c->told_doing_ns < c->base.tell_doing_ns)
        return;
    c->told_doing_ns = now_ns;
    if (c->base.hooks)
        c->base.hooks->tell_doing(&c->base, doing);
    if (c->base.hooks || dp_rendezvous_tell_doing(c->rendezvous, doing))
        c->told_doing = doing;
}

static int wire_comm_progress(struct dp_comm *comm, int waiting_for)
{
    struct wire_comm *c = of(comm);
    const int64_t now_ns = dp_now_ns();

    dp_peers_progress(&c->peers);
    tell_doing(c, now_ns);
    int err = poll_rendezvous(c, now_ns);
    if (!err)
        note_waiting(c, waiting_for, now_ns);
    return err;
}

/* A look at a ring costs some nanoseconds. One that takes a system call costs more than the clocks.
 */
static void wire_comm_watch(struct dp_comm *comm, const struct dp_request *req)
{
    const struct request *r = (const struct request *)req;
    struct dp_wire *wire = dp_peers_wire_of(&r->part, r->is_send);

    (void)comm;
    for (int i = 0; wire && i < LOOKS && r->part.wire.status == DP_EAGAIN && !wire->nothing_ahead;
         i++) {
        if (i)
            dp_cpu_pause();
        wire->ops->progress(wire);
    }
}

/* ---- sleeping ------------------------------------------------------------------------------ */

/* Some wires (MPI's) have nothing to poll for: come back the later the longer it has taken already.
 */
static int64_t limit_sleep(const struct wire_comm *c, const struct pollfd *fds, int armed,
                           int64_t ns)
{
    const int64_t waited_ns = dp_now_ns() - c->waiting_since_ns;
    int64_t limit_ns = waited_ns / 4;

    if (limit_ns < 20 * DP_NS_PER_US)
        limit_ns = 20 * DP_NS_PER_US;
    if (limit_ns > DP_NS_PER_MS)
        limit_ns = DP_NS_PER_MS;
    for (int i = 0; i < armed; i++)
        if (fds[i].fd < 0 && ns > limit_ns)
            return limit_ns;
    return ns;
}

static void drain(int eventfd)
{
    uint64_t count;
    ssize_t n = read(eventfd, &count, sizeof(count));

    (void)n;
}

static void sleep_on(struct wire_comm *c, int controls, int wires, int64_t ns)
{
    const struct timespec timeout = {.tv_sec = ns / DP_NS_PER_S, .tv_nsec = ns % DP_NS_PER_S};

    if (ppoll(c->fds, (nfds_t)(1 + controls + wires), &timeout, NULL) <= 0)
        return;
    if (c->fds[0].revents)
        drain(c->wake);
    for (int i = 0; i <= controls; i++)
        if (c->fds[i].revents)
            c->polled_ns = 0; /* the next progress looks at the rendezvous */
}

/* A long message comes in many pieces: the next one is as near as the first was, when the rank
 * spun. */
static bool is_moving(struct wire_comm *c, int64_t now_ns)
{
    const unsigned moves = dp_peers_moves(&c->peers);

    if (moves != c->moves)
        c->moved_ns = now_ns;
    c->moves = moves;
    return now_ns - c->moved_ns < c->base.spin_ns;
}

/* The rendezvous, and what a group that survives listens to; what is more than the room is looked
 * at now and then only. -1: there is work to do. */
static int arm_controls(struct wire_comm *c, int64_t *ns)
{
    int count = dp_rendezvous_arm(c->rendezvous, c->fds + 1), more = 0;

    if (c->base.hooks && count >= 0)
        more = c->base.hooks->arm(c->base.survival, c->fds + 1 + count, 2 * c->base.size, ns);
    return count < 0 || more < 0 ? -1 : count + more;
}

static void disarm_controls(struct wire_comm *c)
{
    if (c->base.hooks)
        c->base.hooks->disarm(c->base.survival);
}

static void wire_comm_sleep(struct dp_comm *comm, int64_t until_ns)
{
    struct wire_comm *c = of(comm);
    int64_t now_ns = dp_now_ns(), ns = until_ns - now_ns;
    int armed = 0;

    if (is_moving(c, now_ns))
        return;
    /* Back in time for what no message announces. */
    if (c->waiting_for >= 0 && !c->waiting_told &&
        ns > c->waiting_since_ns + tell_after_ns(c) - now_ns)
        ns = c->waiting_since_ns + tell_after_ns(c) - now_ns;
    const int64_t decides_ns = dp_rendezvous_decides_ns(c->rendezvous);
    if (decides_ns != INT64_MAX && ns > decides_ns - now_ns)
        ns = decides_ns - now_ns;
    if ((c->any_broken || now_ns < c->news_until_ns) && ns > 10 * DP_NS_PER_MS)
        ns = 10 * DP_NS_PER_MS;
    if (ns <= 0)
        return;

    c->fds[0] = (struct pollfd){.fd = c->wake, .events = POLLIN};
    int controls = arm_controls(c, &ns);
    if (controls < 0) {
        c->polled_ns = 0;
        disarm_controls(c);
        return;
    }
    struct pollfd *fds = c->fds + 1 + controls;
    if (dp_peers_arm(&c->peers, fds, &armed))
        sleep_on(c, controls, armed, limit_sleep(c, fds, armed, ns));
    dp_peers_disarm(&c->peers, fds, armed);
    disarm_controls(c);
}

/* ---- away ---------------------------------------------------------------------------------- */

static void thread_move(void *user)
{
    struct wire_comm *c = user;

    dp_peers_progress(&c->peers);
    if (c->base.engine)
        dp_engine_progress(c->base.engine);
}

static bool thread_arm(void *user, struct pollfd *fds, int *count)
{
    struct wire_comm *c = user;

    return dp_peers_arm(&c->peers, fds, count) &&
           !(c->base.engine && dp_engine_ready(c->base.engine));
}

static void thread_disarm(void *user, const struct pollfd *fds, int count)
{
    struct wire_comm *c = user;

    dp_peers_disarm(&c->peers, fds, count);
}

static const struct dp_progress_thread_ops thread_ops = {thread_move, thread_arm, thread_disarm};

static bool wire_comm_progress_start(struct dp_comm *comm)
{
    struct wire_comm *c = of(comm);

    if (c->base.engine && dp_engine_busy(c->base.engine) && !c->mpi.ops) {
        dp_progress_thread_start(c->progress_thread);
        return true;
    }
    /* MPI may be called only by the threads that it was initialised for. */
    if (c->mpi.ops || !dp_peers_need_progress(&c->peers))
        return false;
    dp_progress_thread_start(c->progress_thread);
    return true;
}

static void wire_comm_progress_stop(struct dp_comm *comm)
{
    dp_progress_thread_stop(of(comm)->progress_thread);
}

/* Rank 0, which passes it on otherwise, may be dead in a group that survives. */
static int wire_comm_busy(struct dp_comm *comm, int64_t ns)
{
    struct wire_comm *c = of(comm);

    if (!comm->hooks) {
        dp_rendezvous_busy(c->rendezvous, ns);
        return 0;
    }
    dp_rendezvous_note_busy(c->rendezvous, comm->rank, ns);
    comm->hooks->tell_busy(comm, ns);
    return 0;
}

static int64_t wire_comm_busy_until(struct dp_comm *comm)
{
    dp_rendezvous_poll(of(comm)->rendezvous);
    return dp_rendezvous_busy_until(of(comm)->rendezvous);
}

/* ---- failure, end ---------------------------------------------------------------------------- */

static int wire_comm_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    struct wire_comm *c = of(comm);
    const uint64_t one = 1;

    dp_rendezvous_abort(c->rendezvous, why);
    ssize_t n = write(c->wake, &one, sizeof(one));
    (void)n;
    return 0;
}

/* ---- survival ------------------------------------------------------------------------------ */

static struct dp_peers *wire_comm_survive(struct dp_comm *comm)
{
    of(comm)->rendezvous->survives = true;
    of(comm)->told_doing = 0; /* only rank 0 has been told */
    return &of(comm)->peers;
}

static void wire_comm_note_busy(struct dp_comm *comm, int peer, int64_t ns)
{
    dp_rendezvous_note_busy(of(comm)->rendezvous, peer, ns);
}

static void wire_comm_bury(struct dp_comm *comm, int peer)
{
    struct wire_comm *c = of(comm);

    if (dp_peers_bury(&c->peers, peer))
        dp_comm_fail(comm, DP_ENOMEM);
}

static void wire_comm_note_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    dp_abort_record_put(&of(comm)->rendezvous->abort_record, why);
}

static void wire_comm_cancel(struct dp_comm *comm, struct dp_request *req)
{
    dp_peers_cancel(&of(comm)->peers, &((struct request *)req)->part);
}

static void wire_comm_end_channels(struct dp_comm *comm, int first, int count)
{
    dp_peers_end_channels(&of(comm)->peers, first, count);
}

static const struct dp_survival_ops wire_comm_survival = {
    .survive = wire_comm_survive,
    .note_busy = wire_comm_note_busy,
    .bury = wire_comm_bury,
    .note_abort = wire_comm_note_abort,
    .cancel = wire_comm_cancel,
    .end_channels = wire_comm_end_channels,
};

/* Every rank can reach the others, and knows that all can. */
static int begin_links(struct wire_comm *c, int64_t until_ns)
{
    int err = dp_peers_begin(&c->peers);

    if (!err)
        return dp_rendezvous_gather(c->rendezvous, &c->endpoint, false, until_ns);
    struct dp_abort why = {.rank = c->base.rank, .error = err};
    snprintf(why.text, sizeof(why.text), "%s", dp_last_error());
    dp_rendezvous_abort(c->rendezvous, &why);
    return err;
}

static int wire_comm_reset(struct dp_comm *comm)
{
    struct wire_comm *c = of(comm);
    const int64_t until_ns = dp_now_ns() + comm->deadline_ns;

    finish_requests(c);
    dp_peers_disconnect(&c->peers);
    c->rendezvous->timeout_ns = comm->deadline_ns;
    c->rendezvous->poll = (struct dp_poll){comm->poll, comm->poll_user};
    int err = dp_rendezvous_gather(c->rendezvous, &c->endpoint, true, until_ns);
    if (!err)
        err = begin_links(c, until_ns);
    if (err) {
        const struct dp_abort why = {.rank = comm->rank, .error = err, .text = "reset failed"};
        dp_abort_record_put(&c->rendezvous->abort_record, &why); /* stay aborted */
        return err;
    }
    c->told_doing = 0;
    memset(c->broken_since_ns, 0, (size_t)comm->size * sizeof(*c->broken_since_ns));
    c->any_broken = c->waiting_told = c->finished = false;
    c->waiting_for = -1;
    return 0;
}

static void wire_comm_close_channels(struct dp_comm *comm, int first, int count)
{
    dp_peers_close_channels(&of(comm)->peers, first, count);
}

/* is_broken: a rank of it may not be there any more. */
static void free_comm(struct wire_comm *c, bool is_broken)
{
    dp_peers_fini(&c->peers);
    if (c->mpi.ops)
        c->mpi.ops->end(c->mpi.group, is_broken);
    if (c->wake >= 0)
        close(c->wake);
    free(c->broken_since_ns);
    free(c->fds);
    free(c);
}

static void leave(struct wire_comm *c)
{
    struct dp_comm *comm = &c->base;

    dp_progress_thread_free(c->progress_thread);
    if (comm->hooks) {
        check_abort(c);
        comm->hooks->leave(comm);
    }
    dp_peers_disconnect(&c->peers);
    if (comm->hooks)
        comm->hooks->end_watch(comm->survival);
    dp_peers_unlisten(&c->peers);
    c->rendezvous->timeout_ns = comm->deadline_ns;
    c->rendezvous->poll = (struct dp_poll){comm->poll, comm->poll_user};
    dp_rendezvous_leave(c->rendezvous);
    c->rendezvous = NULL;
    c->progress_thread = NULL;
    comm->progress_runs = false;
    c->has_left = true;
}

/* ---- the end of the process: a rank that returns from main without a close ------------------- */

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct wire_comm *open_comms;

/* A process that fails has not left: the others are to hear that it has ended. Nor has a child of the
 * process that opened it, which may have been forked while another thread had the lock; and one that
 * exits beside a thread that waits is in the middle of something. */
static void leave_at_exit(int status, void *unused)
{
    (void)unused;
    if (pthread_mutex_trylock(&open_lock))
        return;
    for (struct wire_comm *c = open_comms; c && !status; c = c->next_open)
        if (c->forks == dp_forks_passed && !c->has_left && !atomic_load(&c->base.waits))
            leave(c);
    pthread_mutex_unlock(&open_lock);
}

static void add_open(struct wire_comm *c)
{
    static bool is_known;

    pthread_mutex_lock(&open_lock);
    if (!is_known)
        is_known = !on_exit(leave_at_exit, NULL);
    c->forks = dp_forks_passed;
    c->next_open = open_comms;
    open_comms = c;
    pthread_mutex_unlock(&open_lock);
}

static void remove_open(struct wire_comm *c)
{
    pthread_mutex_lock(&open_lock);
    for (struct wire_comm **at = &open_comms; *at; at = &(*at)->next_open)
        if (*at == c) {
            *at = c->next_open;
            break;
        }
    pthread_mutex_unlock(&open_lock);
}

static void wire_comm_close(struct dp_comm *comm)
{
    struct wire_comm *c = of(comm);
    const bool is_broken = !c->has_left && wire_comm_aborted(comm, NULL);

    remove_open(c);
    if (!c->has_left)
        leave(c);
    free_comm(c, is_broken);
}

/* ---- loans: what this rank lends goes with the wire that it sends on ------------------------- */

static struct dp_wire *lending_wire(struct dp_comm *comm, int peer, int channel, bool in)
{
    struct dp_wire *wire = dp_peers_wire(&of(comm)->peers, peer, channel, in);

    return wire && wire->ops->loans ? wire : NULL;
}

static bool wire_comm_lend(struct dp_comm *comm, int peer, int channel, void *buf, size_t len,
                           struct dp_wire_loan *out)
{
    struct dp_wire *wire = lending_wire(comm, peer, channel, false);

    return wire && wire->ops->loans->lend(wire, buf, len, out);
}

static void wire_comm_end_loan(struct dp_comm *comm, int peer, int channel)
{
    struct dp_wire *wire = lending_wire(comm, peer, channel, false);

    if (wire)
        wire->ops->loans->end(wire);
}

static char *wire_comm_use(struct dp_comm *comm, int peer, int channel,
                           const struct dp_wire_loan *loan, size_t len)
{
    struct dp_wire *wire = lending_wire(comm, peer, channel, true);

    return wire ? wire->ops->loans->use(wire, loan, len) : NULL;
}

static void wire_comm_leave(struct dp_comm *comm, int peer, int channel)
{
    struct dp_wire *wire = lending_wire(comm, peer, channel, true);

    wire->ops->loans->leave(wire);
}

static const struct dp_comm_loan_ops loan_ops = {wire_comm_lend, wire_comm_end_loan, wire_comm_use,
                                                 wire_comm_leave};

static const struct dp_comm_ops wire_comm_ops[] = {
#define OPS(NAME, SURVIVAL)                                                                        \
    {                                                                                              \
        .name = NAME, .caps = {.tags = true}, .isend = wire_comm_isend, .irecv = wire_comm_irecv,  \
        .irecv_any = wire_comm_irecv_any, .received = wire_comm_received,                          \
        .close_channels = wire_comm_close_channels, .busy = wire_comm_busy,                        \
        .busy_until = wire_comm_busy_until, .test = wire_comm_test, .is_done = wire_comm_is_done,  \
        .progress = wire_comm_progress, .watch = wire_comm_watch, .sleep = wire_comm_sleep,        \
        .progress_start = wire_comm_progress_start, .progress_stop = wire_comm_progress_stop,      \
        .abort = wire_comm_abort, .aborted = wire_comm_aborted, .reset = wire_comm_reset,          \
        .describe = wire_comm_describe,                                                            \
        .survival = SURVIVAL, .close = wire_comm_close, .loans = &loan_ops,                        \
    }
    [DP_TRANSPORT_AUTO] = OPS("auto", &wire_comm_survival),
    [DP_TRANSPORT_SHM] = OPS("shm", &wire_comm_survival),
    [DP_TRANSPORT_TCP] = OPS("tcp", &wire_comm_survival),
    [DP_TRANSPORT_MPI] = OPS("mpi", NULL),
#undef OPS
};

/* ---- opening ------------------------------------------------------------------------------- */

static int new_comm(struct wire_comm **out)
{
    struct wire_comm *c = calloc(1, sizeof(*c));
    int err = 0;

    if (!c)
        return dp_fail(DP_ENOMEM, "no memory for a communicator");
    c->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (c->wake < 0)
        err = dp_fail(DP_EIO, "no eventfd for a group: %s", dp_errno_text(errno));
    c->waiting_for = -1;
    if (err)
        free_comm(c, true);
    else
        *out = c;
    return err;
}

/* Join; a process that is new learns only then how many ranks there are. */
static int join_group(struct wire_comm *c, const struct dp_rendezvous_config *config)
{
    int err = dp_rendezvous_join(config, &c->rendezvous);

    if (err)
        return err;
    const size_t size = (size_t)c->rendezvous->size;
    c->fds = calloc(1 + 3 * size + DP_PEERS_FDS, sizeof(*c->fds));
    c->broken_since_ns = calloc(size, sizeof(*c->broken_since_ns));
    if (!c->fds || !c->broken_since_ns)
        return dp_fail(DP_ENOMEM, "no memory for a group of %zu ranks", size);
    return 0;
}

/* The first gather exchanges the endpoints, the second one tells that all wires are connected. */
static int connect_group(struct wire_comm *c, enum dp_transport transport,
                         const struct dp_comm_settings *settings, int64_t until_ns)
{
    int err = dp_peers_init(&c->peers, c->rendezvous, transport, c->mpi, settings, &c->endpoint);

    if (!err)
        err = dp_rendezvous_gather(c->rendezvous, &c->endpoint, true, until_ns);
    return err ? err : begin_links(c, until_ns);
}

int dp_comm_wire_open(const struct dp_rendezvous_config *config, enum dp_transport transport,
                      struct dp_peers_mpi mpi, const struct dp_comm_settings *settings,
                      struct dp_comm **out)
{
    const int64_t until_ns = dp_now_ns() + config->timeout_ns;
    struct wire_comm *c = NULL;
    int err = new_comm(&c);

    dp_sockets_stay();
    if (err) {
        dp_wire_tcp.unlisten(config->listener);
        if (mpi.ops)
            mpi.ops->end(mpi.group, true);
        return err;
    }
    c->mpi = mpi;
    err = dp_progress_thread_new(&thread_ops, c, DP_PEERS_FDS, &c->progress_thread);
    if (err)
        dp_wire_tcp.unlisten(config->listener);
    else
        err = join_group(c, config);
    if (!err)
        err = connect_group(c, transport, settings, until_ns);
    if (err) {
        dp_progress_thread_free(c->progress_thread);
        if (c->rendezvous) {
            dp_rendezvous_drain(c->rendezvous);
            dp_rendezvous_free(c->rendezvous);
        }
        free_comm(c, true);
        return err;
    }
    const int rank = c->rendezvous->rank, size = c->rendezvous->size;
    const int here = dp_peers_count_here(c->rendezvous->endpoints, size, rank);
    dp_comm_init(&c->base, &wire_comm_ops[c->peers.transport], rank, size, here, settings);
    c->base.deadline_ns = config->timeout_ns;
    c->base.tell_doing_ns = TELL_DOING_NS * (size > 8 ? size / 8 : 1);
    c->rendezvous->own_doing = &c->base.own_doing;
    c->base.poll = config->poll.fn;
    c->base.poll_user = config->poll.user;
    if (here > 1 && c->peers.transport <= DP_TRANSPORT_SHM)
        c->base.shared_bytes = DP_SHM_LARGE;
    c->base.lends = c->base.shared_bytes && here == size;
    add_open(c);
    *out = &c->base;
    return 0;
}
