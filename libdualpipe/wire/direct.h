/* SPDX-License-Identifier: Apache-2.0
 *
 * direct.h - copies straight from one process's memory to another's (process_vm_readv and writev), by
 * both of them at once. A message that is dealt with so is cut into chunks; the receiver takes them
 * from the front, the sender from the back, until they meet. Either can do all of it.
 *
 *      receiver pulls ->                                   <- sender pushes
 *      | chunk 0 | chunk 1 | chunk 2 |   free   | chunk 4 | chunk 5 |
 *                                    front      back
 *
 * Who may do that is the kernel's decision, the same as for a debugger: as a rule processes of one user
 * may (see introduce). Whether it works is tried out when two processes meet, and where it does not,
 * the memory that they share (shm.h) serves. Nobody gets rights over this process that he did not
 * have, but for one case: under Yama's ptrace_scope 1, where only its parents may look into a process,
 * dp_direct_introduce lets the peer in too, by PR_SET_PTRACER. He is one process, known by the kernel's
 * word for who is at the other end of the socket, has shown the wire's cookie or was called by us with
 * it, and is of the same user, or the kernel would still say no. A process can let in only one other,
 * so a second peer is left to the shared memory.
 *
 * A process is named by its number, and numbers are used again. Each side has a random word somewhere
 * in its memory, and tells which and where. It is read along with every chunk that is pulled, in the
 * same call, so a chunk of a stranger is never taken for the peer's. There is no such call for writing:
 * for that the word must have been read within the last millisecond. So for a chunk to go astray the
 * peer would have to die, be buried, and its number go round all others to somebody new, all in one
 * millisecond.
 */
#ifndef DP_WIRE_DIRECT_H
#define DP_WIRE_DIRECT_H

#include <dualpipe/dualpipe.h>

#include <stdalign.h>
#include <stdatomic.h>

/* What a side says of itself, in shared memory. Zeroed memory is a card that nobody has written. */
struct dp_direct_card {
    alignas(128) atomic_uint ready; /* the rest is there */
    atomic_uint reaches;            /* it has tried, and can copy from and to the other's memory */
    uint32_t pid;
    uint64_t word_at, word;
};

/* A message, in shared memory. One at a time for each direction. */
struct dp_direct_deal {
    /* The chunks [front, back) are free, front in the upper half; or DP_DEAL_ENDED. */
    alignas(128) atomic_uint_least64_t chunks;
    atomic_uint_least64_t target; /* where the receiver wants it; valid once accepted */
    atomic_uint accepted;         /* the number of the offer that the receiver has accepted */
    alignas(128) atomic_uint pulled; /* chunks that the receiver is done with */
    alignas(128) atomic_uint pushed; /* chunks that the sender is done with */
};
#define DP_DEAL_ENDED UINT64_MAX

/* This side's view of the peer. Zeroed memory reaches nobody. */
struct dp_direct {
    uint32_t pid, peer_pid;
    struct dp_direct_card *mine, *theirs;
    bool tried;   /* the outcome is in reaches */
    bool reaches;
    uint64_t word; /* its address and value are on the card */
    int64_t proved_ns; /* when the peer's word was last read, and was the right one */
};

/* This side's view of a deal. The lengths and addresses are its own copies: what is in shared memory may
 * change under a reader's eyes, so it is looked at once, and checked. */
struct dp_direct_part {
    struct dp_direct_deal *deal;
    uint64_t here, there; /* the message in this process and in the other one */
    char *mapped;         /* the other one, where this process has that mapped; else NULL */
    size_t len, chunk_bytes;
    bool is_sender;
    uint32_t count, done; /* chunks; done: by this side */
    uint32_t others;      /* once this side has ended it: those that the other one had taken before */
};

/* Say who is here to who is at the other end of the socket. `theirs` and `mine` are in shared memory.
 * d stays where it is. */
void dp_direct_introduce(struct dp_direct *d, int socket, struct dp_direct_card *mine,
                         struct dp_direct_card *theirs);
/* Once the other side has introduced itself, see whether its memory can be reached. */
void dp_direct_try(struct dp_direct *d);
/* Whether this is the process that the other side has met, and not a child of it. */
bool dp_direct_is_known(const struct dp_direct *d);
/* Whether one side at least can copy from and to all memory of the other. */
bool dp_direct_works(const struct dp_direct *d);

/* The sender cuts a message into chunks, and makes them free. in_fine: into smaller ones, for copies
 * that are no calls; both sides say the same. */
void dp_direct_offer(struct dp_direct_part *p, struct dp_direct_deal *deal, const void *buf,
                     size_t len, bool in_fine);
/* The receiver looks at it: source is in the sender. It may pull. */
void dp_direct_take(struct dp_direct_part *p, struct dp_direct_deal *deal, uint64_t source, void *buf,
                    size_t len, bool in_fine);
/* And says where to it is wanted. number: of the offer. */
void dp_direct_accept(struct dp_direct_part *p, unsigned number);
/* The receiver has accepted this number: from now on the sender may push. */
bool dp_direct_is_accepted(struct dp_direct_part *p, unsigned number);

/* Whether this side can do some of the copying. */
static inline bool dp_direct_can_copy(const struct dp_direct *d, const struct dp_direct_part *p)
{
    return p->mapped || d->reaches;
}

/* Copy some chunks, about a MiB. Deals that cannot be carried out are ended. DP_ECOMM: the peer is
 * gone. */
int dp_direct_pull(struct dp_direct *d, struct dp_direct_part *p);
int dp_direct_push(struct dp_direct *d, struct dp_direct_part *p);

bool dp_direct_has_chunk(const struct dp_direct_part *p);
bool dp_direct_is_ended(const struct dp_direct_part *p);
/* For the receiver: all chunks are there. */
bool dp_direct_is_complete(const struct dp_direct_part *p);

/* Nobody takes another chunk. */
void dp_direct_end(struct dp_direct_part *p);
/* Behind it: whether the other side is still in the middle of one that it took before. */
bool dp_direct_is_busy(const struct dp_direct_part *p);

#endif
