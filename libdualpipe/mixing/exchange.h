/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.h - a bucket's block on its way to the others of a round, and theirs to here.
 *
 *      a pair      the two blocks are swapped
 *      a group     blocks are summed over the group
 *      links       blocks go along the links from this worker, and those that arrive are weighed and
 *                  added up
 *      compressed  differences go to the neighbors of the round (compressed.c); what came is what is to
 *                  be added
 *      stale       the same of blocks, unless one side is still in an exchange before (stale.c)
 *
 * Where workers may die (`survives`), a worker that has used what came knows that every other live one
 * of the round can use it, too: of a pair each has sent its block; a group, or along links all workers,
 * have said that they got everything. So an exchange that was cut off is completed by all, if any of
 * them has used it, or by none. With stale exchanges that holds for each two workers of a round by
 * themselves. A death among all workers ends every wait.
 *
 * An exchange owns two blocks: one that is being sent, or was, and one that holds what came. After each
 * swap they change roles, so that the update may read what came and write what goes next in one sweep.
 */
#ifndef DP_MIXING_EXCHANGE_H
#define DP_MIXING_EXCHANGE_H

#include "mixing/round.h"
#include <dlpack/dlpack.h>
#include <dualpipe/mixer.h>

/* ---- compressed ------------------------------------------------------------------------------ */

/* A bucket's block on its way as compressed differences. A block is sent as what it
 * differs from a reference by, rounded:
 *
 *      | float32 scale of each 256 elements | int8 of each element |
 *      scale = largest magnitude / 127; an element is its int8 times the scale
 *
 * The reference then becomes what a receiver knows, so that what rounding left out is part of the next
 * difference (error feedback). A difference that is not finite stays one: it makes its 256 elements NaN.
 * For each round of the graph a worker keeps
 *
 *      mine       what its neighbors of that round know of its values: the sum of all differences that
 *                 it sent in this round of all periods, as they were rounded
 *      theirs     what it knows of each of them
 *
 * What is to be added to the values is the sum of W_ij (theirs of j - mine), so that over all workers
 * nothing is added or taken away, however coarse the differences are: both sides have the same bits of
 * what is known of a worker, and of a pair one adds what the other subtracts.
 *
 * Sources: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms
 * with compressed communication" (CHOCO-SGD), 2019; Dettmers, "8-bit approximations for parallelism in
 * deep learning", 2016, for a scale of each block. */

enum { DP_CODEC_SCALED = 256 }; /* elements of a scale */

struct dp_codec {
    DLDataType type; /* float32 or float64 */
    size_t elements;
    size_t bytes; /* of a message */
};

struct dp_codec dp_codec_of(DLDataType type, size_t elements);
/* message[bytes] of x - reference, which goes to where its receivers' copies go. */
void dp_codec_write(const struct dp_codec *c, const void *x, void *reference, void *message);

struct dp_compressed_round {
    int32_t count; /* neighbors */
    char *mine;    /* [elements] */
    char **theirs; /* [count] of the same, in the order of dp_neighbors_from */
};

struct dp_compressed {
    const struct dp_graph *graph;
    struct dp_codec codec;
    struct dp_compressed_round *rounds; /* [period] */
    char *memory, **blocks;             /* theirs */
    char *sent;                         /* [codec.bytes] */
};

/* DP_ENOMEM. */
int dp_compressed_init(struct dp_compressed *x, const struct dp_graph *graph, int32_t worker,
                       DLDataType type, size_t elements);
void dp_compressed_fini(struct dp_compressed *x);
/* All workers know these values of all: values[elements], the same on all of them. */
void dp_compressed_begin(struct dp_compressed *x, const void *values);
/* What is sent in round t of block[elements]: codec.bytes, until the next one. */
const void *dp_compressed_write(struct dp_compressed *x, int64_t t, const void *block);
/* Once, of the messages of the round's neighbors, one behind the other: out[elements] is what is to be
 * added. */
void dp_compressed_finish(struct dp_compressed *x, int64_t t, const struct dp_neighbor *from,
                          const char *messages, void *out);

/* ---- stale ----------------------------------------------------------------------------------- */

/* A bucket's block on its way in a mixer that need not wait for neighbors that are late.
 *
 * In every round a worker tells each neighbor at once whether it takes part: its block says that it
 * does, a message without content that it does not. It does unless its last exchange is still under
 * way.
 * Two workers have exchanged their blocks in a round if both took part, and both know when each other's
 * message is there; so either both add W_ij times the difference of the two blocks or neither does,
 * and the mean of all workers stays. A block that comes from a neighbor in a round that this worker
 * leaves out is received and dropped.
 *
 *      worker 0        | round 0: block      | round 1: pass     | round 2: block
 *      worker 1                     | round 0: block  | round 1: block ...
 *                                     ^ here both have what round 0 exchanged; nothing in round 1
 *
 * Messages of a round must be there before the round that is `staleness` + 1 later is begun: no worker
 * is further ahead of a neighbor. The one that is behind all others has nothing to wait for.
 *
 * Where workers may die, an exchange is one of two workers each: what one of them has used the other one
 * completes, whatever becomes of its exchanges with others. So each remembers the rounds that it has
 * used for as long as a neighbor may still be in one of them. */

struct dp_stale_round {
    int64_t round;
    uint64_t tag;
    struct dp_neighbor *neighbors; /* [count] */
    struct dp_transfers messages;   /* [2 * count] receives, then sends */
    char *arrived;                 /* [count * bytes] */
    int32_t count;
};

struct dp_stale {
    struct dp_comm *comm;
    const struct dp_graph *graph;
    int32_t staleness;
    DLDataType type;
    size_t elements, bytes;
    struct dp_stale_round *rounds; /* [staleness + 1] round t is at t modulo that */
    struct dp_stale_round *current; /* that this worker took part in; NULL: none is under way */
    const char *block;              /* its block */
    int64_t *used;                  /* [dp_stale_history] round t that was used, at t modulo that */
    int64_t unused;                 /* the last one taken part in, -1: it was used */
    const struct dp_comm *all;
    int64_t passed, longest, in_a_row, sent_bytes;
};

/* A neighbor has sent something in its last `staleness` + 1 rounds at least, of which this worker is in
 * one once a period; and this worker is no further ahead than its own staleness from there. 0 without
 * staleness. */
static inline int64_t dp_stale_history(int32_t staleness, const struct dp_graph *graph)
{
    return staleness ? 2 * ((int64_t)staleness + 1) + graph->period : 0;
}

/* all: any death among these ends a wait; or NULL. */
int dp_stale_init(struct dp_stale *s, struct dp_comm *comm, const struct dp_comm *all,
                  const struct dp_graph *graph, int32_t staleness, DLDataType type,
                  size_t elements);
void dp_stale_fini(struct dp_stale *s);

/* Take part in round t with block[elements], which must stay until it is over. */
int dp_stale_start(struct dp_stale *s, int64_t t, uint64_t tag, const void *block);
/* Do not: one is under way. */
int dp_stale_pass(struct dp_stale *s, int64_t t, uint64_t tag);
/* 0: all messages of the one under way have come and gone; DP_EAGAIN, unless it waits. */
int dp_stale_arrive(struct dp_stale *s, bool wait);
/* After that: out[elements] is what is to be added, and none is under way. */
void dp_stale_finish(struct dp_stale *s, void *out);
/* It was added. */
void dp_stale_note_used(struct dp_stale *s);
/* After a death: out[elements] is what is to be added of the exchanges of round t with those of
 * users[workers], which have used theirs. Where t is not known any more out stays as it is. What is then
 * added does not count as used: others have not. */
int dp_stale_complete(struct dp_stale *s, int64_t t, const bool *users, void *out);
/* For all that neighbors send in rounds that were begun. */
int dp_stale_drain(struct dp_stale *s);

/* ---- exchange -------------------------------------------------------------------------------- */

/* What all exchanges of a mixer share. */
struct dp_exchange_group {
    struct dp_comm *comm;
    const struct dp_graph *graph;
    struct dp_comm **of_round; /* [period] where blocks are summed over groups; NULL: this worker's is
                                * none, or a pair. Rounds may share one */
    int32_t links_max;         /* most links to this worker in a round */
    enum dp_mixer_compression compression; /* of all exchanges that are begun after it is set */
    int32_t staleness;         /* above 0: likewise */
    bool survives;             /* comm is this group's own, and closed with it */
    const struct dp_comm *all; /* survives: of all workers, to hear of their deaths */
};
/* Collective. After an error the group must be ended, too. */
int dp_exchange_group_init(struct dp_exchange_group *g, struct dp_comm *comm,
                           const struct dp_graph *graph, bool survives);
/* What is in flight is dropped. */
void dp_exchange_group_fini(struct dp_exchange_group *g);

struct dp_exchange {
    const struct dp_exchange_group *shared;
    DLDataType type;
    size_t elements, bytes;
    char *block[2];     /* [bytes]; block[now] is written by the update and sent */
    int now;
    struct dp_neighbor *neighbors; /* room for those of a round */
    char *arrived;      /* what they send along links, or compressed, one behind the other */
    bool in_flight;
    bool must_confirm;  /* all must say that they got everything, which this worker has not yet */
    int64_t confirmed;  /* what they say so with */
    int32_t confirming; /* messages at the end of the list that do */
    int64_t round;      /* of what is in flight, or was last */
    bool includes_self; /* what came holds this worker's own share */
    struct dp_compressed *compressed; /* NULL: blocks are sent as they are */
    struct dp_stale *stale;           /* NULL: neighbors are waited for */
    int64_t sent_bytes;
    double mass, *arrived_mass; /* push-sum: this worker's weight, and those that came */
    double sent_mass;
    struct dp_transfers transfers;
};

/* blocks[2]: memory of `elements` of the type each, zeroed; it belongs to the caller. Where there is
 * one only, both are that. */
int dp_exchange_init(struct dp_exchange *x, const struct dp_exchange_group *shared, DLDataType type,
                     size_t elements, void *const *blocks);
void dp_exchange_fini(struct dp_exchange *x);

/* Send block[now] by round t. Not while one is in flight. */
int dp_exchange_start(struct dp_exchange *x, int64_t t, uint64_t tag);
/* Only with staleness, and while one is in flight: leave round t out, and say so. */
int dp_exchange_pass(struct dp_exchange *x, int64_t t, uint64_t tag);
/* For all messages of rounds that were begun; after a wait. */
int dp_exchange_drain(struct dp_exchange *x);
/* Until it is over. block[now] then holds what came, to be multiplied with a, and may be written. */
int dp_exchange_wait(struct dp_exchange *x);
/* The same if it is over; DP_EAGAIN otherwise. */
int dp_exchange_test(struct dp_exchange *x);
/* survives: after a death, end what is in flight as the wait does, though others have not confirmed.
 * users[workers]: those that have used the exchange; stale: what came from others is left out. */
int dp_exchange_complete(struct dp_exchange *x, const bool *users);
/* What came was mixed. */
void dp_exchange_note_used(struct dp_exchange *x);
/* As after the wait for round t, with these weights; block[now] is filled in by the caller. */
void dp_exchange_restore(struct dp_exchange *x, int64_t t, double mass, double sent_mass);

/* What came is a difference, to be added to a worker's own values. */
bool dp_exchange_adds(const struct dp_exchange *x);
/* Blocks of an exchange. */
int dp_exchange_blocks(const struct dp_exchange_group *g);

#endif
