/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - ranks that send each other messages: threads of one process, processes over shared
 * memory, processes over TCP, MPI. All of them behind one small table.
 *
 * A message goes from one rank to another on a *channel*. Each (sender, receiver, channel) is a
 * FIFO of its own: the k-th send meets the k-th receive, and a message on one channel never waits
 * for one on another. The tag is checked, never matched: a receive that meets another tag or length
 * than it announced fails with DP_EMISMATCH, naming both.
 *
 * Nothing blocks. isend and irecv start a transfer and fill a request; test moves whatever can be
 * moved and says whether that request is done. Every waiting function takes or has a deadline.
 *
 * Failure. The first rank that fails calls dp_comm_abort (the waiting functions do so themselves on
 * a deadline; a transport does so when a peer dies). From then on every call on every rank returns
 * DP_EABORTED, within the deadline, and dp_comm_aborted() tells everywhere the same culprit. Once a
 * call has returned DP_EABORTED on a rank, all requests of that rank are finished: its buffers are
 * its own again.
 *
 * Leaving. A rank that closes its comm still delivers what it had finished sending. Who then waits
 * for more from it, or sends to it, gets DP_ECOMM. Between processes, rank 0 knows for all who has left
 * and who has died: so its close waits until the others have closed theirs or died, for deadline_ns
 * at most, and for a second after an abort.
 *
 * Security. Processes that share a secret prove it to each other when they meet, without telling it; and
 * every connection between two ranks needs a random number that only the group knows. That keeps out
 * strangers and mistakes. Nothing is encrypted or signed: who can read or change what goes over the
 * network can read or change the messages, so use a network that you trust.
 *
 * Forks. A comm belongs to the process that opened it. A child that it forks, as a data loader's, keeps
 * none of its connections, so that the others find the end of the process while such a child lives.
 *
 * Threads: one thread at a time may use a comm; the comms of dp_comm_threads_new belong to one
 * thread each. dp_comm_abort alone may be called from any thread, but not from a signal handler.
 */
#ifndef DUALPIPE_COMM_H
#define DUALPIPE_COMM_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Channels, by kind of traffic. */
enum dp_channel {
    DP_CHANNEL_ACTIVATION,
    DP_CHANNEL_GRADIENT,
    DP_CHANNEL_REDUCE,
    DP_CHANNEL_CONTROL, /* collectives of this header */
    DP_CHANNELS
};

/* A transfer in flight. The caller owns the memory, which may neither move nor be reused before
 * dp_comm_test says that the request is done; nothing is allocated per request. */
struct dp_request {
    uint64_t opaque[8];
};

/* Why everything stopped: the same record on every rank. */
struct dp_abort {
    int rank;        /* the culprit's rank in the comm; -1: unknown */
    int error;       /* its negative errno */
    char text[232];  /* its sentence */
};

struct dp_comm;

/* What a communicator implements. Every member is set; none is called with a bad rank, channel or
 * NULL (the functions below check). All return 0 or a negative errno; none blocks but sleep, reset
 * and close, and abort for at most a second. */
struct dp_comm_ops {
    const char *name; /* "threads", "shm", "tcp", "mpi", ... */
    int (*isend)(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                 size_t len, struct dp_request *req);
    int (*irecv)(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf, size_t len,
                 struct dp_request *req);
    /* 0: done, the buffer is the caller's again. DP_EAGAIN: not yet. */
    int (*test)(struct dp_comm *comm, struct dp_request *req);
    /* Move what can be moved and look for aborts; called while waiting. `waiting_for` is the peer
     * that the caller waits for, -1 for none: it serves to name the culprit of a stall. */
    int (*progress)(struct dp_comm *comm, int waiting_for);
    /* Look again and again, for a microsecond or so, whether this request becomes done, and at
     * nothing else: a wait does that between two progresses while it spins, as those look at clocks
     * and at other ranks, and a message that comes meanwhile is seen late. May be NULL. */
    void (*watch)(struct dp_comm *comm, const struct dp_request *req);
    /* Block until a test may give another answer than it did after the last progress, or until
     * dp_now_ns() is until_ns; returning early is fine. */
    void (*sleep)(struct dp_comm *comm, int64_t until_ns);
    /* The caller will compute for a while: let transfers that need this rank go on without it, if
     * there are any. true: somebody works on them now, and come_back is called before anything else.
     * Both may be NULL where transfers need nobody. */
    bool (*away)(struct dp_comm *comm);
    void (*come_back)(struct dp_comm *comm);
    /* Tell every rank; the first record wins. With the error DP_ETIMEDOUT, why->rank is the peer that
     * this rank waited for in vain: the transport follows who waits for whom, and names the rank at
     * the end, which waits for nobody. */
    int (*abort)(struct dp_comm *comm, const struct dp_abort *why);
    /* true and *why if an abort happened. */
    bool (*aborted)(struct dp_comm *comm, struct dp_abort *why);
    /* See dp_comm_reset. */
    int (*reset)(struct dp_comm *comm);
    void (*close)(struct dp_comm *comm);
};

/* The part that every communicator begins with. */
struct dp_comm {
    const struct dp_comm_ops *ops;
    int rank, size;
    int64_t deadline_ns; /* longest wait of any call; at creation DUALPIPE_COMM_TIMEOUT_MS, 60 s */
    int64_t spin_ns;     /* a wait tests this long before it sleeps; at creation about the cost of one
                          * wake-up, 0 where ranks share cores, or DUALPIPE_COMM_SPIN_US */
    size_t shared_bytes; /* messages from this length on go quickest from and into memory of
                          * dp_shared_alloc; 0: it makes no difference */
    bool is_away;        /* see dp_comm_away; the functions below look after it */
};

/* ---- creation ------------------------------------------------------------------------------ */

/* `size` communicators of one group for `size` threads of this process. comms[size] receives them;
 * each is closed by its own thread with dp_comm_close. */
DP_PUBLIC int dp_comm_threads_new(int size, struct dp_comm **comms);

/* How the processes of a job find each other. Zeroed memory means: take everything from the
 * environment (dp_comm_config_from_env). */
struct dp_comm_config {
    int rank, size;          /* size 0: from the environment */
    const char *address;     /* "host:port" where rank 0 listens */
    const char *transport;   /* "auto" (NULL), "shm", "tcp", "mpi" */
    const char *secret;      /* shared by the ranks of the job; NULL: DUALPIPE_COMM_SECRET, or none */
    int64_t timeout_ns;      /* to find each other, and later deadline_ns; 0: 60 s */
};

/* Fill *config from torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), else
 * OpenMPI's, PMIx's or Slurm's. The address is DUALPIPE_COMM_ADDRESS; without it MASTER_ADDR, or the
 * first host of the job, and the port is the first of these that there is: DUALPIPE_COMM_PORT;
 * MASTER_PORT + 1, since torchrun itself uses MASTER_PORT; a number from 20000 to 29999 made of the
 * job's name, which is the same for all ranks. DP_ENOENT if there are no such variables, DP_EINVAL
 * naming the one that is missing or wrong. The strings belong to the library and stay. */
DP_PUBLIC int dp_comm_config_from_env(struct dp_comm_config *config);

/* Join the group. Collective over all its processes. Errors: DP_EINVAL, DP_ETIMEDOUT naming the
 * ranks that did not come, DP_ECOMM (address in use, refused), DP_EMISMATCH (another size, version
 * or secret; the stranger is dropped and the rest goes on). */
DP_PUBLIC int dp_comm_open(const struct dp_comm_config *config, struct dp_comm **out);

/* Leave the group; frees comm. Requests in flight are dropped. Rank 0 waits for the others, see the
 * top. comm may be NULL. */
DP_PUBLIC void dp_comm_close(struct dp_comm *comm);

/* ---- messages ------------------------------------------------------------------------------ */

/* Start to send buf[len] to peer. The buffer must stay until the request is done. peer may not be
 * the own rank. len may be 0. Large messages within a host are quickest from and into memory of
 * dp_shared_alloc (memory.h). DP_EINVAL, DP_ECOMM, DP_EABORTED. */
DP_PUBLIC int dp_comm_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag,
                            const void *buf, size_t len, struct dp_request *req);
DP_PUBLIC int dp_comm_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                            size_t len, struct dp_request *req);
/* 0: done. DP_EAGAIN: not yet. Else the transfer failed; the request is finished all the same. A
 * receive that met another tag or length is DP_EMISMATCH; its message is gone, the next one meets the
 * next receive, and the sender's request is done like any other. */
DP_PUBLIC int dp_comm_test(struct dp_comm *comm, struct dp_request *req);
/* Test until done. After deadline_ns DP_ETIMEDOUT, which aborts the group; dp_comm_aborted() names the
 * rank that everybody waited for. */
DP_PUBLIC int dp_comm_wait(struct dp_comm *comm, struct dp_request *req, int peer);

/* Move what can be moved, and hear of aborts. For when nobody waits. */
DP_PUBLIC int dp_comm_progress(struct dp_comm *comm);
/* The caller is about to compute for a while, and will not call meanwhile. Between processes, a
 * message that is larger than what a wire holds (64 KiB in shared memory, or 2 MiB where the system
 * does not let processes copy from each other; 64 KiB over TCP) moves only while both ends look after
 * it: until this rank's next call a thread does so in its place. Costs a few ns if there is no such
 * message. */
DP_PUBLIC void dp_comm_away(struct dp_comm *comm);

/* ---- failure ------------------------------------------------------------------------------- */

/* This rank has failed with `error`, a negative errno, and text says how: end the group. A text too
 * long for the record is cut. 0, also if the group had been aborted before. */
DP_PUBLIC int dp_comm_abort(struct dp_comm *comm, int error, const char *text);
/* Whether the group was aborted, as far as this rank has heard by its last call; why may be NULL. */
DP_PUBLIC bool dp_comm_aborted(struct dp_comm *comm, struct dp_abort *why);
/* Collective, after an abort that left every rank alive (a rank need not have heard of it yet): begin
 * anew. Requests and messages of before are gone on all ranks. DP_ECOMM if a rank is dead or has
 * left, DP_ETIMEDOUT naming the ranks that did not call it; the group then stays aborted. */
DP_PUBLIC int dp_comm_reset(struct dp_comm *comm);

/* ---- small collectives, for set-up and reports, not for a hot path ---------------------------- */
/* Each is collective, over DP_CHANNEL_CONTROL, and keeps to the deadline. Where ranks call different
 * ones, or with different lengths, the group is aborted with DP_EMISMATCH. Only allgatherv
 * allocates, and agree among more than 512 ranks. */

DP_PUBLIC int dp_comm_barrier(struct dp_comm *comm);
/* all[size * len]: rank r's bytes at all + r * len. mine may be all + rank * len. */
DP_PUBLIC int dp_comm_allgather(struct dp_comm *comm, const void *mine, void *all, size_t len);
/* Like allgather, but each rank has its own number of bytes: *all is malloc'ed (never NULL),
 * offsets[size + 1] says where each rank's bytes begin. */
DP_PUBLIC int dp_comm_allgatherv(struct dp_comm *comm, const void *mine, size_t len, void **all,
                                 size_t *offsets);
DP_PUBLIC int dp_comm_broadcast(struct dp_comm *comm, void *buf, size_t len, int root);
/* DP_EMISMATCH on every rank, naming `what` and the ranks that differ from rank 0, unless all ranks
 * pass the same value. */
DP_PUBLIC int dp_comm_agree(struct dp_comm *comm, const char *what, uint64_t value);
/* The offset to add to CLOCK_MONOTONIC of this rank to get rank 0's, and half the best round trip as
 * the error. By ping-pong, the quickest of `rounds` >= 1. */
DP_PUBLIC int dp_comm_clock_offset(struct dp_comm *comm, int rounds, int64_t *offset_ns,
                                   int64_t *error_ns);

#ifdef __cplusplus
}
#endif
#endif
