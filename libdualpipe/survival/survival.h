/* SPDX-License-Identifier: Apache-2.0
 *
 * survival.h - what a rank of a surviving group (dp_comm_survive) knows: which ranks are dead, and
 * what the live ones have agreed on (survival.c); how ranks that are processes watch and tell each
 * other (watch.c); and the functions of the group (survivors.c). Communicators know nothing of it but
 * dp_comm_hooks.
 *
 * Deaths. `dead` only grows. A rank enters it when the transport loses it, when an agreement waits
 * for it in vain, when it leaves in order, or by the message of a live rank; every growth is told
 * to the neighbours, which tell theirs. What a dead rank sends is ignored from then on, and its
 * requests have failed. A rank that finds itself in the `dead` of another one, because it was
 * stopped for too long, is excluded: its own communicator ends.
 *
 * Agreement, number k of a communicator. The live rank with the lowest number coordinates:
 *
 *      coordinator                         member
 *      QUERY k, dead                 ->    merges dead; answers once its program has called, too
 *                                    <-    ANSWER k, dead, or DECISION k if it knows that already
 *      all live members have answered:
 *      DECISION k, dead              ->    keeps it, and answers later queries about k with it
 *
 * If the coordinator dies, the next live rank takes over and asks anew; members ask it, too, as it
 * may have the decision already. Why all survivors get the same: a coordinator c' that follows c
 * asks all ranks that it does not take for dead, and each merges c'.dead, which has c, before it
 * answers. From then on it ignores c. So either one of them had c's decision by then, and c' passes
 * on that one; or none of them ever gets it, and c' decides for all. A rank that has only c's
 * decision is dead for all the others, and excluded when it hears of it. This is the
 * early-returning agreement of MPI's ULFM (Herault et al., SC 2015) with one level instead of a
 * tree.
 *
 * Answers carry flags, of which the decision has the bitwise and: MPIX_Comm_agree.
 *
 * A live rank has taken part in agreement k + 1 only after it knew decision k, and k + 1 ends only
 * after all have taken part. So two decisions of a communicator are kept.
 *
 * Revocation of a communicator. The rank that revokes it tells all neighbors, and each rank passes on
 * once what is new to it, also of communicators that it is not in. Ranks that have heard of it end
 * their part. All communicators of one split have the same context: the rank that has revoked one
 * of them says which. What is known stays, as a communicator may be revoked before this rank has
 * made it.
 *
 * A sign of life. A rank that another one has waited for in vain is asked for it: it gives it from
 * whatever call it is in, or by its progress thread, also while it waits for a third one. A process that
 * is stopped does not.
 *
 * What a rank does (dp_comm_note) it tells its neighbours now and then, numbered. They spread the last
 * of it when it dies; answers and decisions come after all that their sender knows of the dead, so
 * that an agreement's members know the same.
 *
 * Threads: those of the communicator.
 */
#ifndef DP_SURVIVAL_SURVIVAL_H
#define DP_SURVIVAL_SURVIVAL_H

#include "comm/comm_ops.h"
#include <dualpipe/survival.h>

enum dp_death { DP_DEATH_NONE, DP_DEATH_ENDED, DP_DEATH_LEFT, DP_DEATH_SILENT, DP_DEATH_REPORTED };

enum dp_survival_kind {
    DP_SURVIVAL_DEATHS = 1,
    DP_SURVIVAL_QUERY,
    DP_SURVIVAL_ANSWER,
    DP_SURVIVAL_DECISION,
    DP_SURVIVAL_ABORT,
    DP_SURVIVAL_BUSY,
    DP_SURVIVAL_REVOKE,
    DP_SURVIVAL_PING, /* say anything */
    DP_SURVIVAL_DOING
};

struct dp_survival_message {
    uint32_t kind;
    uint32_t context, number; /* of the communicator, of its agreement. BUSY, DOING: the rank that is
                               * or does, and the number of what it has announced */
    uint32_t contexts; /* ANSWER: the sender's first free one. DECISION: that of all. BUSY: ms */
    uint64_t doing;    /* DOING; ANSWER, DECISION: flags */
    uint64_t dead[]; /* a bit for each rank of the world; then, of these, those that have left */
};

/* REVOKE: a communicator was revoked. ABORT: a member has called dp_comm_abort, and the whole group
 * ends. Ranks are those of the world. */
struct dp_survival_ending {
    uint32_t kind;
    uint32_t context; /* REVOKE */
    int32_t by;       /* a member of it */
    struct dp_abort why;
};

/* One that this rank knows of. */
struct dp_revocation {
    struct dp_revocation *next;
    struct dp_survival_ending message;
};

/* The agreements of one communicator of this rank. */
struct dp_agreement {
    struct dp_agreement *next;
    uint32_t context, number, decided; /* the last one begun, the last one known */
    int coordinator;                   /* of the world; the own rank: it has asked */
    int64_t since_ns;                  /* of waiting for this coordinator, or for answers */
    uint64_t *answered;
    uint32_t contexts; /* the highest of the answers */
    uint64_t own_flags, flags; /* those of this rank, the and of all answers */
    uint32_t decisions_contexts[2];
    uint64_t decisions_flags[2];
    uint64_t *decisions[2]; /* the dead of decision k at k % 2 */
};

/* How a rank tells and watches others: by wires between processes, by mail between threads. */
struct dp_survival_news {
    /* In order to one peer, dropped if it is dead. The message is copied. */
    void (*tell)(struct dp_survival *s, int peer, const void *message, size_t len);
    /* Tell all neighbors, so that all live ranks hear of it if each passes it on. */
    void (*tell_neighbors)(struct dp_survival *s, const void *message, size_t len);
    /* Hear of the end of this peer, too. */
    void (*watch)(struct dp_survival *s, int peer);
    /* Wait a little until what was told is on its way: the caller will not call for long. */
    void (*flush)(struct dp_survival *s);
};

struct dp_watch_wire; /* a wire and the messages on their way */

struct dp_survival {
    struct dp_comm *world;
    const struct dp_survival_ops *ops; /* the transport's */
    const struct dp_survival_news *news;
    struct dp_comm_hooks hooks;
    struct dp_watch {
        struct dp_peers *peers; /* NULL: ranks are threads */
        struct dp_watch_wire *wires;
        int64_t timeout_ns; /* of a host that does not acknowledge */
        unsigned ends_seen; /* of the rendezvous */
        int deaths_seen;    /* when neighbors were last chosen */
    } watch;
    int words, dead_count;
    size_t message_bytes, room; /* of all but ABORT and REVOKE, of all */
    uint64_t *dead, *left; /* left: of the dead, those that said so before */
    struct dp_survival_rank {
        enum dp_death death;
        uint32_t announced; /* the last BUSY */
        struct dp_survival_query {
            bool is_open; /* not answered yet */
            uint32_t context, number;
        } query;
        struct dp_survival_note {
            uint64_t doing;
            uint32_t number; /* 0: nothing is known */
        } note;              /* the last DOING */
    } * ranks;               /* [size] */
    int asked; /* for a sign of life, which has not come; -1: none */
    struct dp_agreement *agreements;
    struct dp_revocation *revocations;
    int excluded_by; /* -1: not excluded */
    struct dp_abort end; /* why this rank itself cannot go on; error 0: it can */
    struct dp_survival_message *out;
};

/* Without those of processes. */
extern const struct dp_comm_hooks dp_survival_hooks;

int dp_survival_new(struct dp_comm *world, struct dp_survival **out);
void dp_survival_free(struct dp_survival *s); /* may be NULL */

static inline bool dp_survival_has(const uint64_t *set, int rank)
{
    return set[rank / 64] >> rank % 64 & 1;
}
/* A message of this peer has come. */
void dp_survival_handle(struct dp_comm *world, int from, const void *message, size_t len);
/* The peer's process has ended (it is buried), or it has left. */
void dp_survival_lose(struct dp_survival *s, int rank, enum dp_death why);
/* Tell a peer what this rank does. */
void dp_survival_tell_own_note(struct dp_survival *s, int peer);
/* This rank has no files or no memory for its part in the group: its communicator ends, and the others
 * see that as its end. */
void dp_survival_end(struct dp_comm *world, int error, const char *text);

/* This rank has waited for the other one in vain: it is dead for all from now on. */
void dp_survival_declare(struct dp_survival *s, int rank);
/* Ask the rank for a sign of life; whether it still owes one. Not where it is dead. */
void dp_survival_ask(struct dp_survival *s, int rank);
bool dp_survival_is_owed(const struct dp_survival *s, int rank);
/* This rank revokes comm. DP_ENOMEM. */
int dp_survival_revoke(struct dp_survival *s, struct dp_comm *comm, const struct dp_abort *why);
/* Begin the next agreement of comm. DP_ENOMEM. */
int dp_agreement_begin(struct dp_survival *s, struct dp_comm *comm, uint64_t flags,
                       struct dp_agreement **out);
/* Go on with what has come until now_ns. 0: decided. DP_EAGAIN: it waits, *waits_until_ns at most.
 * A rank that another one waits for longer than wait_ns is declared dead. */
int dp_agreement_step(struct dp_survival *s, struct dp_comm *comm, struct dp_agreement *a,
                      int64_t now_ns, int64_t wait_ns, int64_t *waits_until_ns);
/* What was decided last: the dead of the world, the first context that is free on all, and flags. */
const uint64_t *dp_agreement_result(const struct dp_agreement *a, int *contexts, uint64_t *flags);

/* ---- watch ----------------------------------------------------------------------------------- */

/* How the processes of a group watch each other: a wire to the two
 * live ranks that follow, in a ring of all ranks, and one to each other rank that this one waits
 * for. The end of a wire is the end of the peer, and is found by both sides:
 *
 *      ... 3 -> 4 -> 5 -> 0 -> 1 ...       and two further:  3 ---> 5, 4 ---> 0, 5 ---> 1
 *
 * If a rank dies, each one before it connects to the next live one, so that the ring closes by
 * itself, however many die at once. What a rank learns it tells over all its wires.
 *
 * The wires are of the kind that messages take, TCP with keep-alives between hosts: no thread has
 * to send anything for a rank that computes. They are read when a rank calls.
 *
 * Threads: those of the communicator. */

/* Connect to the neighbors, and again after a death. Until it has begun nothing is sent. */
void dp_watch_begin(struct dp_survival *s);
/* Between processes: the news, and the hooks. */
void dp_watch_use(struct dp_survival *s, struct dp_peers *peers);

/* ---- survivors ------------------------------------------------------------------------------- */

/* What a rank of a group that survives did last (dp_comm_note); 0: not known. Of a rank that died all
 * that live know the same once they have agreed that it did (dp_comm_agree_alive, dp_comm_shrink); of
 * one that lives this rank knows what it was told. */
uint64_t dp_comm_last_note(const struct dp_comm *comm, int rank);

#endif
