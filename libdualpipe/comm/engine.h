/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - carries out collectives. A collective is a list of steps, worked out one by one from
 * its parameters (algorithms.c, in_place.c); a step sends one message, receives one, and then
 * perhaps reduces.
 * The engine keeps a few steps in flight and finishes them in order:
 *
 *      receives posted  | 0 1 2 3 4 5 .   up to WINDOW ahead of the first unfinished step
 *      sends posted     | 0 1 2 3 . .     each once the steps that it depends on are finished
 *      finished         | 0 1 . .         sent, received, reduced
 *
 * Collectives of one communicator run one after the other in the order of their calls, so that the
 * messages of two never mix.
 *
 * Threads: like the communicator; the progress thread takes the rank's part while it runs.
 */
#ifndef DP_COMM_ENGINE_H
#define DP_COMM_ENGINE_H

#include "comm/internal.h"
#include <dualpipe/comm.h>

/* ---- sums (reduce.c) ------------------------------------------------------------------------- */

/* Of one type and one operation. `wide` is an array of the type that sums are kept in: float for
 * the 16-bit types, otherwise the type itself. Buffers do not overlap unless a comment says so. */
struct dp_reducer {
    size_t bytes, wide_bytes; /* of an element */
    void (*widen)(void *wide, const void *from, size_t count);
    /* wide = wide op from. */
    void (*add)(void *wide, const void *from, size_t count);
    /* out = a op b, all wide; out may be a or b. The order counts for NaNs and for -0 only. */
    void (*combine)(void *out, const void *a, const void *b, size_t count);
    void (*round)(void *out, const void *wide, size_t count);
};

/* NULL: there is none for this type. */
const struct dp_reducer *dp_reducer_find(DLDataType type, enum dp_reduction op);

/* ---- steps ----------------------------------------------------------------------------------- */

enum { DP_STEP_WINDOW = 4, DP_SEGMENT_BYTES = 128 << 10 };

/* What a step does with what it has received. */
enum dp_step_action {
    DP_STEP_NOTHING,
    DP_STEP_COMBINE,   /* dst = a op b, all wide */
    DP_STEP_ACCUMULATE /* acc (wide) = acc op a, or only a if it is the first; after the last one
                        * dst = acc op b, rounded */
};

/* send_to and receive_from are ranks of the communicator; -1: the step has no such part. */
struct dp_step {
    int send_to, receive_from;
    const void *send;
    void *receive;
    size_t send_len, receive_len;
    int after; /* how many steps must be finished before the send may start */
    enum dp_step_action action;
    bool first, last;
    void *dst, *acc;
    const void *a, *b;
    size_t count; /* elements of the action */
};

/* What is asked for; everything that an algorithm may look at. */
struct dp_collective_args {
    struct dp_comm *comm;
    int rank, size;
    const char *in;
    char *out;
    size_t count;          /* elements, or bytes where there is no reducer */
    const size_t *offsets; /* [size + 1] of an all-gather with unequal parts, or NULL */
    int root;              /* of a broadcast */
    const struct dp_reducer *reducer;
    enum dp_sum_phases phases; /* of a sum, of which one half or the other may be left out */
    size_t segment;            /* elements that a step of a sum moves at most */
    char *scratch; /* scratch_bytes of the algorithm */
    char *staging; /* staging_bytes of it, of dp_shared_alloc; NULL: there is none */
};

struct dp_algorithm {
    const char *name;
    uint8_t kind; /* in the tags of its messages */
    int (*steps)(const struct dp_collective_args *args);
    size_t (*scratch_bytes)(const struct dp_collective_args *args); /* NULL: none */
    /* Memory that peers can map; NULL or 0: none. It does without where the system has none. */
    size_t (*staging_bytes)(const struct dp_collective_args *args);
    /* Before the first step; NULL: nothing to do. */
    void (*begin)(const struct dp_collective_args *args);
    void (*step)(const struct dp_collective_args *args, int index, struct dp_step *out);
    /* What the rank itself does in a step, after its messages, a part of it in each call.
     * DP_EAGAIN: it is to be called again. May be NULL. */
    int (*work)(const struct dp_collective_args *args, int index);
    /* After the last step; NULL: nothing to do. */
    void (*end)(const struct dp_collective_args *args);
    /* Instead of end: what to go on with. The scratch memory is that of the first one. May be NULL.
     */
    const struct dp_algorithm *(*next)(const struct dp_collective_args *args);
    /* It ends in the middle; NULL: nothing to do. */
    void (*drop)(const struct dp_collective_args *args);
};

/* ---- algorithms (algorithms.c, in_place.c) --------------------------------------------------- */

/* What suits these arguments; size is at least 2. */
const struct dp_algorithm *dp_choose_allreduce(const struct dp_collective_args *args);
const struct dp_algorithm *dp_choose_allgather(const struct dp_collective_args *args);
const struct dp_algorithm *dp_choose_broadcast(const struct dp_collective_args *args);
/* In place, by phases: in pairs among 2^k ranks, otherwise as a reduce-scatter and an all-gather. */
const struct dp_algorithm *dp_choose_sum(const struct dp_collective_args *args);
/* Whether an all-reduce adds in the same order. */
bool dp_sum_is_allreduce(const struct dp_collective_args *args);
/* Part `index` of what this rank has the sum of after the first phase; false: there is none. */
bool dp_sum_part(const struct dp_collective_args *args, int index, size_t *first, size_t *count);
/* in_place.c. Whether the ranks should ask each other: the same on all of them. */
bool dp_in_place_is_worth(const struct dp_collective_args *args);
extern const struct dp_algorithm dp_in_place_allreduce;

/* Where block `index` of count elements begins; the first ones are longer by one. */
static inline size_t dp_block_at(size_t count, int size, int index)
{
    const size_t each = count / (size_t)size, longer = count % (size_t)size, i = (size_t)index;

    return each * i + (i < longer ? i : longer);
}

/* ---- the engine ------------------------------------------------------------------------------ */

struct dp_engine;

/* DP_ENOMEM. */
int dp_engine_new(struct dp_comm *world, struct dp_engine **out);
/* After the transport has dropped all requests. engine may be NULL. */
void dp_engine_free(struct dp_engine *engine);

/* Start, or queue behind the collectives of comm that are not done yet. req is done when it is.
 * DP_ENOMEM. */
int dp_engine_start(struct dp_engine *engine, struct dp_comm *comm,
                    const struct dp_algorithm *algorithm, const struct dp_collective_args *args,
                    struct dp_request *req);

/* The communicator of a collective that was started; NULL once it was given back. */
struct dp_comm *dp_engine_comm(const struct dp_request *req);
/* Go on with what the transport has moved. */
void dp_engine_progress(struct dp_engine *engine);
/* Whether progress would do something at once. */
bool dp_engine_ready(const struct dp_engine *engine);
bool dp_engine_busy(const struct dp_engine *engine);
/* 0, DP_EAGAIN, or the error; the collective is given back unless DP_EAGAIN, and the request keeps
 * the answer. */
int dp_engine_test(struct dp_engine *engine, struct dp_request *req);
/* The transfer that the collective waits for, and from or to which rank of the world; NULL: none.
 */
const struct dp_request *dp_engine_waits_for(const struct dp_engine *engine,
                                             const struct dp_request *req, int *world_peer);
/* Give up: the collective of this request has the error from now on, its transfers are cancelled,
 * and its communicator has no more collectives. For groups that survive. */
void dp_engine_cancel(struct dp_engine *engine, const struct dp_request *req, int error);
/* Every request of the transport is gone: so are these (of comm only, unless NULL). */
void dp_engine_drop(struct dp_engine *engine, const struct dp_comm *comm, int error);

#endif
