/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/peers.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "wire/tcp.h"

#include <stdlib.h>
#include <string.h>

enum { NEIGHBORS = 2 };

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
static int add_wire(struct dp_watch *w, int peer, struct dp_wire *wire)
{
    struct dp_watch_wire *v = calloc(1, sizeof(*v) + w->survival->room);

    if (!v) {
        dp_wire_close(wire);
        return dp_fail_quietly(DP_ENOMEM, "no memory to watch rank %d", peer);
    }
    v->peer = peer;
    v->wire = wire;
    v->next = w->wires;
    w->wires = v;
    w->count++;
    w->added++;
    dp_wire_irecv(wire, v->in, w->survival->room, &v->receive);
    return 0;
}

static struct dp_watch_wire *find_wire(const struct dp_watch *w, int peer)
{
    struct dp_watch_wire *v = w->wires;

    while (v && (v->peer != peer || v->wire->error))
        v = v->next;
    return v;
}

/* Logged where it is found, once. */
static int end_own_part(struct dp_watch *w, int err, const char *why)
{
    char text[sizeof(w->survival->end.text)];

    dp_snprintf(text, sizeof(text), "%s", why);
    if (!w->survival->end.error)
        dp_fail(err, "%s", text);
    dp_survival_end(w->survival, err, text);
    return err;
}

int dp_watch_peer(struct dp_watch *w, int peer)
{
    struct dp_wire *wire;

    if (dp_survival_is_gone(w->survival, peer) || find_wire(w, peer))
        return 0;
    int err = dp_peers_connect(w->peers, peer, DP_WATCH_CHANNEL, &wire);
    if (!err)
        err = add_wire(w, peer, wire);
    return err ? end_own_part(w, err, dp_last_error()) : 0;
}

/* The next live ranks, unless the ring is so short that they are known from the other side. */
void dp_watch_begin(struct dp_watch *w)
{
    const struct dp_comm *world = w->survival->world;
    int found = 0;

    for (int i = 1, err = 0; i < world->size && found < NEIGHBORS && !err; i++) {
        const int peer = (world->rank + i) % world->size;
        err = dp_watch_peer(w, peer);
        found += !dp_survival_is_gone(w->survival, peer);
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

static void send_on(struct dp_watch *w, struct dp_watch_wire *v, const void *message, size_t len)
{
    struct outgoing *o = malloc(sizeof(*o) + len);

    if (!o) {
        end_own_part(w, DP_ENOMEM, "no memory for a message to another rank");
        return;
    }
    free_sent(v);
    memcpy(o->bytes, message, len);
    o->next = v->outgoing;
    v->outgoing = o;
    dp_wire_isend(v->wire, 0, o->bytes, len, &o->req);
}

void dp_watch_tell(struct dp_watch *w, int peer, const void *message, size_t len)
{
    dp_watch_peer(w, peer);
    struct dp_watch_wire *v = find_wire(w, peer);
    if (v)
        send_on(w, v, message, len);
}

/* Over both of two wires to one peer: that it leaves must come before the end of either. */
void dp_watch_tell_neighbors(struct dp_watch *w, const void *message, size_t len)
{
    for (struct dp_watch_wire *v = w->wires; v; v = v->next)
        if (!v->wire->error)
            send_on(w, v, message, len);
}

static bool is_anything_unsent(const struct dp_watch *w)
{
    bool unsent = false;

    for (const struct dp_watch_wire *v = w->wires; v; v = v->next) {
        v->wire->ops->progress(v->wire);
        unsent |= !v->wire->error && v->wire->sends.head;
    }
    return unsent;
}

void dp_watch_flush(struct dp_watch *w, int64_t until_ns)
{
    unsigned backoff_us = 0;

    while (is_anything_unsent(w) && dp_now_ns() < until_ns)
        dp_backoff(&backoff_us);
}

/* ---- polling --------------------------------------------------------------------------------- */

static void set_up(const struct dp_watch *w, struct dp_watch_wire *v)
{
    v->is_set_up = true;
    if (v->wire->ops == &dp_wire_tcp)
        dp_wire_tcp_set_timeout(v->wire, w->timeout_ns);
}

static void poll_wire(struct dp_watch *w, struct dp_watch_wire *v)
{
    v->wire->ops->progress(v->wire);
    if (!v->is_set_up && v->wire->connected && !v->wire->error)
        set_up(w, v);
    while (!v->receive.status) {
        dp_survival_handle(w->survival, v->peer, v->in, v->receive.moved);
        dp_wire_irecv(v->wire, v->in, w->survival->room, &v->receive);
    }
    if (v->receive.status == DP_EAGAIN && (v->wire->connected || !v->wire->is_refused))
        return;
    if (dp_survival_is_own_fault(v->wire->error)) {
        end_own_part(w, v->wire->error, v->wire->why);
        return;
    }
    if (!v->wire->error)
        dp_wire_fail(v->wire, v->wire->connected ? DP_EMISMATCH : DP_ECOMM, "%s",
                     v->wire->connected ? "too long a message" : "no process listens");
    dp_survival_lose(w->survival, v->peer, DP_DEATH_ENDED);
}

static void sweep(struct dp_watch *w)
{
    for (struct dp_watch_wire **at = &w->wires; *at;) {
        struct dp_watch_wire *v = *at;
        if (!v->wire->error) {
            at = &v->next;
            continue;
        }
        *at = v->next;
        w->count--;
        free_wire(v);
    }
}

/* Wires that are added meanwhile come to the front of the list. */
void dp_watch_poll(struct dp_watch *w)
{
    const int before = w->survival->dead_count;
    struct dp_wire *wire;
    int peer;

    while (dp_peers_take_watch(w->peers, &peer, &wire))
        if (add_wire(w, peer, wire))
            end_own_part(w, DP_ENOMEM, dp_last_error());
    for (struct dp_watch_wire *v = w->wires; v && !w->survival->end.error; v = v->next)
        poll_wire(w, v);
    if (w->survival->dead_count != before)
        dp_watch_begin(w);
    sweep(w);
}

int dp_watch_arm(struct dp_watch *w, struct pollfd *fds, int room)
{
    int count = 0;

    for (struct dp_watch_wire *v = w->wires; v && count < room; v = v->next) {
        if (v->receive.status != DP_EAGAIN)
            return -1;
        v->is_armed = true;
        if (!v->wire->ops->arm(v->wire, &fds[count++]))
            return -1;
    }
    return count;
}

void dp_watch_disarm(struct dp_watch *w)
{
    for (struct dp_watch_wire *v = w->wires; v; v = v->next) {
        if (v->is_armed)
            v->wire->ops->disarm(v->wire, POLLIN);
        v->is_armed = false;
    }
}

bool dp_watch_is_connecting(const struct dp_watch *w)
{
    for (const struct dp_watch_wire *v = w->wires; v; v = v->next)
        if (!v->wire->connected)
            return true;
    return false;
}

void dp_watch_end(struct dp_watch *w)
{
    while (w->wires) {
        struct dp_watch_wire *v = w->wires;
        w->wires = v->next;
        v->wire->ops->progress(v->wire);
        free_wire(v);
    }
    w->count = 0;
}
