/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - ranks that send each other messages: threads of one process, or processes over shared
 * memory, TCP, MPI or NCCL (nccl.h), all behind the same functions.
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
 * Survival. In a group for which dp_comm_survive was called a dead rank ends nothing but the
 * requests that need it: see survival.h.
 *
 * Leaving. A rank that closes its comm still delivers what it had finished sending. A rank that then
 * waits for more from it, or sends to it, gets DP_ECOMM. Between processes, rank 0 knows for all which
 * ranks have left and which have died: so its close waits until the others have closed theirs or died,
 * for deadline_ns at most, and for a second after an abort.
 *
 * Security. Processes that share a secret prove it to each other when they meet, without telling
 * it; and every connection between two ranks needs a random number that only the group knows. That
 * keeps out other jobs and mistakes. Nothing is encrypted or signed: a program that can read or
 * change traffic on the network can read or change the messages, so use a network that you trust.
 *
 * Forks. A comm belongs to the process that opened it. A forked child, such as a data loader's, keeps
 * none of its connections, so the other ranks notice the end of the process even while such a child
 * lives.
 *
 * Threads: one thread at a time may use a comm; the comms of dp_comm_threads_new belong to one
 * thread each. dp_comm_abort alone may be called from any thread, but not from a signal handler.
 */
#ifndef DUALPIPE_COMM_H
#define DUALPIPE_COMM_H

#include <dualpipe/dualpipe.h>
#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Channels, by kind of traffic. */
enum dp_channel {
    DP_CHANNEL_ACTIVATION,
    DP_CHANNEL_GRADIENT,
    DP_CHANNEL_REDUCE,
    DP_CHANNEL_CONTROL,    /* set-up: clocks, and what a library agrees on by messages */
    DP_CHANNEL_COLLECTIVE, /* the collectives that are requests */
    DP_CHANNELS
};

/* A transfer or a collective in flight. The caller owns the memory, which may neither move nor be
 * reused before dp_comm_test says that the request is done; nothing is allocated per request. */
struct dp_request {
    uint64_t opaque[12];
};

/* Why everything stopped: the same record on every rank. */
struct dp_abort {
    int rank;       /* the culprit's rank in the comm; -1: unknown */
    int error;      /* its negative errno */
    uint64_t doing; /* what it did last, as dp_pipeline_doing_text has it; 0: not known */
    char text[DP_ABORT_TEXT]; /* its sentence */
};

struct dp_comm;

/* What a communicator can do. */
struct dp_comm_caps {
    bool device_memory;  /* buffers may lie in the memory of a device */
    bool stream_ordered; /* transfers are carried out in the order of a device's streams, see there
                          */
    bool tags;           /* the tag travels with the message and is checked */
};

/* ---- properties ---------------------------------------------------------------------------- */

/* What a communicator says of itself, a number each, for the functions below. */
enum dp_comm_property {
    DP_COMM_RANK,
    DP_COMM_SIZE,
    DP_COMM_CAPS, /* device_memory, 2 stream_ordered, 4 tags */
    DP_COMM_DEADLINE,
    DP_COMM_SPIN, /* how long a wait polls before it sleeps, in ns; at creation about the cost of one
                   * wake-up, 0 where ranks share cores, or DUALPIPE_COMM_SPIN_US */
    DP_COMM_SHARED_BYTES,
    DP_COMM_SURVIVES,
    DP_COMM_REVOKED /* whether dp_comm_revoke was called for it, as far as this rank has heard by its
                     * last call. Where one has returned DP_EABORTED and this is 0, the whole group
                     * was aborted */
};
DP_PUBLIC int64_t dp_comm_get(const struct dp_comm *comm, enum dp_comm_property property);
/* DP_COMM_DEADLINE and DP_COMM_SPIN. */
DP_PUBLIC void dp_comm_set(struct dp_comm *comm, enum dp_comm_property property, int64_t value);

/* "threads", "auto", "shm", "tcp", "mpi", ...: the library's, for ever. */
DP_PUBLIC const char *dp_comm_name(const struct dp_comm *comm);

/* From 0 to size - 1. */
static inline int dp_comm_rank(const struct dp_comm *comm)
{
    return (int)dp_comm_get(comm, DP_COMM_RANK);
}

static inline int dp_comm_size(const struct dp_comm *comm)
{
    return (int)dp_comm_get(comm, DP_COMM_SIZE);
}

static inline struct dp_comm_caps dp_comm_caps(const struct dp_comm *comm)
{
    const int64_t bits = dp_comm_get(comm, DP_COMM_CAPS);
    struct dp_comm_caps caps = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};

    return caps;
}

/* The longest wait of any call, in ns; at creation DUALPIPE_COMM_TIMEOUT_MS, 60 s. Set it to 1 or
 * more. */
static inline int64_t dp_comm_deadline(const struct dp_comm *comm)
{
    return dp_comm_get(comm, DP_COMM_DEADLINE);
}

static inline void dp_comm_set_deadline(struct dp_comm *comm, int64_t ns)
{
    dp_comm_set(comm, DP_COMM_DEADLINE, ns);
}

/* Messages from this length on are copied fastest from and into memory of dp_shared_alloc; 0: it
 * makes no difference. */
static inline size_t dp_comm_shared_bytes(const struct dp_comm *comm)
{
    return (size_t)dp_comm_get(comm, DP_COMM_SHARED_BYTES);
}

/* ---- creation ------------------------------------------------------------------------------ */

/* `size` communicators of one group for `size` threads of this process. comms[size] receives them;
 * each is closed by its own thread with dp_comm_close. */
DP_PUBLIC int dp_comm_threads_new(int size, struct dp_comm **comms);

/* A key-value store of the processes of a job: torch's Store, etcd, Redis. Both functions return 0 or
 * a negative errno, which dp_comm_open then returns. They are called by the thread that opens, and no
 * more once dp_comm_open has returned. */
struct dp_comm_store {
    void *user;
    int (*put)(void *user, const char *key, const void *value, size_t len);
    /* *len: in, the room in value; out, the length. DP_EAGAIN: not there yet; it is then called again,
     * until the timeout. It may as well wait for the value itself. */
    int (*get)(void *user, const char *key, void *value, size_t *len);
    const char *prefix; /* of the one key that is used, PREFIX/rendezvous; another one for each
                         * group that is opened. NULL: "dualpipe" */
    uint64_t reserved[2];
};

/* How the processes of a job find each other. Zeroed memory means: take everything from the
 * environment (dp_comm_config_from_env). */
struct dp_comm_config {
    int rank, size;        /* size 0: from the environment */
    const char *address;   /* "host:port" where rank 0 listens */
    const char *transport; /* "auto" (NULL), "shm", "tcp", "mpi" */
    const char *secret;    /* shared by the ranks of the job; NULL: DUALPIPE_COMM_SECRET, or none */
    int64_t timeout_ns;    /* to find each other, and later deadline_ns; 0: 60 s */
    int listener;          /* rank 0: a TCP socket that already listens at the address, 1 or more; it
                            * is closed, also where open fails. 0: none. With one, rank 0 needs no
                            * address */
    uint32_t reserved;
    const struct dp_comm_store *store; /* rank 0 listens anywhere and leaves its address here, so that
                                        * none is needed; NULL: none. With both, it listens there */
    int (*poll)(void *user); /* as of dp_comm_set_poll, in the waits of dp_comm_open, too, which then
                              * ends with its error; NULL: none */
    void *poll_user;
};

/* Fill *config from torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), else
 * OpenMPI's, PMIx's or Slurm's. The address is DUALPIPE_COMM_ADDRESS; without it MASTER_ADDR, or
 * the first host of the job, and the port is the first of these that there is: DUALPIPE_COMM_PORT;
 * MASTER_PORT + 1, since torchrun itself uses MASTER_PORT; a number from 20000 to 29999 made of the
 * job's name, which is the same for all ranks; a job of one process needs none. DP_ENOENT if there
 * are no such variables, as in the script of sbatch (Slurm's count where SLURM_STEP_ID is set, which
 * srun does), DP_EINVAL naming the one that is missing or wrong. The strings belong to the library
 * and stay. */
DP_SIZED(dp_comm_config_from_env, (config, sizeof(struct dp_comm_config)),
         struct dp_comm_config *config);

/* Which process of its job this one is, as torchrun, mpirun or srun tell it. */
struct dp_process {
    const char
        *launcher; /* "torchrun", "OpenMPI", "PMI", "Slurm", ...; NULL: none, and all below is -1 */
    int rank, size;
    int local_rank, local_size; /* among those of this host; -1: not told */
    int gpu; /* its number in the machine, by local_rank and CUDA_VISIBLE_DEVICES; -1: not told */
};
/* From the environment. DP_EINVAL naming the variable that is no such number. Any thread. */
DP_PUBLIC int dp_process_from_env(struct dp_process *out);
/* Leave this process the GPU that is its own: where CUDA_VISIBLE_DEVICES lists one GPU for each
 * process of the host, in order of their local ranks, let it list that of this process alone, which
 * CUDA then calls device 0. *has_gpu tells whether there is such a list; with none, or an empty
 * one, nothing changes.
 * Call it once, before CUDA begins and before there are other threads, as it changes the
 * environment. DP_EINVAL: local rank or number is not told, or the list has another number of GPUs.
 * Source: Decent-DP's set-up of a process. */
DP_PUBLIC int dp_process_keep_own_gpu(const struct dp_process *process, bool *has_gpu);

/* Join the group. Collective over all its processes. Errors: DP_EINVAL for a config that is not sound,
 * or one that leaves rank and size, or the address, to a launcher or an option that is not there;
 * DP_ETIMEDOUT naming the ranks that did not come, DP_ECOMM (address in use, refused), DP_EMISMATCH
 * (another size, version or secret; the stranger is dropped and the rest goes on). */
DP_SIZED(dp_comm_open, (config, out, sizeof(struct dp_comm_config)),
         const struct dp_comm_config *config, struct dp_comm **out);

/* Leave the group; frees comm. Requests in flight are dropped. Rank 0 waits for the others, see the
 * top. comm may be NULL. A process that exits with status 0 leaves so, too; with another one it has
 * failed, and ends the group. */
DP_PUBLIC void dp_comm_close(struct dp_comm *comm);

/* ---- groups -------------------------------------------------------------------------------- */

/* A new communicator for all ranks that pass the same color, ordered by key, and by their rank in
 * comm where keys are equal: MPI_Comm_split. Collective over comm. A negative color takes part and
 * gets *out = NULL. Messages of one communicator never match those of another, also between the
 * same two ranks. The new one has comm's deadline and spin time.
 *
 * All communicators made out of one another are one *family*: one thread at a time may use any of
 * them, and an abort of one ends all. Each is closed by dp_comm_close, in any order. DP_ENOMEM,
 * DP_EABORTED, DP_ETIMEDOUT. */
DP_PUBLIC int dp_comm_split(struct dp_comm *comm, int color, int key, struct dp_comm **out);

/* A grid of processes. The last axis varies fastest:
 *
 *      axes {"data", 2}, {"pipe", 3}        rank    0 1 2    data 0
 *                                                   3 4 5    data 1
 */
struct dp_comm_axis {
    const char *name; /* unique in the grid: "pipe", "data", "mirror", ... */
    int size;         /* 0, of at most one axis: what the others leave */
};
/* out[count]: for each axis the communicator of the ranks that differ from this one only along that
 * axis; its rank there is its coordinate. Collective over comm, whose size is the product of the
 * axes. All ranks pass the same axes: DP_EMISMATCH. DP_EINVAL names the axis. On an error nothing
 * is left open. */
DP_PUBLIC int dp_comm_grid(struct dp_comm *comm, const struct dp_comm_axis *axes, int count,
                           struct dp_comm **out);

/* ---- messages ------------------------------------------------------------------------------ */

/* Start to send buf[len] to peer. The buffer must stay until the request is done. peer may not be
 * the own rank. len may be 0. Large messages within a host are quickest from and into memory of
 * dp_shared_alloc (memory.h). DP_EINVAL, DP_ECOMM, DP_EABORTED. */
DP_PUBLIC int dp_comm_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag,
                            const void *buf, size_t len, struct dp_request *req);
DP_PUBLIC int dp_comm_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                            size_t len, struct dp_request *req);
/* 0: done. DP_EAGAIN: not yet. Else the transfer failed; the request is finished all the same. A
 * finished request may be tested and waited for again, until it is reused: the answer is the same,
 * or DP_EABORTED of a message once the group was aborted. A receive that met another tag or length
 * is DP_EMISMATCH; its message is gone, the next one meets the next receive, and the sender's
 * request is done like any other. */
DP_PUBLIC int dp_comm_test(struct dp_comm *comm, struct dp_request *req);
/* Test until done. After the deadline DP_ETIMEDOUT, which aborts the group; dp_comm_aborted() names
 * the rank that the others waited for. peer: where the message goes to or comes from; -1 of a
 * collective.
 * Of a receive from any source: the rank that the caller expects it from, or -1; in a group that
 * survives the wait ends with DP_ECOMM, and the receive is given up, if that rank is dead. */
DP_PUBLIC int dp_comm_wait(struct dp_comm *comm, struct dp_request *req, int peer);

enum { DP_ANY_SOURCE = -1 };

/* What an irecv_any has received. */
struct dp_received {
    int peer;
    uint64_t tag;
    size_t len;
};

/* Receive the next message of `peer`, or of any rank (DP_ANY_SOURCE), on this channel, with any tag
 * and any length up to room; DP_EMISMATCH from test if it is longer. Messages of one sender arrive
 * in the order in which they were sent, and take turns with those of other senders. Receives from
 * any source are served in the order of their calls. While one is pending, a receive from a given
 * peer on the same channel is DP_EINVAL; a rank that a receive is pending from is passed over. */
DP_PUBLIC int dp_comm_irecv_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                                struct dp_request *req);
/* After test or wait has returned 0 for such a request, which has not been reused. */
DP_PUBLIC void dp_comm_received(const struct dp_comm *comm, const struct dp_request *req,
                                struct dp_received *out);

/* What is started between begin and commit belongs together and may begin to move only at the
 * commit: on a communicator that hands work to a device, one launch for all of it (NCCL's group).
 * No test or wait between the two: DP_EINVAL. Elsewhere they do nothing else. */
DP_PUBLIC int dp_comm_begin(struct dp_comm *comm);
DP_PUBLIC int dp_comm_commit(struct dp_comm *comm);

/* Move what can be moved, and notice aborts. For times without a wait. */
DP_PUBLIC int dp_comm_progress(struct dp_comm *comm);
/* The caller is about to compute for a while, and will not call meanwhile. Between processes, a
 * message that is larger than what a wire holds (64 KiB in shared memory, or 2 MiB where the system
 * does not let processes copy from each other; 64 KiB over TCP) moves only while both ends look
 * after it: until this rank's next call a thread does so in its place. Costs a few ns if there is
 * no such message. */
DP_PUBLIC void dp_comm_progress_start(struct dp_comm *comm);

/* The caller will make no call for up to `ns`, as long as a checkpoint or a compilation takes: the
 * waits of all ranks count their deadlines from the end of that time on. 0: it is back earlier. Any
 * thread; in a group that survives, the one that uses comm. There a rank that dies is waited for no
 * longer, and it takes up to 0.1 s where a connection to a neighbor is not made yet. */
DP_PUBLIC int dp_comm_busy(struct dp_comm *comm, int64_t ns);
/* Call poll(user) in every wait, about once a millisecond, or never (NULL). Another result than 0,
 * a negative errno, aborts the group with it and ends the wait: DP_EINTERRUPTED where a user stops the
 * program, as an interpreter's interrupt does; a number above 0 counts as that. A reset that it ends
 * leaves the group aborted, a close goes on without waiting. */
DP_PUBLIC void dp_comm_set_poll(struct dp_comm *comm, int (*poll)(void *user), void *user);

/* ---- order with a device's streams (device.h), where caps.stream_ordered ------------------------ */

struct dp_device_stream;

/* What is started on comm from now on, until the next such call, begins after all that `stream` has
 * been given by now. */
DP_PUBLIC int dp_comm_after(struct dp_comm *comm, struct dp_device_stream *stream);
/* What `stream` is given from now on begins after the request is done. The host does not wait; the
 * request must still be tested until it is done before its memory is reused. DP_EUNSUPPORTED where
 * the communicator is not stream-ordered. */
DP_PUBLIC int dp_comm_stream_wait(struct dp_comm *comm, struct dp_request *req,
                                  struct dp_device_stream *stream);

/* ---- collectives as requests ------------------------------------------------------------------- */
/* All ranks of comm call the same ones in the same order with the same sizes; several may be in
 * flight, and are carried out one after the other in that order (for two at a time, split comm
 * twice). They are progressed like any other request, by test, wait and progress, and by the
 * progress thread (dp_comm_progress_start). Buffers must stay until the request is done. A
 * collective that fails aborts the group. After the first use of a size nothing is allocated; large
 * all-reduces between processes of one host keep 512 KiB of shared memory for each in flight.
 *
 * Types: float32, float64, bfloat16, float16, int64; lanes 1. 16-bit values are added in float32
 * and rounded once. All ranks get the same bits. The order of a sum depends on nothing but the size
 * of the communicator, count and type:
 *
 *      all-reduce up to DP_COLLECTIVE_SMALL bytes: recursive doubling, where the ranks from p on, the
 *          largest power of 2, are added to those below first: ((0 + p) + (1 + p + 1)) + ...
 *      all-reduce of more: block b of `size` blocks is summed in the order of ranks
 *          b + 1, b + 2, ... b (a ring)
 */
enum { DP_COLLECTIVE_SMALL = 16 << 10 };

enum dp_reduction { DP_REDUCE_SUM, DP_REDUCE_MIN, DP_REDUCE_MAX };

/* out[count] = the reduction of all in[count]; out may be in. */
DP_PUBLIC int dp_comm_iallreduce(struct dp_comm *comm, const void *in, void *out, size_t count,
                                 DLDataType type, enum dp_reduction op, struct dp_request *req);
/* all[size * len]: rank r's bytes at all + r * len. mine may be all + rank * len. */
DP_PUBLIC int dp_comm_iallgather(struct dp_comm *comm, const void *mine, void *all, size_t len,
                                 struct dp_request *req);
DP_PUBLIC int dp_comm_ibroadcast(struct dp_comm *comm, void *buf, size_t len, int root,
                                 struct dp_request *req);

/* ---- failure ------------------------------------------------------------------------------- */

/* This rank has failed with `error`, a negative errno, and text says how: end the group. A text too
 * long for the record is cut. 0, also if the group had been aborted before. */
DP_PUBLIC int dp_comm_abort(struct dp_comm *comm, int error, const char *text);
/* Whether the group was aborted or comm revoked, as far as this rank has heard by its last call; why
 * may be NULL. */
DP_PUBLIC bool dp_comm_aborted(struct dp_comm *comm, struct dp_abort *why);
/* Collective, after an abort that left every rank alive (a rank need not have heard of it yet):
 * begin anew. Requests and messages of before are gone on all ranks. DP_ECOMM if a rank is dead or
 * has left, DP_ETIMEDOUT naming the ranks that did not call it; the group then stays aborted. */
DP_PUBLIC int dp_comm_reset(struct dp_comm *comm);

/* ---- small collectives, for set-up and reports, not for a hot path ------------------------------ */
/* Each is collective, keeps to the deadline, and takes its turn among the collectives above. Where ranks
 * call different ones, or with different lengths, the group is aborted with DP_EMISMATCH. Only
 * agree allocates, among more than 512 ranks. */

/* A collective that is waited for at once. */
static inline int dp_comm_finish(struct dp_comm *comm, int err, struct dp_request *req)
{
    return err ? err : dp_comm_wait(comm, req, -1);
}

static inline int dp_comm_barrier(struct dp_comm *comm)
{
    struct dp_request req;

    return dp_comm_finish(comm, dp_comm_iallgather(comm, NULL, NULL, 0, &req), &req);
}

/* all[size * len]: rank r's bytes at all + r * len. mine may be all + rank * len. */
static inline int dp_comm_allgather(struct dp_comm *comm, const void *mine, void *all, size_t len)
{
    struct dp_request req;

    return dp_comm_finish(comm, dp_comm_iallgather(comm, mine, all, len, &req), &req);
}

static inline int dp_comm_broadcast(struct dp_comm *comm, void *buf, size_t len, int root)
{
    struct dp_request req;

    return dp_comm_finish(comm, dp_comm_ibroadcast(comm, buf, len, root, &req), &req);
}

/* DP_EMISMATCH on every rank, naming `what` and the ranks that differ from rank 0, unless all ranks
 * pass the same value. */
DP_PUBLIC int dp_comm_agree(struct dp_comm *comm, const char *what, uint64_t value);
/* The same of lines, "NAME tab VALUE newline" each: the first that differs is named, with both values;
 * where names differ, `what` is. text NULL: DP_ENOMEM. */
DP_PUBLIC int dp_comm_agree_lines(struct dp_comm *comm, const char *what, const char *text);
/* What a rank did by itself, as a part of something that all ranks do: err is 0, or its error, which
 * dp_last_error describes. 0 if it is 0 on all ranks; otherwise every rank gets the error of the first
 * rank that has one, and its sentence, "rank 2: ...". comm stays usable, and may be NULL: then it is
 * err. */
DP_PUBLIC int dp_comm_share_error(struct dp_comm *comm, int err);

#ifdef __cplusplus
}
#endif
#endif
