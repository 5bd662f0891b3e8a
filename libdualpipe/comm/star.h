/* SPDX-License-Identifier: Apache-2.0
 *
 * star.h - the control connections of a group of processes: a TCP wire between rank 0, the root, and
 * each other rank, the members. Over it the ranks find each other, learn of failures, and leave.
 *
 *      member                              root
 *      HELLO rank, size, nonce      ->
 *                                   <-     CHALLENGE nonce      or REFUSAL text
 *      PROOF                        ->
 *                                   <-     WELCOME proof        or REFUSAL text
 *
 *      CARD  (all ranks)            ->
 *                                   <-     TABLE of all cards   or FAILED text     (gather)
 *
 *      WAITING peer                 ->     known at the root, to find who is to blame
 *      ABORT record                 ->
 *                                   <-     VERDICT record: the root decides which was first
 *      LEFT                         <->    told to all others by the root
 *
 * A connection that ends without LEFT is a process that died. Nobody has a thread for all this: it
 * is looked after when a rank calls, at most every so often.
 */
#ifndef DP_COMM_STAR_H
#define DP_COMM_STAR_H

#include "comm/blame.h"
#include "comm/secret.h"
#include "wire/net.h"
#include "wire/wire.h"

#include <pthread.h>

/* What each rank lets all others know. */
struct dp_card {
    uint8_t host_id[16];
    struct dp_wire_address shm, tcp;
    uint8_t transport; /* what it was asked to use; must be the same everywhere */
};

enum dp_star_kind {
    DP_STAR_HELLO = 1,
    DP_STAR_CHALLENGE,
    DP_STAR_PROOF,
    DP_STAR_WELCOME,
    DP_STAR_REFUSAL,
    DP_STAR_CARD,
    DP_STAR_TABLE,
    DP_STAR_FAILED,
    DP_STAR_WAITING,
    DP_STAR_ABORT,
    DP_STAR_VERDICT,
    DP_STAR_LEFT,
};

/* All but TABLE, which is an array of cards. The kind is the wire's tag, too; TABLE's tag has the number
 * of the gather in its upper half. */
struct dp_star_message {
    uint32_t kind;
    uint32_t count; /* CARD, FAILED: the gather. WAITING, ABORT, VERDICT: the epoch, which is the last
                     * gather that was complete; what was said before it does not count any more. */
    int32_t rank;
    int32_t value; /* HELLO: size. WAITING: peer. ABORT, VERDICT, FAILED, REFUSAL: error */
    union {
        char text[232];
        struct dp_card card;
        struct {
            uint8_t nonce[DP_NONCE_BYTES], proof[DP_PROOF_BYTES];
        } auth;
    };
};

enum { DP_STAR_OUTBOX = 8 };

/* The other end of a control connection. */
struct dp_star_peer {
    struct dp_wire *wire; /* NULL: there is none (yet) */
    struct dp_wire_request receive, table, sends[DP_STAR_OUTBOX];
    void *in; /* star->in_room bytes */
    struct dp_star_message out[DP_STAR_OUTBOX];
    bool is_gone; /* left, or died */
};

struct dp_star {
    int rank, size;
    int64_t timeout_ns;
    /* Taken by every function here: dp_star_abort may come from any thread. */
    pthread_mutex_t lock;
    struct dp_star_peer *peers; /* root: [size], the first one unused; member: [1], the root */
    size_t in_room;
    struct pollfd *fds;  /* [size] */
    struct dp_blame blame;
    atomic_int *waiting_for; /* [size], known to the root */
    bool *left;              /* [size] orderly */
    uint32_t epoch;
    uint32_t gather;       /* the last one that this rank has come to, counted from 1 */
    bool is_gathering;
    uint32_t *came;        /* [size], at the root: the last gather that a rank has come to */
    struct dp_card *cards; /* [size], from the last gather; at the root as they come */
    struct dp_card *table; /* [size], the root's, on its way to the members */
    struct dp_abort failure;    /* of this gather; error 0: none */
    struct dp_abort accusation; /* the first that came since the root last decided; error 0: none */
};

static inline int dp_star_peer_count(const struct dp_star *star)
{
    return star->rank ? 1 : star->size;
}

struct dp_star_config {
    int rank, size;
    const char *host; /* of rank 0; rank 0 itself listens there only if it is the loopback, else on all
                       * interfaces */
    int port;
    const char *secret; /* NULL: none */
    int64_t timeout_ns;
    /* Where there is another way to tell it, rank 0 listens already, and the others have the address;
     * host and port are not used then. The listener is taken. */
    struct dp_wire_listener *listener;
    const struct dp_wire_address *address;
};

/* Find each other. Errors are those of dp_comm_open. */
int dp_star_join(const struct dp_star_config *config, struct dp_star **out);

/* An address by which this host is known to another rank's; false if there is none but the
 * loopback's. */
bool dp_star_find_address(const struct dp_star *star, union dp_sockaddr *out);

/* Collective: everybody's card to everybody, in star->cards. An abort ends it, unless `anew`: then it
 * is forgotten once all have come. A failure is one for all: DP_ETIMEDOUT naming the ranks that did
 * not come, DP_ECOMM naming one that died, or that of the abort. */
int dp_star_gather(struct dp_star *star, const struct dp_card *mine, bool anew, int64_t until_ns);

/* Handle what has arrived. */
void dp_star_poll(struct dp_star *star);
/* Fill fds[star->size] with what to poll for; returns their number, -1 if there is work to do now. */
int dp_star_arm(struct dp_star *star, struct pollfd *fds);
/* Let the root know whom this rank has been waiting for, -1 nobody any more. */
void dp_star_tell_waiting(struct dp_star *star, int peer);
/* See dp_comm_ops.abort. A member asks the root, and takes its own word after a second. */
void dp_star_abort(struct dp_star *star, const struct dp_abort *why);
/* Whether this rank has left in order, as far as is known here. */
bool dp_star_has_left(struct dp_star *star, int rank);
/* Say goodbye; the root waits for the others, who may still need it, up to the timeout. Frees. */
void dp_star_leave(struct dp_star *star);

/* ---- for join.c and star_gather.c; the lock is held, where there is anybody else yet -------------- */

int dp_star_new(int rank, int size, int64_t timeout_ns, struct dp_star **out);
void dp_star_free(struct dp_star *star);
/* Takes a wire whose other end is who he says he is. */
void dp_star_adopt(struct dp_star *star, struct dp_star_peer *peer, struct dp_wire *wire);

/* A peer that has not read what it was told for so long is told no more: nothing here is worth waiting
 * for it. */
void dp_star_tell(struct dp_star_peer *p, const struct dp_star_message *m);
void dp_star_tell_all(struct dp_star *star, const struct dp_star_message *m);
struct dp_star_message dp_star_record(const struct dp_star *star, enum dp_star_kind kind,
                                      const struct dp_abort *why);
/* Sleep a little, or until something comes, and handle that. Not locked while asleep; each sleeper
 * would need fds of its own, so that this is for one thread at a time. */
void dp_star_sleep(struct dp_star *star);
/* All ranks have come to the gather: what was before is over. On a member this happens as soon as it
 * is told, since the next message may already belong to the new epoch. */
void dp_star_begin_epoch(struct dp_star *star);

#endif
