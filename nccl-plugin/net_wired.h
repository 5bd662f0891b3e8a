/* SPDX-License-Identifier: Apache-2.0
 *
 * net_wired.h - a connection over a wire: what the requests (net_wired.c) and what arrives
 * (net_wired_arrive.c) share.
 */
#ifndef DPN_NET_WIRED_H
#define DPN_NET_WIRED_H

#include "nccl-plugin/net_comm.h"
#include "nccl-plugin/net_early.h"
#include "nccl-plugin/net_grants.h"

/* On the wire: NCCL's tag below, what kind of message it is above. Refused: instead of a message that
 * was too long for its receive; its length is between the two. */
#define DPN_WIRED_REFUSED ((uint64_t)1 << 63)
#define DPN_WIRED_EARLY ((uint64_t)1 << 62)
enum { DPN_WIRED_TAG_BITS = 32 };

/* One receive of a group. */
struct dpn_wired_room {
    char *data;
    size_t size; /* the room; once done the message */
    int tag;
    bool done, is_watched;
    const struct dpn_memory *memory;
};

struct dpn_wired_request {
    struct dpn_request base;
    struct dpn_wired *wired;
    struct dp_wire_request wire;        /* the message; of a receive the grant */
    const struct dpn_memory *memory;    /* of a send */
    bool is_early;                      /* of a send: no grant has come yet */
    unsigned count, left;               /* of a receive: rooms, and those not done */
    struct dpn_grant grant;
    struct dpn_wired_room rooms[DPN_MAX_RECEIVES];
};

/* Where the message that is coming in goes: to a room, to memory that keeps it, or nowhere. */
struct dpn_wired_aimed {
    bool is_aimed, has_place, is_staged;
    uint64_t tag;
    size_t len;
    struct dpn_place place;
    struct dpn_kept *kept;
};

struct dpn_wired {
    struct dp_wire *wire;
    bool is_sender;
    bool is_expecting;        /* incoming is under way */
    struct dp_wire_request incoming;
    struct dpn_grant arrived;     /* sender: where incoming goes */
    struct dpn_wired_aimed aimed; /* receiver: the same */
    char *staging;                /* receiver: where it goes if it is watched */
    size_t staging_bytes;
    struct dpn_grants grants;     /* the receives that are open; of a sender: as far as known */
    struct dpn_early_sends early; /* sender */
    struct dpn_kept_list kept;    /* receiver */
    struct dp_wire_request refusal;
    uint32_t free; /* a bit per request */
    struct dpn_wired_request requests[NCCL_NET_MAX_REQUESTS];
};

static inline uint64_t dpn_wired_tag(int tag)
{
    return (uint32_t)tag;
}

static inline unsigned dpn_wired_slot(const struct dpn_wired_request *req)
{
    return (unsigned)(req - req->wired->requests);
}

/* ---- what arrives (net_wired_arrive.c) -------------------------------------------------------- */

/* As a wire asks. */
void dpn_wired_aim(struct dp_wire_request *incoming, uint64_t tag, size_t len);
/* A receiver expects something while it has open receives. */
void dpn_wired_expect(struct dpn_wired *w);
/* Moves everything in the comm. */
void dpn_wired_progress(struct dpn_comm *comm);
/* What has come before this receive. Returns a message that is too long, and *place. */
struct dpn_kept *dpn_wired_take_kept(struct dpn_wired *w, const struct dpn_wired_request *req,
                                     struct dpn_place *place);
void dpn_wired_refuse_kept(struct dpn_wired *w, struct dpn_kept *kept, struct dpn_place place);

#endif
