/* SPDX-License-Identifier: Apache-2.0
 *
 * net_data.c - messages. The tag of a message on the wire is its place at the receiver, who gave it
 * in the grant; so the bytes go straight to where they belong.
 */
#include "base/fail.h"
#include "nccl-plugin/net_comm.h"

#include <string.h>

/* Instead of a message: it was too long for the place. Its length is in the upper bits. */
#define REFUSED ((uint64_t)1 << 63)
enum { SUB_BITS = 8, PLACE_BITS = 16 };

enum { ARRIVALS = 16 }; /* of one progress, so that one comm leaves time for the others */

static uint64_t tag_of_place(struct dpn_place place)
{
    return (uint64_t)place.slot << SUB_BITS | place.sub;
}

/* ---- what arrives ---------------------------------------------------------------------------- */

/* The receive that a message of this tag belongs to, NULL: none that was granted. */
static struct dpn_room *find_room(struct dpn_comm *comm, uint64_t tag, struct dpn_request **req)
{
    const uint64_t slot = tag >> SUB_BITS, sub = tag & ((1u << SUB_BITS) - 1);

    if (slot >= NCCL_NET_MAX_REQUESTS || comm->free >> slot & 1 ||
        sub >= comm->requests[slot].count || comm->requests[slot].rooms[sub].done)
        return NULL;
    *req = &comm->requests[slot];
    return &(*req)->rooms[sub];
}

/* Where there is no room, none is given: a message with bytes is refused by the wire, one without
 * when it is looked at. */
static void aim(struct dp_wire_request *incoming, uint64_t tag, size_t message_len)
{
    struct dpn_comm *comm =
        (struct dpn_comm *)(void *)((char *)incoming - offsetof(struct dpn_comm, incoming));
    struct dpn_request *req;
    const struct dpn_room *room = find_room(comm, tag, &req);

    (void)message_len;
    incoming->buf = room ? room->data : NULL;
    incoming->len = room ? room->size : 0;
}

static void take_refusal(struct dpn_comm *comm, uint64_t tag)
{
    const size_t size = (size_t)((tag & ~REFUSED) >> PLACE_BITS);
    struct dpn_request *req;
    const struct dpn_room *room = find_room(comm, tag & ((1u << PLACE_BITS) - 1), &req);

    dp_wire_fail(comm->wire, DP_EMISMATCH,
                 "the peer has %zu bytes for a receive of %zu (tag %d)", size,
                 room ? room->size : 0, room ? room->tag : -1);
}

static void take_message(struct dpn_comm *comm)
{
    const uint64_t tag = comm->incoming.tag;
    struct dpn_request *req;

    if (tag & REFUSED) {
        take_refusal(comm, tag);
        return;
    }
    struct dpn_room *room = find_room(comm, tag, &req);
    if (!room) {
        dp_wire_fail(comm->wire, DP_EMISMATCH, "what arrived belongs to no receive");
        return;
    }
    room->size = comm->incoming.moved;
    room->done = true;
    req->left--;
}

static void take_grant(struct dpn_comm *comm)
{
    if (dpn_grants_add(&comm->grants, &comm->arrived, comm->incoming.moved))
        dp_wire_fail(comm->wire, DP_EMISMATCH, "what arrived is no receive of the peer's");
}

static void wait_for_next(struct dpn_comm *comm)
{
    if (comm->is_sender)
        dp_wire_irecv(comm->wire, &comm->arrived, sizeof(comm->arrived), &comm->incoming);
    else
        dp_wire_irecv(comm->wire, NULL, 0, &comm->incoming); /* see aim */
}

void dpn_comm_start(struct dpn_comm *comm)
{
    comm->wire->aim = comm->is_sender ? NULL : aim;
    wait_for_next(comm);
}

void dpn_comm_progress(struct dpn_comm *comm)
{
    comm->wire->ops->progress(comm->wire);
    for (int i = 0; i < ARRIVALS && comm->incoming.status != DP_EAGAIN; i++) {
        if (comm->incoming.status) {
            dp_wire_fail(comm->wire, DP_EMISMATCH, "a message arrived that nothing was granted to");
            return;
        }
        if (comm->is_sender)
            take_grant(comm);
        else
            take_message(comm);
        wait_for_next(comm);
    }
}

/* ---- requests ------------------------------------------------------------------------------ */

static struct dpn_request *take_request(struct dpn_comm *comm)
{
    if (!comm->free)
        return NULL;
    const int i = __builtin_ctz(comm->free);
    comm->free &= ~(1u << i);
    return &comm->requests[i];
}

static unsigned slot_of(const struct dpn_request *req)
{
    return (unsigned)(req - req->comm->requests);
}

static int broken(const struct dpn_comm *comm, const char *what)
{
    const struct dp_wire *wire = comm->wire;

    return dp_fail(wire->error, "%s over %s: %s", what, wire->ops->name, wire->why);
}

/* ---- send ---------------------------------------------------------------------------------- */

/* Tell the receiver too: it would wait for ever. */
static int refuse(struct dpn_comm *comm, struct dpn_place place, size_t size, int tag)
{
    const size_t room = dpn_grants_room(&comm->grants, place);

    dpn_grants_take(&comm->grants, place);
    dp_wire_isend(comm->wire, REFUSED | (uint64_t)size << PLACE_BITS | tag_of_place(place), NULL, 0,
                  &comm->refusal);
    return dp_fail(DP_EMISMATCH, "send of %zu bytes (tag %d): the peer's receive has %zu", size, tag,
                   room);
}

static int send_locked(struct dpn_comm *comm, const void *data, size_t size, int tag,
                       const struct dpn_memory *memory, struct dpn_request **out)
{
    struct dpn_place place;

    dpn_comm_progress(comm);
    if (comm->wire->error)
        return broken(comm, "send");
    if (!comm->free || !dpn_grants_find(&comm->grants, tag, &place))
        return 0;
    if (size > dpn_grants_room(&comm->grants, place))
        return comm->refusal.status == DP_EAGAIN ? 0 : refuse(comm, place, size, tag);
    struct dpn_request *req = take_request(comm);
    req->count = req->left = 0;
    req->memory = memory;
    dpn_grants_take(&comm->grants, place);
    dp_wire_isend(comm->wire, tag_of_place(place), data, size, &req->wire);
    *out = req;
    return 0;
}

int dpn_net_isend(struct dpn_comm *comm, const void *data, size_t size, int tag,
                  struct dpn_memory *memory, struct dpn_request **out)
{
    if (size > DPN_MAX_BYTES)
        return dp_fail(DP_EINVAL, "send of %zu bytes: the longest message is %zu", size,
                       DPN_MAX_BYTES);
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    int err = send_locked(comm, data, size, tag, memory, out);
    pthread_mutex_unlock(&comm->lock);
    return err;
}

/* ---- receive --------------------------------------------------------------------------------- */

static void fill_rooms(struct dpn_request *req, int n, void *const *data, const size_t *sizes,
                       const int *tags, struct dpn_memory *const *memories)
{
    req->memory = NULL;
    req->count = req->left = (unsigned)n;
    req->grant.slot = slot_of(req);
    req->grant.count = (unsigned)n;
    for (int i = 0; i < n; i++) {
        req->rooms[i] = (struct dpn_room){.data = data[i], .size = sizes[i], .tag = tags[i],
                                          .memory = memories ? memories[i] : NULL};
        req->grant.rooms[i].bytes = sizes[i];
        req->grant.rooms[i].tag = tags[i];
        req->grant.rooms[i].zero = 0;
    }
}

int dpn_net_irecv(struct dpn_comm *comm, int n, void *const *data, const size_t *sizes,
                  const int *tags, struct dpn_memory *const *memories, struct dpn_request **out)
{
    int err = 0;

    if (n < 1 || n > DPN_MAX_RECEIVES)
        return dp_fail(DP_EINVAL, "a group of %d receives: expected 1 to %d", n, DPN_MAX_RECEIVES);
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    struct dpn_request *req = comm->wire->error ? NULL : take_request(comm);
    if (comm->wire->error) {
        err = broken(comm, "receive");
    } else if (req) {
        fill_rooms(req, n, data, sizes, tags, memories);
        dp_wire_isend(comm->wire, 0, &req->grant, dpn_grant_len(req->count), &req->wire);
        *out = req;
    }
    pthread_mutex_unlock(&comm->lock);
    return err;
}

/* ---- test ---------------------------------------------------------------------------------- */

static bool is_done(const struct dpn_request *req)
{
    return req->wire.status == 0 && !req->left;
}

static void tell_sizes(const struct dpn_request *req, int *sizes)
{
    if (!sizes)
        return;
    if (req->comm->is_sender)
        sizes[0] = (int)req->wire.len;
    for (unsigned i = 0; i < req->count; i++)
        sizes[i] = (int)req->rooms[i].size;
}

static int test_locked(struct dpn_request *req, bool *done, int *sizes)
{
    struct dpn_comm *comm = req->comm;

    if (comm->free >> slot_of(req) & 1)
        return dp_fail(DP_EINVAL, "test of a request that is done already");
    if (!is_done(req))
        dpn_comm_progress(comm);
    *done = is_done(req);
    if (*done) {
        tell_sizes(req, sizes);
        comm->free |= 1u << slot_of(req);
        return 0;
    }
    return comm->wire->error ? broken(comm, comm->is_sender ? "send" : "receive") : 0;
}

int dpn_net_test(struct dpn_request *req, bool *done, int *sizes)
{
    if (!req)
        return dp_fail(DP_EINVAL, "test of no request");
    struct dpn_comm *comm = req->comm;
    *done = false;
    pthread_mutex_lock(&comm->lock);
    int err = test_locked(req, done, sizes);
    pthread_mutex_unlock(&comm->lock);
    return err;
}
