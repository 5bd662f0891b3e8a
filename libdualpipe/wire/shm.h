/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.h - what the files of the shared memory wire have in common: the segment, and a side's view
 * of it. shm.c explains the protocol.
 */
#ifndef DP_WIRE_SHM_H
#define DP_WIRE_SHM_H

#include "wire/acceptor.h"
#include "wire/base.h"
#include "wire/cma.h"
#include "wire/net.h"
#include <dualpipe/dualpipe.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* ---- shm mappings ---------------------------------------------------------------------------- */

/* The mapping cache of a shared memory wire: memory of dp_shared_alloc (memory.h)
 * of one side that the other side has mapped too.
 *
 *      owner                                                    peer
 *      announces a piece: an announcement, with its file  ->    maps it
 *      refers to it: announcement number and offset       ->    finds it
 *
 * Announcements travel over the wire's socket, among the bytes that wake the peer; references are
 * in the segment. A piece is announced when a message in it is sent or received for the first time.
 * Each side has DP_SHM_MAPPINGS slots at the peer and manages them itself: a further piece takes
 * the slot that was referred to longest ago. */

enum { DP_SHM_MAPPINGS = 16 };

/* An address in an announced piece. Zeroed memory: none. */
struct dp_shm_location {
    uint64_t offset;
    uint32_t announcement; /* number of the announcement, from 1 */
    uint32_t slot;
};

struct dp_shm_announcement {
    uint8_t kind; /* not 0, which only wakes */
    uint8_t slot;
    uint32_t number;
    uint64_t bytes; /* of the file passed with it */
};

struct dp_shm_mappings {
    struct dp_shm_announced {
        uint64_t id; /* of struct dp_shared_place */
        uint32_t announcement;
        uint64_t used; /* value of uses at the last reference */
        bool is_lent;  /* keeps its slot */
    } mine[DP_SHM_MAPPINGS];
    struct dp_shm_map {
        char *at; /* NULL: nothing */
        size_t bytes;
        uint32_t announcement;
    } theirs[DP_SHM_MAPPINGS];
    uint32_t announcements; /* sent */
    uint64_t uses;
    unsigned received; /* announcements of the peer */

    struct dp_shm_announcement coming;
    size_t got;    /* bytes of it */
    int passed_fd; /* passed with it; -1: none */
};

void dp_shm_mappings_init(struct dp_shm_mappings *maps);
/* Unmap everything of the peer. Zeroed memory is fine. */
void dp_shm_mappings_fini(struct dp_shm_mappings *maps);

/* Announce the piece that holds buf[len], if it is not yet. false if buf is not in shared memory or
 * it cannot be announced. */
bool dp_shm_mappings_name(struct dp_shm_mappings *maps, int socket, const void *buf, size_t len,
                          struct dp_shm_location *out);

/* Take what was read from the socket into bytes and passed_fd. */
void dp_shm_mappings_receive(struct dp_shm_mappings *maps, const char *bytes, size_t len);

/* The len bytes that the peer refers to, mapped here; NULL if they are not. Valid until the next
 * dp_shm_mappings_receive. */
char *dp_shm_mappings_find(const struct dp_shm_mappings *maps, const struct dp_shm_location *place,
                           size_t len);

/* ---- shm path -------------------------------------------------------------------------------- */

/* Path selection for large messages between memory that the two processes do not
 * share: through the ring, or by cross-memory attach. Which is faster differs several times over
 * between machines, sizes, and the cores that the two processes run on: the ring wants cores that
 * share a cache. So the receiver measures every message, and publishes which path the next one of
 * that size shall take.
 *
 *      a path is tried    |||                 |                    |         a share of the time
 *      the best one          |||||||||||||||||  |||||||||||||||||||  ||||    all other messages
 *
 * A try is a few long messages, or many short ones. Its cost decides how often there is one: all
 * tries together take 1/64 of the time. */

enum dp_shm_path {
    DP_SHM_CMA,
    DP_SHM_RING,
    DP_SHM_RING_NT, /* the same, copied out with non-temporal stores; for the largest */
    DP_SHM_PATHS
};

/* Sizes are told apart by powers of 4, from DP_SHM_LARGE on; the last class has all that is larger.
 */
enum { DP_SHM_CLASSES = 6 };
unsigned dp_shm_class(size_t len);

/* One for each direction. Zeroed memory knows nothing, and begins with DP_SHM_CMA. */
struct dp_shm_paths {
    struct dp_shm_costs {
        int64_t cost[DP_SHM_PATHS]; /* ns for a MiB; 0: not measured yet */
        int64_t owed_ns;            /* time that the best path serves before the next try */
        int64_t left_bytes;         /* of this try */
        int tried;                  /* last */
        bool is_known;              /* all have been tried once */
        int wanted;                 /* for the next message */
    } classes[DP_SHM_CLASSES];
};

/* A message of len has come by `path` within ns. Returns the path for the next one of that class.
 */
enum dp_shm_path dp_shm_paths_learn(struct dp_shm_paths *paths, size_t len, enum dp_shm_path path,
                                    int64_t ns);

/* ---- shm ------------------------------------------------------------------------------------- */

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
    struct dp_wire_base base;
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

/* ---- what the sides tell each other beside messages -------------------------------------------- */

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

/* Memory that the peer works on in place. */
extern const struct dp_wire_loan_ops dp_shm_loans;

/* ---- shm.c: as in struct dp_wire_ops ---------------------------------------------------------- */

void dp_shm_progress(struct dp_wire *wire);
bool dp_shm_has_message(struct dp_wire *wire);
bool dp_shm_arm(struct dp_wire *wire, struct pollfd *fd);
void dp_shm_disarm(struct dp_wire *wire, short revents);
void dp_shm_drop_requests(struct dp_wire *wire);
void dp_shm_close(struct dp_wire *wire);

#endif
