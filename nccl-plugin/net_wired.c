/* SPDX-License-Identifier: Apache-2.0
 *
 * net_wired.c - messages over the comm's own wire. The tag of a message on the wire is its place at
 * the receiver, who gave it in the grant; so the bytes go straight to where they belong. What NCCL's
 * kernels watch for flags is copied there, in order, once it is complete (net_lines.h).
 */
#include "base/fail.h"
#include "nccl-plugin/net_comm.h"
#include "nccl-plugin/net_grants.h"
#include "nccl-plugin/net_lines.h"

#include <stdlib.h>
#include <string.h>

/* Instead of a message: it was too long for the place. Its length is in the upper bits. */
#define REFUSED ((uint64_t)1 << 63)
enum { SUB_BITS = 8, PLACE_BITS = 16 };

enum { ARRIVALS = 16 }; /* of one progress, so that one comm leaves time for the others */

/* One receive of a group. */
struct room {
    char *data;
    size_t size; /* the room; once done the message */
    int tag;
    bool done, is_watched;
    const struct dpn_memory *memory;
};

struct request {
    struct dpn_request base;
    struct wired *wired;
    struct dp_wire_request wire;        /* the message; of a receive the grant */
    const struct dpn_memory *memory;    /* of a send */
    unsigned count, left;               /* of a receive: rooms, and those not done */
    struct dpn_grant grant;
    struct room rooms[DPN_MAX_RECEIVES];
};

struct wired {
    struct dp_wire *wire;
    bool is_sender;
    struct dp_wire_request incoming;
    struct dpn_grant arrived; /* sender: where incoming goes */
    char *staging;            /* receiver: where incoming goes if it is watched */
    size_t staging_bytes;
    struct dpn_grants grants; /* sender */
    struct dp_wire_request refusal;
    uint32_t free; /* a bit per request */
    struct request requests[NCCL_NET_MAX_REQUESTS];
};

static uint64_t tag_of_place(struct dpn_place place)
{
    return (uint64_t)place.slot << SUB_BITS | place.sub;
}

/* ---- what arrives ---------------------------------------------------------------------------- */

/* The receive that a message of this tag belongs to, NULL: none that was granted. */
static struct room *find_room(struct wired *w, uint64_t tag, struct request **req)
{
    const uint64_t slot = tag >> SUB_BITS, sub = tag & ((1u << SUB_BITS) - 1);

    if (slot >= NCCL_NET_MAX_REQUESTS || w->free >> slot & 1 ||
        sub >= w->requests[slot].count || w->requests[slot].rooms[sub].done)
        return NULL;
    *req = &w->requests[slot];
    return &(*req)->rooms[sub];
}

/* Where there is no room, none is given: a message with bytes is refused by the wire, one without
 * when it is looked at. */
static void aim(struct dp_wire_request *incoming, uint64_t tag, size_t message_len)
{
    struct wired *w = (struct wired *)(void *)((char *)incoming - offsetof(struct wired, incoming));
    struct request *req;
    const struct room *room = find_room(w, tag, &req);

    (void)message_len;
    incoming->buf = !room ? NULL : room->is_watched ? w->staging : room->data;
    incoming->len = room ? room->size : 0;
}

static void take_refusal(struct wired *w, uint64_t tag)
{
    const size_t size = (size_t)((tag & ~REFUSED) >> PLACE_BITS);
    struct request *req;
    const struct room *room = find_room(w, tag & ((1u << PLACE_BITS) - 1), &req);

    dp_wire_fail(w->wire, DP_EMISMATCH,
                 "the peer has %zu bytes for a receive of %zu (tag %d)", size,
                 room ? room->size : 0, room ? room->tag : -1);
}

static void take_message(struct wired *w)
{
    const uint64_t tag = w->incoming.tag;
    struct request *req;

    if (tag & REFUSED) {
        take_refusal(w, tag);
        return;
    }
    struct room *room = find_room(w, tag, &req);
    if (!room) {
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived belongs to no receive");
        return;
    }
    room->size = w->incoming.moved;
    if (room->is_watched)
        dpn_lines_copy(room->data, w->staging, room->size);
    room->done = true;
    req->left--;
}

static void take_grant(struct wired *w)
{
    if (dpn_grants_add(&w->grants, &w->arrived, w->incoming.moved))
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived is no receive of the peer's");
}

static void wait_for_next(struct wired *w)
{
    if (w->is_sender)
        dp_wire_irecv(w->wire, &w->arrived, sizeof(w->arrived), &w->incoming);
    else
        dp_wire_irecv(w->wire, NULL, 0, &w->incoming); /* see aim */
}

static void progress(struct wired *w)
{
    w->wire->ops->progress(w->wire);
    for (int i = 0; i < ARRIVALS && w->incoming.status != DP_EAGAIN; i++) {
        if (w->incoming.status) {
            dp_wire_fail(w->wire, DP_EMISMATCH, "a message arrived that nothing was granted to");
            return;
        }
        if (w->is_sender)
            take_grant(w);
        else
            take_message(w);
        wait_for_next(w);
    }
}

/* ---- requests ------------------------------------------------------------------------------ */

static struct request *take_request(struct wired *w)
{
    if (!w->free)
        return NULL;
    const int i = __builtin_ctz(w->free);
    w->free &= ~(1u << i);
    return &w->requests[i];
}

static unsigned slot_of(const struct request *req)
{
    return (unsigned)(req - req->wired->requests);
}

static int broken(const struct wired *w, const char *what)
{
    const struct dp_wire *wire = w->wire;

    return dp_fail(wire->error, "%s over %s: %s", what, wire->ops->name, wire->why);
}

/* ---- send ---------------------------------------------------------------------------------- */

/* Tell the receiver too: it would wait for ever. */
static int refuse(struct wired *w, struct dpn_place place, size_t size, int tag)
{
    const size_t room = dpn_grants_room(&w->grants, place);

    dpn_grants_take(&w->grants, place);
    dp_wire_isend(w->wire, REFUSED | (uint64_t)size << PLACE_BITS | tag_of_place(place), NULL, 0,
                  &w->refusal);
    return dp_fail(DP_EMISMATCH, "send of %zu bytes (tag %d): the peer's receive has %zu", size, tag,
                   room);
}

static int isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out)
{
    struct wired *w = comm->state;
    struct dpn_place place;

    progress(w);
    if (w->wire->error)
        return broken(w, "send");
    if (!w->free || !dpn_grants_find(&w->grants, piece->tag, &place))
        return 0;
    if (piece->size > dpn_grants_room(&w->grants, place))
        return w->refusal.status == DP_EAGAIN ? 0 : refuse(w, place, piece->size, piece->tag);
    struct request *req = take_request(w);
    req->count = req->left = 0;
    req->memory = piece->memory;
    dpn_grants_take(&w->grants, place);
    dp_wire_isend(w->wire, tag_of_place(place), piece->data, piece->size, &req->wire);
    *out = &req->base;
    return 0;
}

/* ---- receive --------------------------------------------------------------------------------- */

static void fill_rooms(struct request *req, int n, const struct dpn_piece *pieces)
{
    req->memory = NULL;
    req->count = req->left = (unsigned)n;
    req->grant.slot = slot_of(req);
    req->grant.count = (unsigned)n;
    for (int i = 0; i < n; i++) {
        req->rooms[i] = (struct room){.data = pieces[i].data, .size = pieces[i].size,
                                      .tag = pieces[i].tag, .memory = pieces[i].memory,
                                      .is_watched = pieces[i].is_watched};
        req->grant.rooms[i].bytes = pieces[i].size;
        req->grant.rooms[i].tag = pieces[i].tag;
        req->grant.rooms[i].zero = 0;
    }
}

static size_t watched_bytes(int n, const struct dpn_piece *pieces)
{
    size_t most = 0;

    for (int i = 0; i < n; i++)
        if (pieces[i].is_watched && pieces[i].size > most)
            most = pieces[i].size;
    return most;
}

/* The rooms of a protocol are all of one size, so this is done once for each. DP_EAGAIN: a message
 * is just coming in there. */
static int grow_staging(struct wired *w, size_t bytes)
{
    if (bytes <= w->staging_bytes)
        return 0;
    if (w->staging && w->incoming.buf == w->staging)
        return DP_EAGAIN;
    free(w->staging);
    w->staging = malloc(bytes);
    w->staging_bytes = w->staging ? bytes : 0;
    return w->staging ? 0 : dp_fail(DP_ENOMEM, "no memory to receive %zu bytes in", bytes);
}

static int irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                 struct dpn_request **out)
{
    struct wired *w = comm->state;

    if (w->wire->error)
        return broken(w, "receive");
    int err = grow_staging(w, watched_bytes(n, pieces));
    if (err)
        return err == DP_EAGAIN ? 0 : err;
    struct request *req = take_request(w);
    if (!req)
        return 0;
    fill_rooms(req, n, pieces);
    dp_wire_isend(w->wire, 0, &req->grant, dpn_grant_len(req->count), &req->wire);
    *out = &req->base;
    return 0;
}

/* What arrived in host memory is there: nothing to wait for. */
static int iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                  struct dpn_request **out)
{
    (void)comm;
    (void)n;
    (void)pieces;
    (void)out;
    return 0;
}

/* ---- test ---------------------------------------------------------------------------------- */

static bool is_done(const struct request *req)
{
    return req->wire.status == 0 && !req->left;
}

static void tell_sizes(const struct request *req, int *sizes)
{
    if (!sizes)
        return;
    if (req->wired->is_sender)
        sizes[0] = (int)req->wire.len;
    for (unsigned i = 0; i < req->count; i++)
        sizes[i] = (int)req->rooms[i].size;
}

static int test(struct dpn_request *request, bool *done, int *sizes)
{
    struct request *req = (struct request *)request;
    struct wired *w = req->wired;

    if (w->free >> slot_of(req) & 1)
        return dp_fail(DP_EINVAL, "test of a request that is done already");
    if (!is_done(req))
        progress(w);
    *done = is_done(req);
    if (*done) {
        tell_sizes(req, sizes);
        w->free |= 1u << slot_of(req);
        return 0;
    }
    return w->wire->error ? broken(w, w->is_sender ? "send" : "receive") : 0;
}

/* ---- memory -------------------------------------------------------------------------------- */

/* The wires need none; it is kept to know which requests use what, since NCCL may free memory in the
 * middle of them. */
static int reg(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out)
{
    if (region->type != NCCL_PTR_HOST || region->fd >= 0)
        return dp_fail(DP_EUNSUPPORTED,
                       "registering %zu bytes of %s: %s carries host memory only", region->size,
                       region->fd >= 0 ? "a dma-buf" : "GPU memory", comm->wire->ops->name);
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : dp_fail(DP_ENOMEM, "no memory for a registration");
}

static bool uses(const struct request *req, const struct dpn_memory *memory)
{
    for (unsigned i = 0; i < req->count; i++)
        if (!req->rooms[i].done && req->rooms[i].memory == memory)
            return true;
    return req->memory == memory && req->wire.status == DP_EAGAIN;
}

static bool is_in_flight(const struct wired *w, const struct dpn_memory *memory)
{
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        if (!(w->free >> i & 1) && uses(&w->requests[i], memory))
            return true;
    return false;
}

static void dereg(struct dpn_comm *comm, struct dpn_memory *memory)
{
    if (comm->state && is_in_flight(comm->state, memory))
        dp_wire_fail(comm->wire, DP_EABORTED,
                     "memory was deregistered while a request still used it");
    free(memory);
}

/* ---- life ---------------------------------------------------------------------------------- */

static int open_wired(struct dpn_comm *comm)
{
    struct wired *w = calloc(1, sizeof(*w));

    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    w->wire = comm->wire;
    w->is_sender = comm->is_sender;
    w->free = UINT32_MAX;
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        w->requests[i].base.comm = comm;
        w->requests[i].wired = w;
    }
    comm->state = w;
    w->wire->aim = w->is_sender ? NULL : aim;
    wait_for_next(w);
    return 0;
}

/* Unread bytes would make the kernel break a connection off, and what was sent would be lost. With
 * requests in flight their memory may be gone already. */
static void close_wired(struct dpn_comm *comm)
{
    struct wired *w = comm->state;

    if (w && w->free == UINT32_MAX)
        progress(w);
    dp_wire_close(comm->wire);
    comm->wire = NULL;
    comm->state = NULL;
    if (w)
        free(w->staging);
    free(w);
}

const struct dpn_transport dpn_wired = {
    .name = "wired",
    .open = open_wired,
    .reg = reg,
    .dereg = dereg,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close = close_wired,
};
