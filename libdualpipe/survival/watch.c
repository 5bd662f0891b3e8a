/* SPDX-License-Identifier: Apache-2.0
 *
 * watch.c - the wires by which processes of a group watch and tell each other, see survival.h.
 */
#include "survival/survival.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "comm/peers.h"
#include "wire/tcp.h"

#include <stdlib.h>
#include <string.h>

enum { NEIGHBORS = 2 };
static const int64_t FLUSH_NS = 100 * DP_NS_PER_MS; /* for wires that are being connected */

struct outgoing {
    struct outgoing *next;
    struct dp_wire_request req;
    uint64_t bytes[];
};

struct dp_watch_wire {
    struct dp_watch_wire *next;
    int peer;
    bool is_set_up; /* once it is connected */
    bool is_armed;
    struct dp_wire *wire;
    struct dp_wire_request receive;
    struct outgoing *outgoing; /* in any order */
    uint64_t in[];             /* one message */
};

/* ---- wires ----------------------------------------------------------------------------------- */

static void free_wire(struct dp_watch_wire *v)
{
    dp_wire_close(v->wire);
    while (v->outgoing) {
        struct outgoing *o = v->outgoing;
        v->outgoing = o->next;
        free(o);
    }
    free(v);
}

/* Takes the wire. */
static int add_wire(struct dp_survival *s, int peer, struct dp_wire *wire)
{
    struct dp_watch_wire *v = calloc(1, sizeof(*v) + s->room);

    if (!v) {
        dp_wire_close(wire);
        return dp_fail_quietly(DP_ENOMEM, "no memory to watch rank %d", peer);
    }
    v->peer = peer;
    v->wire = wire;
    v->next = s->watch.wires;
    s->watch.wires = v;
    dp_wire_irecv(wire, v->in, s->room, &v->receive);
    return 0;
}

static struct dp_watch_wire *find_wire(const struct dp_survival *s, int peer)
{
    struct dp_watch_wire *v = s->watch.wires;

    while (v && (v->peer != peer || v->wire->error))
        v = v->next;
    return v;
}

/* Logged where it is found, once. */
static int end_own_part(struct dp_survival *s, int err, const char *why)
{
    char text[sizeof(s->end.text)];

    dp_snprintf(text, sizeof(text), "%s", why);
    if (!s->end.error)
        dp_fail(err, "%s", text);
    dp_survival_end(s->world, err, text);
    return err;
}

/* DP_EIO, DP_ENOMEM: this rank cannot, which is no death of the peer but ends this rank's part in the
 * group; so do failures of the others. */
static int watch(struct dp_survival *s, int peer)
{
    struct dp_wire *wire;

    if (dp_survival_has(s->dead, peer) || find_wire(s, peer))
        return 0;
    int err = dp_peers_connect(s->watch.peers, peer, DP_WATCH_CHANNEL, &wire);
    if (!err)
        err = add_wire(s, peer, wire);
    return err ? end_own_part(s, err, dp_last_error()) : 0;
}

/* The next live ranks, unless the ring is so short that they are known from the other side. */
void dp_watch_begin(struct dp_survival *s)
{
    const int rank = dp_comm_rank(s->world), size = dp_comm_size(s->world);
    int found = 0;

    for (int i = 1, err = 0; i < size && found < NEIGHBORS && !err; i++) {
        const int peer = (rank + i) % size;
        err = watch(s, peer);
        found += !dp_survival_has(s->dead, peer);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void free_sent(struct dp_watch_wire *v)
{
    for (struct outgoing **at = &v->outgoing; *at;) {
        struct outgoing *o = *at;
        if (o->req.status == DP_EAGAIN) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        free(o);
    }
}

static void send_on(struct dp_survival *s, struct dp_watch_wire *v, const void *message, size_t len)
{
    struct outgoing *o = malloc(sizeof(*o) + len);

    if (!o) {
        end_own_part(s, DP_ENOMEM, "no memory for a message to another rank");
        return;
    }
    free_sent(v);
    memcpy(o->bytes, message, len);
    o->next = v->outgoing;
    v->outgoing = o;
    dp_wire_isend(v->wire, 0, o->bytes, len, &o->req);
}

static void tell(struct dp_survival *s, int peer, const void *message, size_t len)
{
    watch(s, peer);
    struct dp_watch_wire *v = find_wire(s, peer);
    if (v)
        send_on(s, v, message, len);
}

/* Over both of two wires to one peer: that it leaves must come before the end of either. */
static void tell_neighbors(struct dp_survival *s, const void *message, size_t len)
{
    for (struct dp_watch_wire *v = s->watch.wires; v; v = v->next)
        if (!v->wire->error)
            send_on(s, v, message, len);
}

static bool is_anything_unsent(const struct dp_survival *s)
{
    bool unsent = false;

    for (const struct dp_watch_wire *v = s->watch.wires; v; v = v->next) {
        v->wire->ops->progress(v->wire);
        unsent |= !v->wire->error && dp_wire_is_sending(v->wire);
    }
    return unsent;
}

static void flush(struct dp_survival *s)
{
    const int64_t until_ns = dp_now_ns() + FLUSH_NS;
    unsigned backoff_us = 0;

    while (is_anything_unsent(s) && dp_now_ns() < until_ns)
        dp_backoff(&backoff_us);
}

static void watch_too(struct dp_survival *s, int peer)
{
    watch(s, peer);
}

static const struct dp_survival_news by_wires = {tell, tell_neighbors, watch_too, flush};

/* ---- polling --------------------------------------------------------------------------------- */

static void set_up(struct dp_survival *s, struct dp_watch_wire *v)
{
    v->is_set_up = true;
    if (v->wire->ops == &dp_wire_tcp)
        dp_wire_tcp_set_timeout(v->wire, s->watch.timeout_ns);
    dp_survival_tell_own_note(s, v->peer);
}

static void poll_wire(struct dp_survival *s, struct dp_watch_wire *v)
{
    v->wire->ops->progress(v->wire);
    if (!v->is_set_up && v->wire->connected && !v->wire->error)
        set_up(s, v);
    while (!v->receive.status) {
        dp_survival_handle(s->world, v->peer, v->in, v->receive.moved);
        dp_wire_irecv(v->wire, v->in, s->room, &v->receive);
    }
    if (v->receive.status == DP_EAGAIN && (v->wire->connected || !v->wire->is_refused))
        return;
    if (dp_comm_is_own_fault(v->wire->error)) {
        end_own_part(s, v->wire->error, v->wire->why);
        return;
    }
    if (!v->wire->error)
        dp_wire_fail(v->wire, v->wire->connected ? DP_EMISMATCH : DP_ECOMM, "%s",
                     v->wire->connected ? "too long a message" : "no process listens");
    dp_survival_lose(s, v->peer, DP_DEATH_ENDED);
}

static void sweep(struct dp_survival *s)
{
    for (struct dp_watch_wire **at = &s->watch.wires; *at;) {
        struct dp_watch_wire *v = *at;
        if (!v->wire->error) {
            at = &v->next;
            continue;
        }
        *at = v->next;
        free_wire(v);
    }
}

/* What rank 0 and, on rank 0, the others' connections to it have said since. */
static void hear_rendezvous(struct dp_survival *s, unsigned ends)
{
    const int size = ends != s->watch.ends_seen ? dp_comm_size(s->world) : 0;

    for (int peer = 0; peer < size; peer++)
        if (dp_rendezvous_has_left(s->watch.peers->rendezvous, peer))
            dp_survival_lose(s, peer, DP_DEATH_LEFT);
        else if (dp_rendezvous_has_ended(s->watch.peers->rendezvous, peer))
            dp_survival_lose(s, peer, DP_DEATH_ENDED);
    s->watch.ends_seen = ends;
}

/* Wires that are added meanwhile come to the front of the list. */
static void poll_wires(struct dp_survival *s)
{
    struct dp_wire *wire;
    int peer;

    while (dp_peers_take_watch(s->watch.peers, &peer, &wire))
        if (add_wire(s, peer, wire))
            end_own_part(s, DP_ENOMEM, dp_last_error());
    for (struct dp_watch_wire *v = s->watch.wires; v && !s->end.error; v = v->next)
        poll_wire(s, v);
    sweep(s);
}

/* The wires first: what a rank has sent before it left counts. */
static void poll_all(struct dp_survival *s)
{
    const unsigned ends = dp_rendezvous_ends(s->watch.peers->rendezvous);

    poll_wires(s);
    hear_rendezvous(s, ends);
    if (s->dead_count != s->watch.deaths_seen) {
        s->watch.deaths_seen = s->dead_count;
        dp_watch_begin(s);
    }
}

/* No descriptor reports that a connection is made. */
static int arm(struct dp_survival *s, struct pollfd *fds, int room, int64_t *sleep_ns)
{
    const int64_t connecting_ns = 10 * DP_NS_PER_MS;
    int count = 0;

    for (struct dp_watch_wire *v = s->watch.wires; v && count < room; v = v->next) {
        if (!v->wire->connected && *sleep_ns > connecting_ns)
            *sleep_ns = connecting_ns;
        if (v->receive.status != DP_EAGAIN)
            return -1;
        v->is_armed = true;
        if (!v->wire->ops->arm(v->wire, &fds[count++]))
            return -1;
    }
    return count;
}

static void disarm(struct dp_survival *s)
{
    for (struct dp_watch_wire *v = s->watch.wires; v; v = v->next) {
        if (v->is_armed)
            v->wire->ops->disarm(v->wire, POLLIN);
        v->is_armed = false;
    }
}

static void end_watch(struct dp_survival *s)
{
    while (s->watch.wires) {
        struct dp_watch_wire *v = s->watch.wires;
        s->watch.wires = v->next;
        v->wire->ops->progress(v->wire);
        free_wire(v);
    }
}

void dp_watch_use(struct dp_survival *s, struct dp_peers *peers)
{
    s->watch.peers = peers;
    s->watch.timeout_ns = dp_comm_deadline(s->world);
    s->news = &by_wires;
    s->hooks.watch = watch;
    s->hooks.poll = poll_all;
    s->hooks.arm = arm;
    s->hooks.disarm = disarm;
    s->hooks.end_watch = end_watch;
}
