/* SPDX-License-Identifier: Apache-2.0
 *
 * wired.c - ranks that are processes: a mesh of wires for messages, a star of connections for what
 * concerns all.
 *
 * The hot path is one wire: isend and irecv queue a request there, test moves it along. Wires with
 * something to do are on a list, which is gone through when a test has been in vain. The star is looked
 * after now and then, between tests in vain.
 *
 * A wire that breaks does not say why. Has its peer left? Then it is the caller's error. Has it died?
 * The root will soon know. So the request waits for the star to tell, for a second at most.
 */
#include "config.h" /* GNU extensions: ppoll */

#include "base/clock.h"
#include "base/fail.h"
#include "comm/mover.h"
#include "comm/relax.h"
#include "comm/wired.h"
#include "wire/shm.h"
#include "wire/sockets.h"
#include "wire/tcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static const int64_t STAR_EVERY_NS = 200 * DP_NS_PER_US, STAR_PER_PEER_NS = 20 * DP_NS_PER_US;
enum { LOOKS = 16 }; /* of one watch */
static const int64_t SUSPECT_NS = DP_NS_PER_S;     /* how long a broken wire waits for its reason */
static const int64_t TELL_NS = 100 * DP_NS_PER_MS; /* a wait this long is told to the root */

struct request {
    struct dp_wire_request wire;
    uint64_t tag; /* wire.tag becomes that of the message */
    int32_t peer;
    uint8_t channel;
    bool is_send;
};
_Static_assert(sizeof(struct request) <= sizeof(struct dp_request), "a request fits");

struct wired_comm {
    struct dp_comm base;
    struct dp_star *star;
    struct dp_mesh mesh;
    struct dp_mesh_mpi mpi;
    struct dp_card card;

    struct pollfd *fds;
    int wake; /* an eventfd: another thread has called abort */

    int64_t polled_ns;
    unsigned moves; /* dp_mesh_moves when last looked at, and since when */
    int64_t moved_ns;
    int waiting_for;
    int64_t waiting_since_ns;
    bool waiting_told;
    int64_t *broken_since_ns; /* [size] 0: no wire to this peer is broken */
    bool any_broken;
    bool finished; /* after an abort: no request of this rank is left */
    struct dp_mover *mover;
};

static struct wired_comm *of(struct dp_comm *comm)
{
    return (struct wired_comm *)comm;
}

/* ---- abort --------------------------------------------------------------------------------- */

/* No request of this rank is left. */
static void finish_requests(struct wired_comm *c)
{
    dp_mesh_fail(&c->mesh);
    c->finished = true;
}

static int check_abort(struct wired_comm *c)
{
    if (!dp_blame_get(&c->star->blame, NULL))
        return 0;
    if (!c->finished)
        finish_requests(c);
    return DP_EABORTED;
}

/* ---- star ---------------------------------------------------------------------------------- */

static int poll_star(struct wired_comm *c, int64_t now_ns)
{
    if (now_ns - c->polled_ns >= STAR_EVERY_NS + STAR_PER_PEER_NS * c->base.size) {
        c->polled_ns = now_ns;
        dp_star_poll(c->star);
    }
    return check_abort(c);
}

/* Only a wait that has become long is worth a message. */
static int64_t tell_after_ns(const struct wired_comm *c)
{
    return c->base.deadline_ns / 4 < TELL_NS ? c->base.deadline_ns / 4 : TELL_NS;
}

static void note_waiting(struct wired_comm *c, int peer, int64_t now_ns)
{
    if (peer != c->waiting_for) {
        if (c->waiting_told)
            dp_star_tell_waiting(c->star, -1);
        c->waiting_told = false;
        c->waiting_for = peer;
        c->waiting_since_ns = now_ns;
    }
    if (peer >= 0 && !c->waiting_told && now_ns - c->waiting_since_ns >= tell_after_ns(c)) {
        dp_star_tell_waiting(c->star, peer);
        c->waiting_told = true;
    }
}

/* ---- requests ------------------------------------------------------------------------------ */

static int prepare(struct dp_comm *comm, int peer, int channel, uint64_t tag, bool is_send,
                   struct request *r)
{
    r->tag = tag;
    r->peer = peer;
    r->channel = (uint8_t)channel;
    r->is_send = is_send;
    return check_abort(of(comm));
}

static int wired_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                       size_t len, struct dp_request *req)
{
    struct dp_mesh *mesh = &of(comm)->mesh;
    struct request *r = (struct request *)req;
    int err = prepare(comm, peer, channel, tag, true, r);

    if (err)
        return err;
    dp_wire_isend(dp_mesh_wire(mesh, peer, channel), tag, buf, len, &r->wire);
    dp_mesh_note(mesh, peer, channel);
    return 0;
}

static int wired_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                       size_t len, struct dp_request *req)
{
    struct dp_mesh *mesh = &of(comm)->mesh;
    struct request *r = (struct request *)req;
    int err = prepare(comm, peer, channel, tag, false, r);

    if (err)
        return err;
    dp_wire_irecv(dp_mesh_wire(mesh, peer, channel), buf, len, &r->wire);
    dp_mesh_note(mesh, peer, channel);
    return 0;
}

/* See the top. DP_EAGAIN while nobody has told. */
static int find_reason(struct wired_comm *c, int peer, const struct dp_wire *wire)
{
    const int64_t now_ns = dp_now_ns();
    struct dp_abort why = {.rank = peer, .error = wire->error ? wire->error : DP_ECOMM};

    dp_star_poll(c->star);
    if (check_abort(c))
        return DP_EABORTED;
    if (dp_star_has_left(c->star, peer))
        return dp_fail(DP_ECOMM, "rank %d has left the group", peer);
    if (!c->broken_since_ns[peer]) {
        c->broken_since_ns[peer] = now_ns;
        c->any_broken = true;
    }
    if (now_ns - c->broken_since_ns[peer] < SUSPECT_NS)
        return DP_EAGAIN;
    snprintf(why.text, sizeof(why.text), "the connection between rank %d and rank %d broke: %s",
             c->base.rank, peer, wire->why);
    dp_star_abort(c->star, &why);
    return check_abort(c);
}

/* A receive may also be refused its message, by a wire that works. */
static bool is_lost(const struct request *r, const struct dp_wire *wire)
{
    return r->wire.status &&
           (r->is_send || r->wire.status != DP_EMISMATCH || wire->error == DP_EMISMATCH);
}

static int check_message(const struct request *r)
{
    if (r->is_send || (!r->wire.status && r->wire.tag == r->tag && r->wire.moved == r->wire.len))
        return 0;
    return dp_fail(DP_EMISMATCH,
                   "message of rank %d: expected tag %" PRIu64 " and %zu bytes, it has tag %" PRIu64
                   " and %zu bytes",
                   r->peer, r->tag, r->wire.len, r->wire.tag, r->wire.moved);
}

static int wired_test(struct dp_comm *comm, struct dp_request *req)
{
    struct wired_comm *c = of(comm);
    struct request *r = (struct request *)req;
    struct dp_wire *wire = dp_mesh_wire(&c->mesh, r->peer, r->channel);
    int err = check_abort(c);

    if (err)
        return err;
    if (r->wire.status == DP_EAGAIN)
        wire->ops->progress(wire);
    if (r->wire.status == DP_EAGAIN) {
        dp_mesh_progress(&c->mesh);
        err = poll_star(c, dp_now_ns());
        if (err)
            return err;
    }
    /* Looked at once more: who is told to try again may sleep, and nobody wakes him for what is done. */
    if (r->wire.status == DP_EAGAIN)
        return DP_EAGAIN;
    if (is_lost(r, wire))
        return find_reason(c, r->peer, wire);
    return check_message(r);
}

static int wired_progress(struct dp_comm *comm, int waiting_for)
{
    struct wired_comm *c = of(comm);
    const int64_t now_ns = dp_now_ns();

    dp_mesh_progress(&c->mesh);
    int err = poll_star(c, now_ns);
    if (!err)
        note_waiting(c, waiting_for, now_ns);
    return err;
}

/* A look at a ring costs some nanoseconds. One that takes a system call costs more than the clocks. */
static void wired_watch(struct dp_comm *comm, const struct dp_request *req)
{
    const struct request *r = (const struct request *)req;
    struct dp_wire *wire = dp_mesh_wire(&of(comm)->mesh, r->peer, r->channel);

    for (int i = 0; i < LOOKS && r->wire.status == DP_EAGAIN && !wire->nothing_ahead; i++) {
        if (i)
            dp_relax();
        wire->ops->progress(wire);
    }
}

/* ---- sleeping ------------------------------------------------------------------------------ */

/* Some wires (MPI's) have nothing to poll for: come back the later the longer it has taken already. */
static int64_t limit_sleep(const struct wired_comm *c, const struct pollfd *fds, int armed,
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

static void sleep_on(struct wired_comm *c, int controls, int wires, int64_t ns)
{
    const struct timespec timeout = {.tv_sec = ns / DP_NS_PER_S, .tv_nsec = ns % DP_NS_PER_S};

    if (ppoll(c->fds, (nfds_t)(1 + controls + wires), &timeout, NULL) <= 0)
        return;
    if (c->fds[0].revents)
        drain(c->wake);
    for (int i = 0; i <= controls; i++)
        if (c->fds[i].revents)
            c->polled_ns = 0; /* the next progress looks at the star */
}

/* A long message comes in many pieces: the next one is as near as the first was, when the rank spun. */
static bool is_moving(struct wired_comm *c, int64_t now_ns)
{
    const unsigned moves = dp_mesh_moves(&c->mesh);

    if (moves != c->moves)
        c->moved_ns = now_ns;
    c->moves = moves;
    return now_ns - c->moved_ns < c->base.spin_ns;
}

static void wired_sleep(struct dp_comm *comm, int64_t until_ns)
{
    struct wired_comm *c = of(comm);
    int64_t now_ns = dp_now_ns(), ns = until_ns - now_ns;
    int armed = 0;

    if (is_moving(c, now_ns))
        return;
    /* Back in time for what no message announces. */
    if (c->waiting_for >= 0 && !c->waiting_told &&
        ns > c->waiting_since_ns + tell_after_ns(c) - now_ns)
        ns = c->waiting_since_ns + tell_after_ns(c) - now_ns;
    if (c->any_broken && ns > 10 * DP_NS_PER_MS)
        ns = 10 * DP_NS_PER_MS;
    if (ns <= 0)
        return;

    c->fds[0] = (struct pollfd){.fd = c->wake, .events = POLLIN};
    int controls = dp_star_arm(c->star, c->fds + 1);
    if (controls < 0) {
        c->polled_ns = 0;
        return;
    }
    struct pollfd *fds = c->fds + 1 + controls;
    if (dp_mesh_arm(&c->mesh, fds, &armed))
        sleep_on(c, controls, armed, limit_sleep(c, fds, armed, ns));
    dp_mesh_disarm(&c->mesh, fds, armed);
}

/* ---- away ---------------------------------------------------------------------------------- */

static void mover_move(void *user)
{
    dp_mesh_progress(user);
}

static bool mover_arm(void *user, struct pollfd *fds, int *count)
{
    return dp_mesh_arm(user, fds, count);
}

static void mover_disarm(void *user, const struct pollfd *fds, int count)
{
    dp_mesh_disarm(user, fds, count);
}

static const struct dp_mover_ops mover_ops = {mover_move, mover_arm, mover_disarm};

/* A send that is not done yet has met a full wire, and so will one that is too long for it. */
static bool needs_a_hand(const struct dp_wire *wire)
{
    if (wire->sends.head)
        return true;
    for (const struct dp_wire_request *req = wire->receives.head; req; req = req->next)
        if (req->len > wire->buffer_bytes)
            return true;
    return false;
}

static bool wired_away(struct dp_comm *comm)
{
    struct wired_comm *c = of(comm);

    /* MPI may not be called by a thread that it has not been told of. */
    for (int i = 0; i < c->mesh.busy_count && !c->mpi.ops; i++)
        if (needs_a_hand(c->mesh.wires[c->mesh.busy[i]])) {
            dp_mover_start(c->mover);
            return true;
        }
    return false;
}

static void wired_come_back(struct dp_comm *comm)
{
    dp_mover_stop(of(comm)->mover);
}

/* ---- failure, end ---------------------------------------------------------------------------- */

static int wired_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    struct wired_comm *c = of(comm);
    const uint64_t one = 1;

    dp_star_abort(c->star, why);
    ssize_t n = write(c->wake, &one, sizeof(one));
    (void)n;
    return 0;
}

static bool wired_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    return dp_blame_get(&of(comm)->star->blame, why);
}

/* Connect to all, and know that all have. */
static int connect_all(struct wired_comm *c, int64_t until_ns)
{
    int err = dp_mesh_connect(&c->mesh, c->star, until_ns);

    if (!err)
        return dp_star_gather(c->star, &c->card, false, until_ns);
    struct dp_abort why = {.rank = c->base.rank, .error = err};
    snprintf(why.text, sizeof(why.text), "%s", dp_last_error());
    dp_star_abort(c->star, &why);
    return err;
}

static int wired_reset(struct dp_comm *comm)
{
    struct wired_comm *c = of(comm);
    const int64_t until_ns = dp_now_ns() + comm->deadline_ns;

    finish_requests(c);
    dp_mesh_disconnect(&c->mesh);
    c->star->timeout_ns = comm->deadline_ns;
    int err = dp_star_gather(c->star, &c->card, true, until_ns);
    if (!err)
        err = connect_all(c, until_ns);
    if (err) {
        const struct dp_abort why = {.rank = comm->rank, .error = err, .text = "reset failed"};
        dp_blame_put(&c->star->blame, &why); /* stay aborted */
        return err;
    }
    memset(c->broken_since_ns, 0, (size_t)comm->size * sizeof(*c->broken_since_ns));
    c->any_broken = c->waiting_told = c->finished = false;
    c->waiting_for = -1;
    return 0;
}

static void free_comm(struct wired_comm *c)
{
    dp_mesh_fini(&c->mesh);
    if (c->mpi.ops)
        c->mpi.ops->end(c->mpi.group);
    if (c->wake >= 0)
        close(c->wake);
    free(c->broken_since_ns);
    free(c->fds);
    free(c);
}

static void wired_close(struct dp_comm *comm)
{
    struct wired_comm *c = of(comm);

    dp_mover_free(c->mover);
    dp_mesh_disconnect(&c->mesh);
    c->star->timeout_ns = comm->deadline_ns;
    dp_star_leave(c->star);
    free_comm(c);
}

static const struct dp_comm_ops wired_ops[] = {
#define OPS(NAME)                                                                                  \
    {                                                                                              \
        .name = NAME, .isend = wired_isend, .irecv = wired_irecv, .test = wired_test,              \
        .progress = wired_progress, .watch = wired_watch, .sleep = wired_sleep,                    \
        .away = wired_away, .come_back = wired_come_back, .abort = wired_abort,                    \
        .aborted = wired_aborted, .reset = wired_reset, .close = wired_close,                      \
    }
    [DP_MESH_AUTO] = OPS("auto"),
    [DP_MESH_SHM] = OPS("shm"),
    [DP_MESH_TCP] = OPS("tcp"),
    [DP_MESH_MPI] = OPS("mpi"),
#undef OPS
};

/* ---- opening ------------------------------------------------------------------------------- */

static struct wired_comm *new_comm(int size)
{
    const size_t wires = (size_t)size * DP_CHANNELS;
    struct wired_comm *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->waiting_for = -1;
    c->fds = calloc(1 + (size_t)size + wires, sizeof(*c->fds));
    c->broken_since_ns = calloc((size_t)size, sizeof(*c->broken_since_ns));
    if (c->wake >= 0 && c->fds && c->broken_since_ns)
        return c;
    free_comm(c);
    return NULL;
}

/* The first gather tells everybody's cards, the second that all wires are there. */
static int meet(struct wired_comm *c, const char *transport,
                const struct dp_comm_settings *settings, int64_t until_ns)
{
    int err = dp_mesh_init(&c->mesh, c->star, transport, c->mpi, settings, &c->card);

    if (!err)
        err = dp_star_gather(c->star, &c->card, true, until_ns);
    return err ? err : connect_all(c, until_ns);
}

int dp_comm_wired_open(const struct dp_star_config *config, const char *transport,
                       struct dp_mesh_mpi mpi, const struct dp_comm_settings *settings,
                       struct dp_comm **out)
{
    const int64_t until_ns = dp_now_ns() + config->timeout_ns;
    struct wired_comm *c = new_comm(config->size);

    dp_sockets_stay();
    if (!c) {
        dp_wire_tcp.unlisten(config->listener);
        if (mpi.ops)
            mpi.ops->end(mpi.group);
        return dp_fail(DP_ENOMEM, "no memory for a group of %d ranks", config->size);
    }
    c->mpi = mpi;
    int err = dp_mover_new(&mover_ops, &c->mesh, config->size * DP_CHANNELS, &c->mover);
    if (err)
        dp_wire_tcp.unlisten(config->listener);
    else
        err = dp_star_join(config, &c->star);
    if (!err)
        err = meet(c, transport, settings, until_ns);
    if (err) {
        dp_mover_free(c->mover);
        if (c->star)
            dp_star_free(c->star);
        free_comm(c);
        return err;
    }
    const int here = dp_mesh_count_here(c->star->cards, config->size, config->rank);
    dp_comm_init(&c->base, &wired_ops[c->mesh.transport], config->rank, config->size, here,
                 settings);
    c->base.deadline_ns = config->timeout_ns;
    if (here > 1 && c->mesh.transport <= DP_MESH_SHM)
        c->base.shared_bytes = DP_SHM_LARGE;
    *out = &c->base;
    return 0;
}
