/* SPDX-License-Identifier: Apache-2.0
 *
 * net_wired_arrive.c - what arrives on the wire of a comm (net_wired.c), and where it goes: messages
 * at a receiver, at a sender the receives that they are for.
 */
#include "nccl-plugin/net_wired.h"

#include "base/fail.h"
#include "nccl-plugin/net_lines.h"

enum { ARRIVALS = 16 }; /* of one progress, so that one comm leaves time for the others */

static int tag_of(uint64_t wire_tag)
{
    return (int32_t)(uint32_t)wire_tag;
}

static struct dpn_wired_room *room_at(struct dpn_wired *w, struct dpn_place place)
{
    return &w->requests[place.slot].rooms[place.sub];
}

/* ---- at a receiver --------------------------------------------------------------------------- */

static struct dpn_wired_aimed find_aim(struct dpn_wired *w, uint64_t tag, size_t len)
{
    struct dpn_wired_aimed a = {.is_aimed = true, .tag = tag, .len = len};

    if (tag & DPN_WIRED_REFUSED)
        return a;
    a.has_place = dpn_grants_find(&w->grants, tag_of(tag), &a.place);
    a.is_staged = a.has_place && room_at(w, a.place)->is_watched;
    if (!a.has_place && tag & DPN_WIRED_EARLY)
        a.kept = dpn_kept_new(&w->kept, tag_of(tag), len);
    return a;
}

/* Where there is no place, none is given: a message with bytes is refused by the wire, one without
 * when it is looked at. */
void dpn_wired_aim(struct dp_wire_request *incoming, uint64_t tag, size_t len)
{
    struct dpn_wired *w = (void *)((char *)incoming - offsetof(struct dpn_wired, incoming));
    struct dpn_wired_aimed *a = &w->aimed;

    if (!a->is_aimed || a->tag != tag || a->len != len) {
        dpn_kept_free(&w->kept, a->kept);
        *a = find_aim(w, tag, len);
    }
    const struct dpn_wired_room *room = a->has_place ? room_at(w, a->place) : NULL;
    incoming->buf = a->kept ? a->kept->data : a->is_staged ? w->staging : room ? room->data : NULL;
    incoming->len = a->kept ? a->kept->size : room ? room->size : 0;
}

static void fail_too_long(struct dpn_wired *w, size_t size, const struct dpn_wired_room *room)
{
    dp_wire_fail(w->wire, DP_EMISMATCH, "the peer has %zu bytes for a receive of %zu (tag %d)",
                 size, room->size, room->tag);
}

static void fail_homeless(struct dpn_wired *w, uint64_t tag, size_t len)
{
    if (tag & DPN_WIRED_EARLY)
        dp_wire_fail(w->wire, DP_EMISMATCH,
                     "no memory for %zu bytes (tag %d) that came before their receive; there are "
                     "%u such messages", len, tag_of(tag), dpn_kept_count(&w->kept));
    else
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived belongs to no receive");
}

static void take_refusal(struct dpn_wired *w, uint64_t tag)
{
    struct dpn_place place;

    if (dpn_grants_find(&w->grants, tag_of(tag), &place))
        fail_too_long(w, (size_t)((tag & ~DPN_WIRED_REFUSED) >> DPN_WIRED_TAG_BITS),
                      room_at(w, place));
    else
        fail_homeless(w, dpn_wired_tag(tag_of(tag)), 0);
}

static void finish_room(struct dpn_wired *w, struct dpn_place place, size_t size)
{
    struct dpn_wired_room *room = room_at(w, place);

    room->size = size;
    room->done = true;
    w->requests[place.slot].left--;
    dpn_grants_take(&w->grants, place);
}

static bool fits(struct dpn_wired *w, const struct dpn_kept *kept, struct dpn_place place)
{
    return kept->size <= room_at(w, place)->size;
}

/* It fits. The order of net_lines.h does for memory that is not watched, too. */
static void deliver_kept(struct dpn_wired *w, struct dpn_kept *kept, struct dpn_place place)
{
    if (kept->size)
        dpn_lines_copy(room_at(w, place)->data, kept->data, kept->size);
    finish_room(w, place, kept->size);
    dpn_kept_free(&w->kept, kept);
}

void dpn_wired_refuse_kept(struct dpn_wired *w, struct dpn_kept *kept, struct dpn_place place)
{
    fail_too_long(w, kept->size, room_at(w, place));
    dpn_kept_free(&w->kept, kept);
}

/* Its receive may have come while it was on its way. */
static void keep(struct dpn_wired *w, struct dpn_kept *kept)
{
    struct dpn_place place;

    if (!dpn_grants_find(&w->grants, kept->tag, &place))
        dpn_kept_add(&w->kept, kept);
    else if (fits(w, kept, place))
        deliver_kept(w, kept, place);
    else
        dpn_wired_refuse_kept(w, kept, place);
}

struct dpn_kept *dpn_wired_take_kept(struct dpn_wired *w, const struct dpn_wired_request *req,
                                     struct dpn_place *place)
{
    for (unsigned sub = 0; sub < req->count && w->kept.head; sub++) {
        struct dpn_kept *kept = dpn_kept_take(&w->kept, req->rooms[sub].tag);
        *place = (struct dpn_place){dpn_wired_slot(req), sub};
        if (kept && !fits(w, kept, *place))
            return kept;
        if (kept)
            deliver_kept(w, kept, *place);
    }
    return NULL;
}

static void take_placed(struct dpn_wired *w, const struct dpn_wired_aimed *a)
{
    const struct dpn_wired_room *room = room_at(w, a->place);

    if (w->incoming.status) {
        fail_too_long(w, w->incoming.moved, room);
        return;
    }
    if (a->is_staged)
        dpn_lines_copy(room->data, w->staging, w->incoming.moved);
    finish_room(w, a->place, w->incoming.moved);
}

static void take_message(struct dpn_wired *w, struct dpn_comm *comm)
{
    const struct dpn_wired_aimed a = w->aimed;

    w->aimed = (struct dpn_wired_aimed){.is_aimed = false};
    if (a.tag & DPN_WIRED_REFUSED) {
        take_refusal(w, a.tag);
        return;
    }
    if (a.tag & DPN_WIRED_EARLY)
        dpn_stat_count(&comm->stat, DPN_STAT_EAGER, 1);
    if (a.has_place)
        take_placed(w, &a);
    else if (a.kept)
        keep(w, a.kept);
    else
        fail_homeless(w, a.tag, a.len);
}

/* ---- at a sender ------------------------------------------------------------------------------ */

/* The rooms that early sends have waited for. */
static void match_early(struct dpn_wired *w, const struct dpn_grant *grant)
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

static void take_grant(struct dpn_wired *w)
{
    if (w->incoming.status || dpn_grants_add(&w->grants, &w->arrived, w->incoming.moved))
        dp_wire_fail(w->wire, DP_EMISMATCH, "what arrived is no receive of the peer's");
    else
        match_early(w, &w->arrived);
}

/* ---- at both ---------------------------------------------------------------------------------- */

void dpn_wired_expect(struct dpn_wired *w)
{
    if (w->is_expecting || !(w->is_sender || w->grants.live))
        return;
    w->is_expecting = true;
    if (w->is_sender)
        dp_wire_irecv(w->wire, &w->arrived, sizeof(w->arrived), &w->incoming);
    else
        dp_wire_irecv(w->wire, NULL, 0, &w->incoming); /* see dpn_wired_aim */
}

void dpn_wired_progress(struct dpn_comm *comm)
{
    struct dpn_wired *w = comm->state;

    w->wire->ops->progress(w->wire);
    for (int i = 0; i < ARRIVALS && w->is_expecting && w->incoming.status != DP_EAGAIN; i++) {
        if (w->incoming.status && w->wire->error)
            return;
        w->is_expecting = false;
        if (w->is_sender)
            take_grant(w);
        else
            take_message(w, comm);
        dpn_wired_expect(w);
    }
}
