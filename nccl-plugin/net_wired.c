/* SPDX-License-Identifier: Apache-2.0
 *
 * net_wired.c - messages over the comm's own wire, which keeps their order: a message goes to the
 * eldest open receive of its tag. The wire asks where that is before it stores a byte (aim), so the
 * bytes go straight to where they belong. What NCCL's kernels watch for flags is copied there, in
 * order, once it is complete (net_lines.h). So is a message that came before its receive and was in
 * the way of others (net_early.h).
 *
 * The receiver takes nothing off the wire as long as it has no open receive.
 */
#include "base/fail.h"
#include "nccl-plugin/net_comm.h"
#include "nccl-plugin/net_early.h"
#include "nccl-plugin/net_grants.h"
#include "nccl-plugin/net_lines.h"

#include <stdlib.h>
#include <string.h>

/* On the wire: NCCL's tag below, what kind of message it is above. REFUSED: instead of a message
 * that was too long for its receive; its length is between the two. */
#define REFUSED ((uint64_t)1 << 63)
#define EARLY ((uint64_t)1 << 62)
enum { TAG_BITS = 32 };

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
    bool is_early;                      /* of a send: no grant has come yet */
    unsigned count, left;               /* of a receive: rooms, and those not done */
    struct dpn_grant grant;
    struct room rooms[DPN_MAX_RECEIVES];
};

/* Where the message that is coming in goes: to a room, to memory that keeps it, or nowhere. */
struct aimed {
    bool is_aimed, has_place, is_staged;
    uint64_t tag;
    size_t len;
    struct dpn_place place;
    struct dpn_kept *kept;
};

struct wired {
    struct dp_wire *wire;
    bool is_sender;
    bool is_expecting;        /* incoming is under way */
    struct dp_wire_request incoming;
    struct dpn_grant arrived; /* sender: where incoming goes */
    struct aimed aimed;       /* receiver: the same */
    char *staging;            /* receiver: where it goes if it is watched */
    size_t staging_bytes;
    struct dpn_grants grants;     /* the receives that are open; of a sender: as far as known */
    struct dpn_early_sends early; /* sender */
    struct dpn_kept_list kept;    /* receiver */
    struct dp_wire_request refusal;
    uint32_t free; /* a bit per request */
    struct request requests[NCCL_NET_MAX_REQUESTS];
};

static int tag_of(uint64_t wire_tag)
{
    return (int32_t)(uint32_t)wire_tag;
}

static uint64_t wire_tag_of(int tag)
{
    return (uint32_t)tag;
}

static struct room *room_at(struct wired *w, struct dpn_place place)
{
    return &w->requests[place.slot].rooms[place.sub];
}

/* ---- what arrives ---------------------------------------------------------------------------- */

static struct aimed find_aim(struct wired *w, uint64_t tag, size_t len)
{
    struct aimed a = {.is_aimed = true, .tag = tag, .len = len};

    if (tag & REFUSED)
        return a;
    a.has_place = dpn_grants_find(&w->grants, tag_of(tag), &a.place);
    a.is_staged = a.has_place && room_at(w, a.place)->is_watched;
    if (!a.has_place && tag & EARLY)
        a.kept = dpn_kept_new(&w->kept, tag_of(tag), len);
    return a;
}

/* Where there is no place, none is given: a message with bytes is refused by the wire, one without
 * when it is looked at. */
static void aim(struct dp_wire_request *incoming, uint64_t tag, size_t len)
{
    struct wired *w = (struct wired *)(void *)((char *)incoming - offsetof(struct wired, incoming));
    struct aimed *a = &w->aimed;

    if (!a->is_aimed || a->tag != tag || a->len != len) {
        dpn_kept_free(&w->kept, a->kept);
        *a = find_aim(w, tag, len);
    }
    const struct room *room = a->has_place ? room_at(w, a->place) : NULL;
    incoming->buf = a->kept ? a->kept->data : a->is_staged ? w->staging : room ? room->data : NULL;
    incoming->len = a->kept ? a->kept->size : room ? room->size : 0;
}

static void fail_too_long(struct wired *w, size_t size, const struct room *room)
{
    dp_wire_fail(w->wire, DP_EMISMATCH, "the peer has %zu bytes for a receive of %zu (tag %d)",
                 size, room->size, room->tag);
}

static void fail_homeless(struct wired *w, uint64_t tag, size_t len)
{
    if (tag & EARLY)
        dp_wire_fail(w->wire, DP_EMISMATCH,
                     "no memory for %zu bytes (tag %d) that came before their receive; there are "
                     "%u such messages", len, tag_of(tag), dpn_kept_count(&w->kept));
    else
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived belongs to no receive");
}

static void take_refusal(struct wired *w, uint64_t tag)
{
    struct dpn_place place;

    if (dpn_grants_find(&w->grants, tag_of(tag), &place))
        fail_too_long(w, (size_t)((tag & ~REFUSED) >> TAG_BITS), room_at(w, place));
    else
        fail_homeless(w, wire_tag_of(tag_of(tag)), 0);
}

static void finish_room(struct wired *w, struct dpn_place place, size_t size)
{
    struct room *room = room_at(w, place);

    room->size = size;
    room->done = true;
    w->requests[place.slot].left--;
    dpn_grants_take(&w->grants, place);
}

static bool fits(struct wired *w, const struct dpn_kept *kept, struct dpn_place place)
{
    return kept->size <= room_at(w, place)->size;
}

/* It fits. The order of net_lines.h does for memory that is not watched, too. */
static void deliver_kept(struct wired *w, struct dpn_kept *kept, struct dpn_place place)
{
    if (kept->size)
        dpn_lines_copy(room_at(w, place)->data, kept->data, kept->size);
    finish_room(w, place, kept->size);
    dpn_kept_free(&w->kept, kept);
}

static void refuse_kept(struct wired *w, struct dpn_kept *kept, struct dpn_place place)
{
    fail_too_long(w, kept->size, room_at(w, place));
    dpn_kept_free(&w->kept, kept);
}

/* Its receive may have come while it was on its way. */
static void keep(struct wired *w, struct dpn_kept *kept)
{
    struct dpn_place place;

    if (!dpn_grants_find(&w->grants, kept->tag, &place))
        dpn_kept_add(&w->kept, kept);
    else if (fits(w, kept, place))
        deliver_kept(w, kept, place);
    else
        refuse_kept(w, kept, place);
}

static void take_placed(struct wired *w, const struct aimed *a)
{
    const struct room *room = room_at(w, a->place);

    if (w->incoming.status) {
        fail_too_long(w, w->incoming.moved, room);
        return;
    }
    if (a->is_staged)
        dpn_lines_copy(room->data, w->staging, w->incoming.moved);
    finish_room(w, a->place, w->incoming.moved);
}

static void take_message(struct wired *w, struct dpn_comm *comm)
{
    const struct aimed a = w->aimed;

    w->aimed = (struct aimed){.is_aimed = false};
    if (a.tag & REFUSED) {
        take_refusal(w, a.tag);
        return;
    }
    if (a.tag & EARLY)
        dpn_stat_count(&comm->stat, DPN_STAT_EAGER, 1);
    if (a.has_place)
        take_placed(w, &a);
    else if (a.kept)
        keep(w, a.kept);
    else
        fail_homeless(w, a.tag, a.len);
}

/* The rooms that early sends have waited for. */
static void match_early(struct wired *w, const struct dpn_grant *grant)
{
    struct dpn_early_send send;

    for (unsigned sub = 0; sub < grant->count && !w->wire->error; sub++) {
        const struct dpn_place place = {grant->slot, sub};
        if (!dpn_early_take(&w->early, grant->rooms[sub].tag, &send))
            continue;
        if (send.size > grant->rooms[sub].bytes) {
            dp_wire_fail(w->wire, DP_EMISMATCH,
                         "send of %zu bytes (tag %d): the peer's receive has %zu", send.size,
                         send.tag, (size_t)grant->rooms[sub].bytes);
            return;
        }
        dpn_grants_take(&w->grants, place);
        w->requests[send.slot].is_early = false;
    }
}

static void take_grant(struct wired *w)
{
    if (w->incoming.status || dpn_grants_add(&w->grants, &w->arrived, w->incoming.moved))
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived is no receive of the peer's");
    else
        match_early(w, &w->arrived);
}

/* A receiver expects something while it has open receives. */
static void expect_next(struct wired *w)
{
    if (w->is_expecting || !(w->is_sender || w->grants.live))
        return;
    w->is_expecting = true;
    if (w->is_sender)
        dp_wire_irecv(w->wire, &w->arrived, sizeof(w->arrived), &w->incoming);
    else
        dp_wire_irecv(w->wire, NULL, 0, &w->incoming); /* see aim */
}

static void progress(struct dpn_comm *comm)
{
    struct wired *w = comm->state;

    w->wire->ops->progress(w->wire);
    for (int i = 0; i < ARRIVALS && w->is_expecting && w->incoming.status != DP_EAGAIN; i++) {
        if (w->incoming.status && w->wire->error)
            return;
        w->is_expecting = false;
        if (w->is_sender)
            take_grant(w);
        else
            take_message(w, comm);
        expect_next(w);
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
    dp_wire_isend(w->wire, REFUSED | (uint64_t)size << TAG_BITS | wire_tag_of(tag), NULL, 0,
                  &w->refusal);
    return dp_fail(DP_EMISMATCH, "send of %zu bytes (tag %d): the peer's receive has %zu", size, tag,
                   room);
}

static struct dpn_request *begin_send(struct wired *w, const struct dpn_piece *piece, bool is_early)
{
    struct request *req = take_request(w);

    req->count = req->left = 0;
    req->memory = piece->memory;
    req->is_early = is_early;
    dp_wire_isend(w->wire, wire_tag_of(piece->tag) | (is_early ? EARLY : 0), piece->data,
                  piece->size, &req->wire);
    return &req->base;
}

static struct dpn_request *send_early(struct dpn_comm *comm, const struct dpn_piece *piece)
{
    struct wired *w = comm->state;
    const size_t limit = (size_t)dpn_options.eager_bytes;
    const unsigned slot = (unsigned)__builtin_ctz(w->free);

    if (!limit || piece->size > limit || w->early.count == DPN_EARLY_COUNT)
        return NULL;
    dpn_early_add(&w->early, (struct dpn_early_send){piece->tag, piece->size, slot});
    dpn_stat_count(&comm->stat, DPN_STAT_EAGER, 1);
    return begin_send(w, piece, true);
}

static int isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out)
{
    struct wired *w = comm->state;
    struct dpn_place place;

    progress(comm);
    if (w->wire->error)
        return broken(w, "send");
    if (!w->free)
        return 0;
    if (!dpn_grants_find(&w->grants, piece->tag, &place)) {
        *out = send_early(comm, piece);
        return 0;
    }
    if (piece->size > dpn_grants_room(&w->grants, place))
        return w->refusal.status == DP_EAGAIN ? 0 : refuse(w, place, piece->size, piece->tag);
    dpn_grants_take(&w->grants, place);
    *out = begin_send(w, piece, false);
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
    if (w->aimed.is_staged)
        return DP_EAGAIN;
    free(w->staging);
    w->staging = malloc(bytes);
    w->staging_bytes = w->staging ? bytes : 0;
    return w->staging ? 0 : dp_fail(DP_ENOMEM, "no memory to receive %zu bytes in", bytes);
}

/* What has come before its receive. Returns a message that is too long, and *place. */
static struct dpn_kept *take_kept(struct wired *w, const struct request *req,
                                  struct dpn_place *place)
{
    for (unsigned sub = 0; sub < req->count && w->kept.head; sub++) {
        struct dpn_kept *kept = dpn_kept_take(&w->kept, req->rooms[sub].tag);
        *place = (struct dpn_place){slot_of(req), sub};
        if (kept && !fits(w, kept, *place))
            return kept;
        if (kept)
            deliver_kept(w, kept, *place);
    }
    return NULL;
}

/* To send moves the wire, which may bring more of the same tags: later ones than what is kept. And
 * nothing but the grant tells a peer that it has sent too much. */
static void grant(struct wired *w, struct request *req)
{
    struct dpn_place place;

    dpn_grants_add(&w->grants, &req->grant, dpn_grant_len(req->count));
    struct dpn_kept *too_long = take_kept(w, req, &place);
    dp_wire_isend(w->wire, 0, &req->grant, dpn_grant_len(req->count), &req->wire);
    if (too_long)
        refuse_kept(w, too_long, place);
    expect_next(w);
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
    grant(w, req);
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

/* A peer that has sent everything may be gone before it was granted. */
static bool is_done(const struct request *req)
{
    return req->wired->is_sender ? req->wire.status == 0 && !req->is_early
                                 : req->wire.status != DP_EAGAIN && !req->left;
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
        progress(request->comm);
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
    expect_next(w);
    return 0;
}

/* Unread bytes would make the kernel break a connection off, and what was sent would be lost. With
 * requests in flight their memory may be gone already. */
static void close_wired(struct dpn_comm *comm)
{
    struct wired *w = comm->state;

    if (w && w->free == UINT32_MAX)
        progress(comm);
    dp_wire_close(comm->wire);
    comm->wire = NULL;
    comm->state = NULL;
    if (!w)
        return;
    dpn_kept_fini(&w->kept);
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
