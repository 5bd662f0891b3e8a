/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.h - what the parts of the shared memory wire share: the segment, and a side's view of it. See
 * shm.c for what it is all about.
 */
#ifndef DP_WIRE_SHM_H
#define DP_WIRE_SHM_H

#include "wire/direct.h"
#include "wire/door.h"
#include "wire/net.h"
#include "wire/shm_maps.h"
#include "wire/shm_ways.h"
#include "wire/wire.h"

enum {
    DP_SHM_SLOTS = 64, /* a power of 2 */
    /* All slots together are larger than a core's own cache: what is written into one again has left
     * both cores' caches by then, and need not be fetched out of the receiver's. */
    DP_SHM_SLOT_BYTES = 32768,
    DP_SHM_INLINE_BYTES = 40,
    DP_SHM_LARGE = 64 << 10 /* from here on it may pay to copy straight */
};

struct dp_shm_line {
    /* 1 + the number of the piece; so a line never has the turn that its reader waits for, unless
     * it was written for it. */
    alignas(64) atomic_uint turn;
    uint32_t len; /* of the piece, or DP_SHM_OFFER */
    uint64_t message_len, tag;
    char bytes[DP_SHM_INLINE_BYTES];
};
_Static_assert(sizeof(struct dp_shm_line) == 64, "a line is one cache line");

/* Instead of a piece's length: a whole message is to be copied straight. In bytes is where it lies. */
#define DP_SHM_OFFER UINT32_MAX
struct dp_shm_source {
    uint64_t address;
    struct dp_shm_place place; /* in memory that the receiver has been shown; or nowhere */
};
_Static_assert(sizeof(struct dp_shm_source) <= DP_SHM_INLINE_BYTES, "it fits into a line");

/* What the receiver says of an offer, before it accepts. */
struct dp_shm_target {
    struct dp_shm_place place; /* of its buffer; or nowhere */
    uint32_t copies;           /* it can do some of the copying */
};

/* Each flag is alone on its pair of cache lines: they are written by different cores. */
struct dp_shm_side {
    alignas(128) atomic_uint taken;         /* pieces that the receiver is done with */
    alignas(128) atomic_uint receiver_asleep; /* ring when there is a new piece */
    alignas(128) atomic_uint sender_asleep;   /* ring when a slot becomes free */
    struct dp_direct_deal deal; /* of the last offer */
    struct dp_shm_target target; /* valid once the deal is accepted */
    atomic_uint letters;         /* that the receiver has written, about memory of its own */
    atomic_uint by_ring; /* a bit for each of dp_shm_class: the receiver wants such messages that way */
    alignas(128) struct dp_shm_line lines[DP_SHM_SLOTS];
    alignas(4096) char slots[DP_SHM_SLOTS][DP_SHM_SLOT_BYTES];
};

struct dp_shm_segment {
    struct dp_shm_side sides[2]; /* [0]: from the connecting process, [1]: to it */
    struct dp_direct_card cards[2]; /* [0]: of the connecting process */
};

struct dp_shm_wire {
    struct dp_wire base;
    struct dp_call call; /* until connected */
    int fd;              /* the socket, once connected; else -1 */
    bool peer_gone;      /* what it had sent is still in the ring */
    unsigned looks;
    struct dp_shm_segment *segment;
    struct dp_shm_side *out, *in;

    unsigned sent, known_taken; /* pieces */
    unsigned received;

    /* Large messages. */
    bool may_copy_straight; /* the user's option */
    struct dp_direct direct;
    struct dp_shm_maps maps;
    struct dp_direct_part offered, taken; /* sends.head, while is_offered; receives.head ... */
    bool is_offered, is_taken;
    struct dp_shm_target goes_to; /* of what is offered, once is_met; this side's own copy */
    struct dp_shm_place comes_from; /* of what is taken */
    bool is_met;                    /* what is offered was accepted */
    bool is_refused; /* sends.head could not be copied straight: it goes through the ring */
    bool is_shared;    /* what is offered lies in memory that the receiver has been shown */
    unsigned refusals[2]; /* in succession, of messages that do not lie there, and of those that do */
    unsigned straight; /* messages sent straight, for whoever wants to know */

    /* Which way they come. */
    bool measures; /* the user's option; else straight wherever that works */
    struct dp_shm_ways ways;
    int64_t began_ns; /* when the message that comes was first seen; 0: it is not measured */
};


static inline struct dp_shm_wire *dp_shm_of(struct dp_wire *wire)
{
    return (struct dp_shm_wire *)wire;
}

/* ---- shm.c: the ring ------------------------------------------------------------------------- */

/* Wake the other side, if it sleeps with this flag set. */
void dp_shm_ring(struct dp_shm_wire *w, atomic_uint *asleep);
/* The receiver is done with the line that it is at. */
void dp_shm_free_slot(struct dp_shm_wire *w);
/* Whether the receiver is done with all that was sent. */
bool dp_shm_is_all_taken(struct dp_shm_wire *w);
/* See whether somebody is at the other end of the socket. */
void dp_shm_look(struct dp_shm_wire *w);

/* ---- shm_large.c: messages that are copied straight ---------------------------------------------- */

/* The connection is there: meet the other process, unless the user does not want that. */
void dp_shm_meet(struct dp_shm_wire *w);
/* Has it come, too? Then try whether its memory can be reached. */
void dp_shm_try(struct dp_shm_wire *w);
/* One side has shown memory to the other, so there is one more way to try. */
void dp_shm_has_shared(struct dp_shm_wire *w);
/* Fill the line with an offer of the first send, which is large. false: it goes through the ring. */
bool dp_shm_offer(struct dp_shm_wire *w, struct dp_shm_line *line);
/* A large message begins to come through the ring; see to it that the next one need not. */
void dp_shm_begin(struct dp_shm_wire *w, const struct dp_wire_request *receive);
/* It has come, all of it. */
void dp_shm_measure(struct dp_shm_wire *w, size_t len);
/* Copy a piece of it out of its slot. */
void dp_shm_copy_out(struct dp_shm_wire *w, char *to, const char *slot, size_t len,
                     size_t message_len);
/* The first send is offered: help to copy it, and see whether it is done. */
void dp_shm_push(struct dp_shm_wire *w);
/* The line is an offer: copy, and see whether it is done. true: with this line, yes. */
bool dp_shm_pull(struct dp_shm_wire *w, const struct dp_shm_line *line);
/* Whether there is something to do about them now. */
bool dp_shm_can_push(struct dp_shm_wire *w);
bool dp_shm_can_pull(const struct dp_shm_wire *w);
/* Requests are about to be dropped: from now on nobody reads or writes their memory. */
void dp_shm_let_go(struct dp_shm_wire *w);

/* ---- shm_open.c: how it comes to be ---------------------------------------------------------- */

enum { DP_SHM_ADDRESS_BYTES = DP_HOST_ID_BYTES + 16 + DP_COOKIE_BYTES };

int dp_shm_listen(const struct dp_wire_config *config, struct dp_wire_listener **out,
                  struct dp_wire_address *address);
int dp_shm_connect(const struct dp_wire_address *address, uint64_t label, struct dp_wire **out);
int dp_shm_accept(struct dp_wire_listener *listener, uint64_t *label, struct dp_wire **out);

#endif
