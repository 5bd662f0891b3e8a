/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_transport.h - a connection over a wire: what the requests (net/wire_transport.c) and what
 * arrives (net/wire_receive.c) share.
 */
#ifndef DPN_NET_WIRE_TRANSPORT_H
#define DPN_NET_WIRE_TRANSPORT_H

#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/cts.h"

/* ---- eager messages ---------------------------------------------------------------------------- */

/* Messages over shm and tcp that are sent before their clear-to-send (CTS) has come.
 *
 *      sender                             receiver
 *      isend of tag 7, no CTS yet   -->   stays in the wire as long as there is no open receive
 *                                         irecv of tag 7: the message goes to its buffer
 *                                         irecv of tag 9: the message is unexpected, it is in front
 *      the CTS: the send is done    <--   of tag 9 in the wire, and is stored until irecv of tag 7
 *
 * A wire keeps the order, so both sides agree which receive a message is for: the nth of its tag. An
 * eager send is done when its CTS has come, as other sends are. So the receiver never has to store
 * more messages than the sender has eager sends that are not done.
 */

/* Of a connection, each of at most DPN_MAX_EAGER bytes. Fewer than there are requests, or those of
 * one tag would keep off all others. */
enum { DPN_EAGER_COUNT = 16 };

/* ---- sender -------------------------------------------------------------------------------- */

struct dpn_eager_entry {
    int tag;
    size_t size;
    unsigned slot; /* of the request */
};

/* Sends whose CTS has not come yet, oldest first. Zeroed memory is an empty queue. */
struct dpn_eager_queue {
    unsigned count;
    size_t bytes; /* of all of them */
    struct dpn_eager_entry sends[DPN_EAGER_COUNT];
};

/* There are fewer than DPN_EAGER_COUNT. */
void dpn_eager_queue_add(struct dpn_eager_queue *queue, struct dpn_eager_entry send);
/* Take out the oldest entry of this tag: its CTS has come. false: there is none. */
bool dpn_eager_queue_take(struct dpn_eager_queue *queue, int tag, struct dpn_eager_entry *out);

/* ---- receiver ------------------------------------------------------------------------------ */

struct dpn_unexpected {
    struct dpn_unexpected *next;
    int tag;
    size_t size;
    char data[];
};

/* Messages that wait for their receives, oldest first. Zeroed memory: none. The first one has
 * memory mapped for as many as there may be, which costs no more than what is written there, and
 * stays. */
struct dpn_unexpected_list {
    struct dpn_unexpected *head;
    char *memory;
    unsigned used; /* a bit for each that is not freed yet */
};

static inline unsigned dpn_unexpected_count(const struct dpn_unexpected_list *list)
{
    return (unsigned)__builtin_popcount(list->used);
}

/* Memory for a message. NULL: there is none, or the peer sends more than it may. */
struct dpn_unexpected *dpn_unexpected_new(struct dpn_unexpected_list *list, int tag, size_t size);
void dpn_unexpected_add(struct dpn_unexpected_list *list, struct dpn_unexpected *message);
/* The oldest of this tag, off the list; NULL: none. */
struct dpn_unexpected *dpn_unexpected_take(struct dpn_unexpected_list *list, int tag);
/* message is not on the list; NULL is fine. */
void dpn_unexpected_free(struct dpn_unexpected_list *list, struct dpn_unexpected *message);
/* All on the list, and its memory. */
void dpn_unexpected_fini(struct dpn_unexpected_list *list);

/* ---- a connection ------------------------------------------------------------------------------ */

/* On the wire: NCCL's tag below, what kind of message it is above. Refused: instead of a message
 * that was too long for its receive; its length is between the two. */
#define DPN_WIRE_REFUSED ((uint64_t)1 << 63)
#define DPN_WIRE_EAGER ((uint64_t)1 << 62)
enum { DPN_WIRE_TAG_BITS = 32 };

/* One receive of a group. */
struct dpn_wire_comm_buffer {
    char *data;
    size_t size; /* the room; once done the message */
    int tag;
    bool done, is_watched;
    const struct dpn_memory *memory;
};

struct dpn_wire_comm_request {
    struct dpn_request base;
    struct dpn_wire_comm *owner;
    struct dp_wire_request wire;        /* the message; of a receive the clear-to-send */
    const struct dpn_memory *memory;    /* of a send */
    bool is_eager;                      /* of a send: no clear-to-send has come yet */
    unsigned count, left;               /* of a receive: buffers, and those not done */
    struct dpn_cts cts;
    struct dpn_wire_comm_buffer buffers[DPN_MAX_RECEIVES];
};

/* Where the message that is coming in goes: to a room, to memory that keeps it, or nowhere. */
struct dpn_wire_comm_target {
    bool is_set, has_place, is_staged;
    uint64_t tag;
    size_t len;
    struct dpn_place place;
    struct dpn_unexpected *message;
};

struct dpn_wire_comm {
    struct dp_wire *wire;
    bool is_sender;
    bool is_expecting;        /* incoming is under way */
    struct dp_wire_request incoming;
    struct dpn_cts arrived;     /* sender: where incoming goes */
    struct dpn_wire_comm_target target; /* receiver: the same */
    char *staging;                /* receiver: where it goes if it is watched */
    size_t staging_bytes;
    struct dpn_cts_list cts_list;     /* the receives that are open; of a sender: as far as known */
    struct dpn_eager_queue eager; /* sender */
    struct dpn_unexpected_list unexpected;    /* receiver */
    struct dp_wire_request refusal;
    uint32_t free; /* a bit per request */
    struct dpn_wire_comm_request requests[NCCL_NET_MAX_REQUESTS];
};

static inline uint64_t dpn_wire_comm_tag(int tag)
{
    return (uint32_t)tag;
}

static inline unsigned dpn_wire_comm_slot(const struct dpn_wire_comm_request *req)
{
    return (unsigned)(req - req->owner->requests);
}

/* ---- what arrives (net/wire_receive.c) ------------------------------------------------------- */

/* As a wire asks. */
void dpn_wire_comm_set_target(struct dp_wire_request *incoming, uint64_t tag, size_t len);
/* A receiver expects something while it has open receives. */
void dpn_wire_comm_expect(struct dpn_wire_comm *w);
/* Moves everything in the comm, whose counters these are. */
void dpn_wire_comm_progress(struct dpn_wire_comm *w, struct dpn_stat *stat);
/* What has come before this receive. Returns a message that is too long, and *place. */
struct dpn_unexpected *dpn_wire_comm_take_unexpected(struct dpn_wire_comm *w,
                                                     const struct dpn_wire_comm_request *req,
                                                     struct dpn_place *place);
void dpn_wire_comm_refuse_unexpected(struct dpn_wire_comm *w, struct dpn_unexpected *message,
                                     struct dpn_place place);

#endif
