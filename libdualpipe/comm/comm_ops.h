/* SPDX-License-Identifier: Apache-2.0
 *
 * comm_ops.h - what a communicator implements: the table of operations, and the part that every
 * communicator begins with. For providers and tests; users have comm.h.
 *
 * comm.c checks arguments and waits; a provider never gets a bad rank or channel, or NULL.
 */
#ifndef DP_COMM_COMM_OPS_H
#define DP_COMM_COMM_OPS_H

#include <dualpipe/comm.h>
#include <poll.h>
#include <stdatomic.h>

struct dp_peers;
struct dp_survival;
struct dp_wire_loan;

/* Memory of this rank that a peer works on in place, one range for each peer and channel; see
 * dp_wire_loan_ops. */
struct dp_comm_loan_ops {
    bool (*lend)(struct dp_comm *comm, int peer, int channel, void *buf, size_t len,
                 struct dp_wire_loan *out);
    void (*end)(struct dp_comm *comm, int peer, int channel);
    char *(*use)(struct dp_comm *comm, int peer, int channel, const struct dp_wire_loan *loan,
                 size_t len);
    void (*leave)(struct dp_comm *comm, int peer, int channel);
};

/* What a transport does for a group that survives its ranks (libdualpipe/survival). None blocks. */
struct dp_survival_ops {
    /* From now on a death is no abort. The connections of processes; NULL: ranks are threads. */
    struct dp_peers *(*survive)(struct dp_comm *world);
    /* Between threads: to one peer, in order, dropped if that is dead. The message is copied. */
    void (*tell)(struct dp_comm *world, int peer, const void *message, size_t len);
    /* What the peer does, where memory is shared; NULL: by messages. */
    uint64_t (*doing)(struct dp_comm *world, int peer);
    /* The peer will be busy for so long from now on; 0: not any more. See dp_comm_busy. */
    void (*note_busy)(struct dp_comm *world, int peer, int64_t ns);
    /* The peer is dead: its requests fail, and nothing of it is received any more. */
    void (*bury)(struct dp_comm *world, int peer);
    /* Another rank has aborted the group. NULL where all know of it at once. */
    void (*note_abort)(struct dp_comm *world, const struct dp_abort *why);
    /* Drop a request that is in flight; its memory is the caller's again. Other requests of its
     * link fail, too, and later ones. */
    void (*cancel)(struct dp_comm *world, struct dp_request *req);
    /* Finish all requests of these channels with DP_ECOMM: their memory is the caller's again. No
     * message comes or goes there any more. */
    void (*end_channels)(struct dp_comm *world, int first, int count);
};

/* What such a group is asked and told, by dp_comm.hooks. Ranks are those of the world. */
struct dp_comm_hooks {
    /* Whether the rank is dead; or_left: or has left in order. Of any rank of comm: one that is dead, or
     * -1. DP_ECOMM, saying how the rank died. */
    bool (*has_lost)(const struct dp_comm *world, int rank, bool or_left);
    int (*find_dead)(struct dp_comm *comm);
    int (*fail)(const struct dp_comm *world, int rank);
    /* Whether this rank was declared dead by the others, or cannot go on; why may be NULL. */
    bool (*is_excluded)(const struct dp_comm *world, struct dp_abort *why);
    /* This rank has no files or no memory for its part: the others see that as its end. */
    void (*end)(struct dp_comm *world, int error, const char *text);
    /* Say why a call has failed that needed comm, if comm has been revoked. */
    int (*explain)(struct dp_comm *comm, int err);
    /* A communicator has been made: it may be revoked already. */
    void (*take_in)(struct dp_comm *comm);
    uint64_t (*doing)(const struct dp_comm *world, int rank);
    void (*free)(struct dp_survival *survival); /* the world is closed */

    /* For transports: a message of this peer has come; the peer's process has ended, or it has left,
     * and what it had sent may still be received; the group was aborted. */
    void (*handle)(struct dp_comm *world, int from, const void *message, size_t len);
    void (*lose)(struct dp_comm *world, int rank, bool has_left);
    void (*tell_abort)(struct dp_comm *world, const struct dp_abort *why);

    /* For processes. Report the death of this peer, too, from now on. */
    int (*watch)(struct dp_survival *survival, int peer);
    /* This rank is busy for so long, or does something else, from now on. */
    void (*tell_busy)(struct dp_comm *world, int64_t ns);
    void (*tell_doing)(struct dp_comm *world, uint64_t doing);
    /* Handle what has come. */
    void (*poll)(struct dp_survival *survival);
    /* Fill at most `room` before a sleep, and shorten it; how many, -1: there is work to do now. Disarm
     * comes next. */
    int (*arm)(struct dp_survival *survival, struct pollfd *fds, int room, int64_t *sleep_ns);
    void (*disarm)(struct dp_survival *survival);
    /* This rank leaves: tell it; and later: close the connections that told it. */
    void (*leave)(struct dp_comm *world);
    void (*end_watch)(struct dp_survival *survival);
};

/* Every member is set unless its comment says that it may be NULL. All return 0 or a negative errno.
 * None blocks but sleep, reset and close, and abort for at most a second. */
struct dp_comm_ops {
    const char *name; /* "threads", "shm", "tcp", "mpi", ... */
    struct dp_comm_caps caps;
    int (*isend)(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                 size_t len, struct dp_request *req);
    int (*irecv)(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf, size_t len,
                 struct dp_request *req);
    /* See dp_comm_irecv_any; peer -1: any. And what it has received, peer of the world. */
    int (*irecv_any)(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                     struct dp_request *req);
    void (*received)(struct dp_comm *comm, const struct dp_request *req, struct dp_received *out);
    /* A communicator of the family is closed: drop the requests of these channels. What was sent
     * still arrives. */
    void (*close_channels)(struct dp_comm *comm, int first, int count);
    /* 0: done, the buffer is the caller's again. DP_EAGAIN: not yet. */
    int (*test)(struct dp_comm *comm, struct dp_request *req);
    /* Whether test would not answer DP_EAGAIN, as far as is known without moving anything. */
    bool (*is_done)(struct dp_comm *comm, const struct dp_request *req);
    /* Move what can be moved and look for aborts; called while waiting. `waiting_for` is the peer
     * that the caller waits for, -1 for none: it serves to name the culprit of a stall. */
    int (*progress)(struct dp_comm *comm, int waiting_for);
    /* Test this request in a short loop, about a microsecond long, and nothing else. A wait calls it
     * between two calls of progress while it spins: progress reads clocks and control connections,
     * and would see a message that comes meanwhile late. May be NULL. */
    void (*watch)(struct dp_comm *comm, const struct dp_request *req);
    /* Block until a test may give another answer than it did after the last progress, or until
     * dp_now_ns() is until_ns; returning early is fine. */
    void (*sleep)(struct dp_comm *comm, int64_t until_ns);
    /* The caller will compute for a while: let a thread continue the transfers that need this rank,
     * if there are any. true: a thread works on them, and progress_stop is called before any other
     * call. Both may be NULL where transfers do not need the rank. */
    bool (*progress_start)(struct dp_comm *comm);
    void (*progress_stop)(struct dp_comm *comm);
    /* See dp_comm_begin, dp_comm_after. May be NULL. */
    int (*begin)(struct dp_comm *comm);
    int (*commit)(struct dp_comm *comm);
    int (*after)(struct dp_comm *comm, struct dp_device_stream *stream);
    int (*stream_wait)(struct dp_comm *comm, struct dp_request *req,
                       struct dp_device_stream *stream);
    /* See dp_comm_register. Both may be NULL. */
    int (*register_memory)(struct dp_comm *comm, void *ptr, size_t bytes);
    void (*unregister_memory)(struct dp_comm *comm, void *ptr);
    /* See dp_comm_busy. busy_until: the latest end that any rank has announced, by dp_now_ns. */
    int (*busy)(struct dp_comm *comm, int64_t ns);
    int64_t (*busy_until)(struct dp_comm *comm);
    /* Tell every rank; the first record wins. With the error DP_ETIMEDOUT, why->rank is the peer
     * that this rank waited for (-1: any): the transport follows the peers that are waited for from
     * rank to rank, and names the last one, which waits for none. */
    int (*abort)(struct dp_comm *comm, const struct dp_abort *why);
    /* true and *why if an abort happened. */
    bool (*aborted)(struct dp_comm *comm, struct dp_abort *why);
    /* What a wait in vain for this peer should say of the connection, empty if there is nothing to say.
     * May be NULL. */
    void (*describe)(struct dp_comm *comm, int peer, char *text, size_t room);
    /* See dp_comm_reset. */
    int (*reset)(struct dp_comm *comm);
    /* NULL where a death ends the group. */
    const struct dp_survival_ops *survival;
    void (*close)(struct dp_comm *comm);
    const struct dp_comm_loan_ops *loans; /* NULL: no memory is lent */
};

/* What a request begins with; the transport's own part follows. */
struct dp_request_head {
    struct dp_collective *collective; /* NULL: a message */
};

/* The part that every communicator begins with. One that was made out of another one (its world)
 * uses the operations of that one: they get the world, ranks of the world, and channels of the
 * world, which are those of all communicators of a family counted through. */
struct dp_comm {
    const struct dp_comm_ops *ops;
    int rank, size;
    struct dp_comm *world; /* itself, if it was opened */
    const int *ranks;      /* [size] of the world; NULL: the same */
    int first_channel;     /* of the world: that of channel 0 */
    uint64_t collectives;  /* started, for their tags */
    bool is_broken;      /* a collective of it failed in a group that survives: there are no more */
    int deaths_seen;     /* of the world, none of which concerns this one */
    bool is_revoked;     /* it has ended, and no other one has to: see dp_comm_revoke */
    struct dp_abort revocation; /* its rank of the world */
    int64_t deadline_ns; /* longest wait of any call; at creation DUALPIPE_COMM_TIMEOUT_MS, 60 s */
    int64_t spin_ns;     /* a wait tests this long before it sleeps; at creation about the cost of one
                          * wake-up, 0 where ranks share cores, or DUALPIPE_COMM_SPIN_US */
    size_t shared_bytes; /* messages from this length on are copied fastest from and into memory of
                          * dp_shared_alloc; 0: it makes no difference */

    struct dp_comm *next; /* of the family, from the world on */

    /* Of the world only. */
    int users;                /* communicators of the family that are open */
    int contexts;             /* the first one that is free here; the world's is 0 */
    struct dp_engine *engine; /* NULL before the first collective */
    const struct dp_comm_hooks *hooks; /* NULL: a death ends the group */
    struct dp_survival *survival;      /* theirs */
    bool progress_runs;       /* a thread works on the transfers, see progress_start */
    bool in_batch;            /* between begin and commit */
    bool has_said_end;        /* which rank has ended the group is logged once */
    unsigned quick_ends;      /* collectives that ended without a look at anything else */
    bool lends;               /* all ranks may lend each other memory; the same on all */
    unsigned in_place;        /* all-reduces that were carried out so; tests read it */
    int silent;               /* the rank that a wait was given up for last, +1; 0: none */
    int64_t wait_began_ns;    /* of the wait whose peer is handed to progress */
    _Atomic int waits;        /* threads that are in a wait: see wire_comm.c, leave_at_exit */
    int (*poll)(void *user);  /* see dp_comm_set_poll */
    void *poll_user;
    _Atomic uint64_t *doing; /* see dp_comm_note; where it is kept. NULL: nowhere */
    _Atomic uint64_t own_doing;
    int64_t tell_doing_ns; /* between processes, the least time between two messages about it */
};

/* Fill it; ranks_here: how many of the ranks run on this host. */
struct dp_comm_settings;
void dp_comm_init(struct dp_comm *comm, const struct dp_comm_ops *ops, int rank, int size,
                  int ranks_here, const struct dp_comm_settings *settings);

/* An error that a rank without files or memory meets, which is no fault of a peer. */
static inline bool dp_comm_is_own_fault(int error)
{
    return error == DP_EIO || error == DP_ENOMEM;
}

static inline bool dp_comm_has_lost(const struct dp_comm *world, int rank, bool or_left)
{
    return world->hooks && world->hooks->has_lost(world, rank, or_left);
}

static inline int dp_comm_world_rank(const struct dp_comm *comm, int rank)
{
    return comm->ranks ? comm->ranks[rank] : rank;
}

/* The caller works on the transfers again; the progress thread stops. */
static inline void dp_comm_progress_stop(struct dp_comm *comm)
{
    struct dp_comm *world = comm->world;

    if (!world->progress_runs)
        return;
    world->progress_runs = false;
    world->ops->progress_stop(world);
}

#endif
