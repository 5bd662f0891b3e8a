/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.h - what the files of the shared memory wire have in common: the segment, and a side's view
 * of it. shm.c explains the protocol.
 */
#ifndef DP_WIRE_SHM_H
#define DP_WIRE_SHM_H

#include "wire/cma.h"
#include "wire/acceptor.h"
#include "wire/net.h"
#include "wire/shm_mappings.h"
#include "wire/shm_path.h"
#include "wire/wire.h"

#include <sys/socket.h>

enum {
    DP_SHM_SLOTS = 64, /* a power of 2 */
    /* All slots together are larger than a core's own cache: what is written into one again has
     * left both cores' caches by then, and need not be fetched out of the receiver's. */
    DP_SHM_SLOT_BYTES = 32768,
    DP_SHM_INLINE_BYTES = 40,
    DP_SHM_LARGE = 64 << 10 /* shorter messages always go through the ring */
};

struct dp_shm_entry {
    /* 1 + the number of the piece: the entry has the turn that its reader waits for only after it
     * was written for that reader. */
    alignas(64) atomic_uint turn;
    uint32_t len; /* of the piece, or DP_SHM_OFFER */
    uint64_t message_len, tag;
    char bytes[DP_SHM_INLINE_BYTES];
};
_Static_assert(sizeof(struct dp_shm_entry) == 64, "an entry is one cache line");

/* Instead of a piece's length: the entry offers a whole message by cross-memory attach, and its
 * bytes are a struct dp_shm_source. */
#define DP_SHM_OFFER UINT32_MAX
struct dp_shm_source {
    uint64_t address;
    struct dp_shm_location place; /* in announced memory, or none */
};
_Static_assert(sizeof(struct dp_shm_source) <= DP_SHM_INLINE_BYTES, "it fits into an entry");

/* The receiver's answer to an offer, written before it accepts. */
struct dp_shm_target {
    struct dp_shm_location place; /* of its buffer, or none */
    uint32_t copies;           /* it can do some of the copying */
};

/* Each flag is alone on its pair of cache lines: they are written by different cores. */
struct dp_shm_side {
    alignas(128) atomic_uint taken;           /* pieces that the receiver has consumed */
    alignas(128) atomic_uint receiver_asleep; /* ring when there is a new piece */
    alignas(128) atomic_uint sender_asleep;   /* ring when a slot becomes free */
    struct dp_cma_transfer transfer;          /* of the last offer */
    struct dp_shm_target target;              /* valid once the transfer is accepted */
    atomic_uint announcements;                /* sent by the receiver, of its own memory */
    atomic_uint lent;                         /* enum dp_shm_lent, of the receiver's memory */
    atomic_uint by_ring; /* bit c: the receiver wants messages of dp_shm_class c by the ring */
    alignas(128) struct dp_shm_entry entries[DP_SHM_SLOTS];
    alignas(4096) char slots[DP_SHM_SLOTS][DP_SHM_SLOT_BYTES];
};

/* The sender takes it for as long as it uses the memory, the receiver ends it. */
enum dp_shm_lent { DP_SHM_LENT_NOT, DP_SHM_LENT_FREE, DP_SHM_LENT_IN_USE };

struct dp_shm_segment {
    struct dp_shm_side sides[2]; /* [0]: from the connecting process, [1]: to it */
    struct dp_cma_identity identities[2]; /* [0]: of the connecting process */
};

struct dp_shm_wire {
    struct dp_wire base;
    struct dp_connector connector; /* until connected */
    int fd;              /* the socket, once connected; else -1 */
    bool peer_gone;      /* what it had sent is still in the ring */
    unsigned looks;
    struct dp_shm_segment *segment;
    struct dp_shm_side *out, *in;

    unsigned sent, known_taken; /* pieces */
    unsigned received;

    /* Large messages. */
    bool may_use_cma; /* the user's option */
    struct dp_cma cma;
    struct dp_shm_mappings mappings;
    struct dp_cma_part offered, taken; /* sends.head, while is_offered; receives.head ... */
    bool is_offered, is_taken;
    struct dp_shm_target goes_to; /* of what is offered, once is_accepted; this side's own copy */
    struct dp_shm_location comes_from; /* of what is taken */
    bool is_accepted;                  /* what is offered was accepted */
    bool is_refused;   /* sends.head could not be transferred by CMA: it goes through the ring */
    bool is_shared;    /* what is offered lies in memory that the receiver has been shown */
    unsigned refusals[2]; /* in succession, of messages that do not lie there, and of those that do */
    unsigned by_cma;      /* messages sent so; tests read it */

    bool is_lending; /* memory of this side: */
    uint32_t lent_slot;

    /* Path selection of what is received. */
    bool measures; /* the user's option; false: CMA wherever it works */
    struct dp_shm_paths paths;
    int64_t began_ns; /* when the message that comes was first seen; 0: it is not measured */
};


static inline struct dp_shm_wire *dp_shm_of(struct dp_wire *wire)
{
    return (struct dp_shm_wire *)wire;
}

/* ---- shm_signal.c: what the sides tell each other beside messages ------------------------------ */

/* Both sides use atomic exchanges on the flag, which are totally ordered. If the waker's exchange
 * comes first, the sleeper's exchange acquires everything that the waker wrote before, and its next
 * look finds the new piece. If the sleeper's comes first, the waker reads 1 and sends a byte. */
static inline bool dp_shm_set_asleep(atomic_uint *asleep, unsigned value)
{
    return atomic_exchange_explicit(asleep, value, memory_order_acq_rel);
}

/* Wake the other side, if it sleeps with this flag set. */
static inline void dp_shm_ring(struct dp_shm_wire *w, atomic_uint *asleep)
{
    if (dp_shm_set_asleep(asleep, 0))
        send(w->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Free the receiver's current entry. */
static inline void dp_shm_free_slot(struct dp_shm_wire *w)
{
    atomic_store_explicit(&w->in->taken, ++w->received, memory_order_release);
}

/* Whether the receiver is done with all that was sent. */
bool dp_shm_is_all_taken(struct dp_shm_wire *w);
/* Read the socket: wake-ups, announcements, the peer's end. */
void dp_shm_look(struct dp_shm_wire *w);
/* Memory was announced in either direction: offers that were refused before may work now. */
void dp_shm_has_shared(struct dp_shm_wire *w);

/* ---- shm_large.c: rendezvous transfers ------------------------------------------------------- */

/* The connection is set up: publish this process for CMA, unless the user forbids it. */
void dp_shm_meet(struct dp_shm_wire *w);
/* Once the peer is published too, test whether its memory can be reached. */
void dp_shm_try(struct dp_shm_wire *w);
/* Fill the entry with an offer of the first send, which is large. false: it goes through the ring.
 */
bool dp_shm_offer(struct dp_shm_wire *w, struct dp_shm_entry *entry);
/* The first piece of a large message has come through the ring: announce its destination, so that
 * the next message may be offered. */
void dp_shm_begin(struct dp_shm_wire *w, const struct dp_wire_request *receive);
/* All of it has come. */
void dp_shm_measure(struct dp_shm_wire *w, size_t len);
/* Copy a piece of it out of its slot. */
void dp_shm_copy_out(struct dp_shm_wire *w, char *to, const char *slot, size_t len,
                     size_t message_len);
/* The first send is offered: copy some chunks of it, and finish it once it is done. */
void dp_shm_push(struct dp_shm_wire *w);
/* The entry is an offer: copy some chunks. true: the transfer has ended and the entry is free. */
bool dp_shm_pull(struct dp_shm_wire *w, const struct dp_shm_entry *entry);
/* Whether there is something to do about them now. */
bool dp_shm_can_push(struct dp_shm_wire *w);
bool dp_shm_can_pull(const struct dp_shm_wire *w);
/* Requests are about to be dropped: after this, no process reads or writes their memory. */
void dp_shm_quiesce(struct dp_shm_wire *w);

/* How the peer finds buf, which is announced first if it must be; none if it is not in shared
 * memory. */
struct dp_shm_location dp_shm_name(struct dp_shm_wire *w, const void *buf, size_t len);
/* Memory that the other side refers to; NULL if it is not mapped here. */
char *dp_shm_find(struct dp_shm_wire *w, const struct dp_shm_location *place, size_t len);

/* ---- shm_loan.c: memory that the peer works on in place -------------------------------------- */

extern const struct dp_wire_loan_ops dp_shm_loans;

/* ---- shm_open.c: connecting ---------------------------------------------------------- */

enum { DP_SHM_ADDRESS_BYTES = DP_HOST_ID_BYTES + DP_COOKIE_BYTES + 8 };

int dp_shm_listen(const struct dp_wire_config *config, struct dp_wire_listener **out,
                  struct dp_wire_address *address);
void dp_shm_unlisten(struct dp_wire_listener *listener);
/* ops: the table of the new wire. */
int dp_shm_connect(const struct dp_wire_ops *ops, const struct dp_wire_address *address,
                   uint64_t label, struct dp_wire **out);
int dp_shm_accept(const struct dp_wire_ops *ops, struct dp_wire_listener *listener,
                  uint64_t *label, struct dp_wire **out);

#endif
