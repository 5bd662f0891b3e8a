/* SPDX-License-Identifier: Apache-2.0
 *
 * cma.h - cross-memory attach: copies from one process's memory to another's, by both processes at
 * once. A message that is transferred so is cut into chunks; the receiver takes them from the front
 * (process_vm_readv), the sender from the back (process_vm_writev), until they meet. Either can copy
 * all of it.
 *
 *      receiver pulls ->                                   <- sender pushes
 *      | chunk 0 | chunk 1 | chunk 2 |   free   | chunk 4 | chunk 5 |
 *                                    front      back
 *
 * The kernel allows this under the same rules as a debugger: as a rule between processes of one
 * user. Whether it works is tested when two processes connect; where it does not, the shared ring
 * (shm.h) carries the message. One case widens a right: under Yama's ptrace_scope 1, where only
 * ancestors may attach, dp_cma_introduce allows the peer by PR_SET_PTRACER. The peer is the process
 * that the kernel reports at the other end of the socket (SO_PEERCRED), has shown the wire's cookie
 * or was connected to with it, and must still be of the same user. A process can allow only one
 * other, and takes that back with the last connection to it. One side of a connection is enough, so
 * the first one (which listened or connected, always the same) allows the other; that one allows it
 * only if the first has its right in use elsewhere.
 * So where each process connects to the next one of a ring, all these connections are reached.
 * Where neither side has its right left, shared memory carries the message, and one line says so.
 * To let all processes of the user in (PR_SET_PTRACER_ANY) would undo what ptrace_scope 1 is for,
 * so that is left to the administrator.
 *
 * A process is named by its number, and the peer may end at any time, after which another process
 * may get that number. It is neither taken for the peer nor written to. What proves the peer is part
 * of each call: the kernel looks the number up once in a call and holds the address space that it
 * found until the call returns (process_vm_rw_core: mm_access, mmput).
 *
 * - A pull reads the peer's token, 64 random bits whose address and value it has published, and the
 *   chunk. If the token is right, the chunk is the peer's. If it is not, the message fails.
 * - A push writes a word to each of the peer's two guard pages, and behind them the chunk. A process
 *   has its guards at random addresses, of 2^33 each, where nothing else is mapped, and publishes
 *   them; a child does not inherit them (MADV_DONTFORK), and exec unmaps them. The kernel takes the
 *   parts of a call in their order, and ends the call at the first one that it cannot pin
 *   (process_vm_rw_single_vec: pin_user_pages_remote), before it has written any of it. So in another
 *   process the call ends with EFAULT at the first guard, or for one in 2^33 at the second.
 */
#ifndef DP_WIRE_CMA_H
#define DP_WIRE_CMA_H

#include <dualpipe/dualpipe.h>

#include <stdalign.h>
#include <stdatomic.h>

enum { DP_CMA_GUARDS = 2 };

/* What a side publishes about itself, in shared memory. Zeroed memory: not published yet. */
struct dp_cma_identity {
    alignas(128) atomic_uint ready; /* the other members are valid */
    atomic_uint reaches;            /* tested: this side can copy from and to the other's memory */
    uint32_t pid;
    uint32_t allows; /* Yama: the other side is let in */
    uint64_t token_at, token;
    uint64_t guards[DP_CMA_GUARDS]; /* addresses; 0: there are none, and it cannot be written to */
};

/* A message in transfer, in shared memory. One at a time for each direction. */
struct dp_cma_transfer {
    /* The chunks [front, back) are free, front in the upper 32 bits; or DP_CMA_ENDED. */
    alignas(128) atomic_uint_least64_t chunks;
    atomic_uint_least64_t target;    /* its address in the receiver; valid once accepted */
    atomic_uint accepted;            /* number of the accepted offer */
    alignas(128) atomic_uint pulled; /* chunks that the receiver is done with */
    atomic_uint pulled_failed;       /* and that it took but could not copy */
    alignas(128) atomic_uint pushed; /* chunks that the sender is done with */
    atomic_uint pushed_failed;
};
#define DP_CMA_ENDED UINT64_MAX

/* This side's view of the peer. Zeroed memory: no peer can be reached. */
struct dp_cma {
    uint32_t pid, peer_pid;
    struct dp_cma_identity *mine, *theirs;
    bool is_restricted, waits; /* by Yama; this side is published after the other one */
    bool admits;               /* the peer is let in for it */
    bool tried; /* the outcome is in reaches */
    bool reaches;
    uint64_t token; /* its address and value are in the identity */
    uint64_t guards[DP_CMA_GUARDS]; /* the peer's */
};

/* This side's view of a transfer. Lengths and addresses are its own copies: shared memory may
 * change at any time, so it is read once and checked. */
struct dp_cma_part {
    struct dp_cma_transfer *transfer;
    uint64_t here, there; /* the message in this process and in the other one */
    char *mapped;         /* the other one, where this process has that mapped; else NULL */
    size_t len, chunk_bytes;
    bool is_sender;
    uint32_t count, done; /* chunks; done: by this side */
    uint32_t others; /* chunks that the other side had taken when this side ended the transfer */
};

/* The addresses of this process's guards, made at the first call; 0: they cannot be. Any thread. */
void dp_cma_guards(uint64_t guards[DP_CMA_GUARDS]);
/* Publish this process to the peer at the other end of the socket. is_first: on one side only.
 * `theirs` and `mine` are in shared memory. d may not move afterwards. */
void dp_cma_introduce(struct dp_cma *d, int socket, bool is_first, struct dp_cma_identity *mine,
                      struct dp_cma_identity *theirs);

/* The connection is closed: the last one to the peer takes back that it is let in. Zeroed: nothing. */
void dp_cma_fini(struct dp_cma *d);

/* Under Yama: which process this one lets in, and which have let it in, as far as it knows. */
enum { DP_CMA_ADMITTING = 64 };
struct dp_cma_rights {
    uint32_t pid, admitted; /* 0: none */
    int connections;        /* to the admitted one */
    int count;
    uint32_t admitting[DP_CMA_ADMITTING];
};
/* Decide whether process `pid` lets a peer in: if it has let in no other, and the peer has not let
 * it in, for this connection or for an earlier one. Returns whether the peer is let in. */
bool dp_cma_choose(struct dp_cma_rights *rights, uint32_t pid, uint32_t peer, bool peer_allows);
/* A connection for which the peer was let in is closed. Returns whether it was the last one: the peer is
 * let in no longer, and another one may be. */
bool dp_cma_release(struct dp_cma_rights *rights, uint32_t pid, uint32_t peer);
/* Once the other side is published, test whether its memory can be reached. */
void dp_cma_try(struct dp_cma *d);
/* Whether this is the process that the other side knows, and not a child of it. */
bool dp_cma_is_known(const struct dp_cma *d);
/* Whether one side at least can copy from and to all memory of the other. */
bool dp_cma_works(const struct dp_cma *d);

/* The sender cuts a message into chunks, and makes them free. in_fine: into smaller ones, for
 * copies without a system call; both sides pass the same. */
void dp_cma_offer(struct dp_cma_part *p, struct dp_cma_transfer *transfer, const void *buf,
                  size_t len, bool in_fine);
/* The receiver opens the offer: `source` is an address in the sender. It may pull. */
void dp_cma_take(struct dp_cma_part *p, struct dp_cma_transfer *transfer, uint64_t source,
                 void *buf, size_t len, bool in_fine);
/* The receiver publishes where the message goes. number: of the offer. */
void dp_cma_accept(struct dp_cma_part *p, unsigned number);
/* The receiver has accepted this number: from now on the sender may push. */
bool dp_cma_is_accepted(struct dp_cma_part *p, unsigned number);

/* Whether this side can do some of the copying. */
static inline bool dp_cma_can_copy(const struct dp_cma *d, const struct dp_cma_part *p)
{
    return p->mapped || d->reaches;
}

/* Copy some chunks, about a MiB. A transfer that cannot be carried out is ended. DP_ECOMM: the peer
 * is gone. */
int dp_cma_pull(struct dp_cma *d, struct dp_cma_part *p);
int dp_cma_push(struct dp_cma *d, struct dp_cma_part *p);

bool dp_cma_has_chunk(const struct dp_cma_part *p);
bool dp_cma_is_ended(const struct dp_cma_part *p);
/* For the receiver: all chunks are there. */
bool dp_cma_is_complete(const struct dp_cma_part *p);

/* No side takes another chunk. */
void dp_cma_end(struct dp_cma_part *p);
/* After that: whether the other side is still copying a chunk that it took before. */
bool dp_cma_is_busy(const struct dp_cma_part *p);

#endif
