/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.h - the control connections of a group of processes: a TCP wire between rank 0, the
 * root, and each other rank, the members. Over it the ranks find each other, learn of failures, and
 * leave.
 *
 *      member                              root
 *      HELLO rank, size, nonce      ->                                         rank -1: any new one
 *                                   <-     CHALLENGE nonce      or REFUSAL text
 *      PROOF                        ->
 *                                   <-     WELCOME rank, size, proof    or REFUSAL text
 *
 *      ENDPOINT (all ranks)         ->
 *                                   <-     TABLE of all endpoints, or FAILED text (gather)
 *
 *      WAITING peer, since when     ->     kept at the root, to find the culprit
 *      ABORT record                 ->
 *                                   <-     VERDICT record: the root decides which was first
 *      UNANSWERED record            ->     no VERDICT came in time: the root was stopped
 *                                   <-     PROBE: ranks wait in a circle, is one of them stopped?
 *      PRESENT                      ->
 *      DOING number                 <->    kept for the record of an abort (dp_comm_note)
 *      BUSY ms                      <->    passed on to all others by the root
 *      LEFT                         <->    passed on to all others by the root
 *
 * A connection that ends without LEFT is a process that died, or a network that failed. No thread
 * serves these connections: they are polled when a rank calls, at most every so often.
 */
#ifndef DP_COMM_RENDEZVOUS_H
#define DP_COMM_RENDEZVOUS_H

#include "base/hmac.h"
#include "comm/abort_record.h"
#include "wire/net.h"
#include "wire/wire.h"

#include <pthread.h>
#include <string.h>

/* What each rank lets all others know. */
struct dp_endpoint {
    uint8_t host_id[16];
    struct dp_wire_address shm, tcp;
    uint8_t transport; /* what it was asked to use; must be the same everywhere */
};

enum dp_rendezvous_kind {
    DP_RENDEZVOUS_HELLO = 1,
    DP_RENDEZVOUS_CHALLENGE,
    DP_RENDEZVOUS_PROOF,
    DP_RENDEZVOUS_WELCOME,
    DP_RENDEZVOUS_REFUSAL,
    DP_RENDEZVOUS_ENDPOINT,
    DP_RENDEZVOUS_TABLE,
    DP_RENDEZVOUS_FAILED,
    DP_RENDEZVOUS_WAITING,
    DP_RENDEZVOUS_ABORT,
    DP_RENDEZVOUS_VERDICT,
    DP_RENDEZVOUS_LEFT,
    DP_RENDEZVOUS_BUSY,
    DP_RENDEZVOUS_DOING,
    DP_RENDEZVOUS_UNANSWERED,
    DP_RENDEZVOUS_PROBE,
    DP_RENDEZVOUS_PRESENT,
};

/* All but TABLE, which is an array of endpoints. The kind is the wire's tag, too; TABLE's tag has
 * the number of the gather in its upper half. */
struct dp_rendezvous_message {
    uint32_t kind;
    uint32_t count; /* ENDPOINT, FAILED: the gather. All from WAITING on: the epoch, which is
                     * the last gather that was complete; earlier messages do not count any more. */
    int32_t rank;
    int32_t
        value; /* HELLO: size. WAITING: peer. ABORT, VERDICT, FAILED, REFUSAL: error. BUSY: ms */
    union {
        uint64_t doing; /* ABORT, VERDICT, DOING */
        struct dp_endpoint endpoint;
        struct {
            uint8_t nonce[DP_NONCE_BYTES], proof[DP_PROOF_BYTES];
        } auth;
        int64_t waited_ns; /* WAITING */
    };
    char text[DP_ABORT_TEXT]; /* sent up to its end */
};

static inline size_t dp_rendezvous_message_bytes(const struct dp_rendezvous_message *m)
{
    return offsetof(struct dp_rendezvous_message, text) + strlen(m->text) + 1;
}

/* Whether the bytes that have been received are a message, whose text ends. */
static inline bool dp_rendezvous_is_message(const struct dp_rendezvous_message *m, size_t bytes)
{
    return bytes > offsetof(struct dp_rendezvous_message, text) && bytes <= sizeof(*m) &&
           ((const char *)m)[bytes - 1] == '\0';
}

enum { DP_RENDEZVOUS_OUTBOX = 8 };

/* The other end of a control connection. */
struct dp_rendezvous_peer {
    struct dp_wire *wire; /* NULL: there is none (yet) */
    struct dp_wire_request receive, table, sends[DP_RENDEZVOUS_OUTBOX];
    void *in; /* rv->in_room bytes */
    struct dp_rendezvous_message out[DP_RENDEZVOUS_OUTBOX];
    struct dp_wire_request doing; /* of its own, so that it takes no place in the outbox */
    struct dp_rendezvous_message out_doing;
    bool is_gone; /* left, or died; of the root: its connection has ended */
};

/* The caller's, see dp_comm_set_poll. Zeroed: none. */
struct dp_poll {
    int (*fn)(void *user);
    void *user;
};
/* 0, or the error with which the caller wants a wait to end. */
int dp_poll_call(const struct dp_poll *poll);

/* What is known here of a rank. */
struct dp_rendezvous_rank {
    uint64_t doing;             /* as far as told; at members, that of rank 0 */
    _Atomic int64_t busy_until; /* by dp_now_ns, see dp_comm_busy */
    bool left;                  /* orderly */
    bool lost;                  /* its process has ended */
    uint32_t came;              /* at the root: the last gather that it has come to */
};

struct dp_rendezvous {
    int rank, size;
    struct dp_poll poll;
    bool polls;      /* it is called in a gather and on leaving, */
    int interrupted; /* and has ended that */
    int64_t timeout_ns;
    /* Taken by every function here: dp_rendezvous_abort may come from any thread. */
    pthread_mutex_t lock;
    struct dp_rendezvous_peer
        *peers; /* root: [size], the first one unused; member: [1], the root */
    size_t in_room;
    struct pollfd *fds; /* [size] */
    struct dp_abort_record abort_record;
    const _Atomic uint64_t *own_doing; /* NULL: none */
    struct dp_rendezvous_rank *ranks;  /* [size] */
    atomic_int *waiting_for; /* [size], known to the root */
    bool survives;           /* a death is no reason for an abort, see survival.h */
    atomic_uint ends;        /* how many have left or ended: changes */
    uint32_t epoch;
    uint32_t gather; /* the last one that this rank has come to, counted from 1 */
    bool is_gathering;
    struct dp_endpoint *endpoints; /* [size], from the last gather; at the root as they come */
    struct dp_endpoint *table;     /* [size], the root's, on its way to the members */
    struct dp_abort failure;       /* of this gather; error 0: none */
    struct dp_abort accusation; /* the first that came since the root last decided; error 0: none */
    int accuser;
    /* Of a wait in vain, while the root gives the last rank of the chain time to say that it waits,
     * too (0: it does not): the ranks that were waited for when the accusation came. */
    int64_t accused_ns;
    int64_t probed_ns; /* when the ranks were asked whether they are there; 0: they were not */
    bool *present;     /* [size] have answered */
    atomic_int *suspects; /* [size] */
};

static inline int dp_rendezvous_peer_count(const struct dp_rendezvous *rv)
{
    return rv->rank ? 1 : rv->size;
}

struct dp_rendezvous_config {
    int rank, size;   /* rank -1: a process that joins a group, which says its rank and size */
    int first_new;    /* root: the ranks from here on are given to such processes; 0: none are */
    const char *host; /* of rank 0; rank 0 itself listens as dp_rendezvous_interface says */
    int port;
    const char *secret; /* NULL: none */
    int64_t timeout_ns;
    /* With another way to exchange the address, rank 0 listens already and the others have the
     * address; host and port are not used then. The listener is taken. */
    struct dp_wire_listener *listener;
    const struct dp_wire_address *address;
    struct dp_poll poll;
};

/* How rank 0 lets the others know where it listens, by other ways than an address they have. */
struct dp_invitation {
    int32_t error; /* it cannot listen */
    struct dp_wire_address address;
};

/* Where the ranks of a group listen whose rank 0 is at this host: on the loopback if it is localhost,
 * 127.0.0.1 or ::1 by that name, else NULL: on all interfaces. That another name leads to the loopback
 * does not tell that all ranks are here: Debian has its own host's name so. */
const char *dp_rendezvous_interface(const char *host);

/* Listen at host:port, or, for host NULL, with a socket that listens there already and is taken, also on
 * failure. */
int dp_rendezvous_listen(const char *host, int port, int socket, struct dp_wire_listener **out);

/* Find each other. Errors are those of dp_comm_open. */
int dp_rendezvous_join(const struct dp_rendezvous_config *config, struct dp_rendezvous **out);

/* An address by which this host is known to another rank's; false if there is none but the
 * loopback's. */
bool dp_rendezvous_find_address(const struct dp_rendezvous *rv, union dp_sockaddr *out);

/* Collective: the endpoints of all ranks, into rv->endpoints. An abort ends it, unless `anew`: then
 * it is forgotten once all have come. A failure is one for all: DP_ETIMEDOUT naming the ranks that
 * did not come, DP_ECOMM naming one that died, or that of the abort. */
int dp_rendezvous_gather(struct dp_rendezvous *rv, const struct dp_endpoint *mine, bool anew,
                         int64_t until_ns);

/* Handle what has arrived. */
void dp_rendezvous_poll(struct dp_rendezvous *rv);
/* Fill fds[rv->size] with what to poll for; returns their number, -1 if there is work to do now. */
int dp_rendezvous_arm(struct dp_rendezvous *rv, struct pollfd *fds);
/* Tell the root the peer that this rank waits for, and since when; -1: none any more. */
void dp_rendezvous_tell_waiting(struct dp_rendezvous *rv, int peer, int64_t since_ns);
/* When the root must poll at the latest, as it is about to decide; INT64_MAX: at no time. */
int64_t dp_rendezvous_decides_ns(struct dp_rendezvous *rv);
/* Tell the root, or as the root all others. false: the last one is still on its way to one of them,
 * which was left out. */
bool dp_rendezvous_tell_doing(struct dp_rendezvous *rv, uint64_t doing);
/* See dp_comm_ops. */
void dp_rendezvous_busy(struct dp_rendezvous *rv, int64_t ns);
int64_t dp_rendezvous_busy_until(const struct dp_rendezvous *rv);
/* Only keep that this rank is busy, and do not announce it. */
void dp_rendezvous_note_busy(struct dp_rendezvous *rv, int rank, int64_t ns);
/* See dp_comm_ops.abort. A member asks the root; without an answer in a second its own record
 * holds. */
void dp_rendezvous_abort(struct dp_rendezvous *rv, const struct dp_abort *why);
/* Whether this rank has left in order, as far as is known here. */
bool dp_rendezvous_has_left(struct dp_rendezvous *rv, int rank);
/* How many ranks have left or ended, as far as is known here. */
unsigned dp_rendezvous_ends(struct dp_rendezvous *rv);
/* Whether its control connection is known here to have ended without that. */
bool dp_rendezvous_has_ended(struct dp_rendezvous *rv, int rank);
/* Send LEFT; the root waits for the others, which may still need it, up to the timeout. Frees. */
void dp_rendezvous_leave(struct dp_rendezvous *rv);

/* After a failure that the members were told: the root waits until they have closed their
 * connections, at most a second. A connection closed with unread data loses what was sent on it. */
void dp_rendezvous_drain(struct dp_rendezvous *rv);

/* ---- for rendezvous_join.c --------------------------------------------------------------------- */
/* The caller holds the lock, once other threads use the rendezvous. */

/* A sentence about a control connection that is of no use any more. Only an end of the stream tells
 * that the process has ended; a link that went down shows as another error. */
void dp_rendezvous_describe_loss(const struct dp_rendezvous_peer *p, int rank, char *text,
                                 size_t room);

int dp_rendezvous_new(int rank, int size, int64_t timeout_ns, struct dp_rendezvous **out);
void dp_rendezvous_free(struct dp_rendezvous *rv);
/* Takes a wire whose other end has been authenticated. */
void dp_rendezvous_adopt(struct dp_rendezvous *rv, struct dp_rendezvous_peer *peer,
                         struct dp_wire *wire);

#endif
