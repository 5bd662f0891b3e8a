/* SPDX-License-Identifier: Apache-2.0
 *
 * compressed.h - a bucket's block on its way as compressed differences. For each round of the graph a
 * worker keeps
 *
 *      mine       what its neighbors of that round know of its values: the sum of all differences that
 *                 it sent in this round of all periods, as they were rounded
 *      theirs     what it knows of each of them
 *
 * What is to be added to the values is the sum of W_ij (theirs of j - mine), so that over all workers
 * nothing is added or taken away, however coarse the differences are: both sides have the same bits of
 * what is known of a worker, and of a pair one adds what the other subtracts.
 */
#ifndef DP_MIXING_COMPRESSED_H
#define DP_MIXING_COMPRESSED_H

#include "mixing/codec.h"
#include "mixing/neighbors.h"

struct dp_compressed_round {
    int32_t count; /* neighbors */
    char *mine;    /* [elements] */
    char **theirs; /* [count] of the same, in the order of dp_neighbors_from */
};

struct dp_compressed {
    struct dp_comm *comm;
    const struct dp_graph *graph;
    struct dp_codec codec;
    struct dp_compressed_round *rounds; /* [period] */
    char *memory, **blocks;             /* theirs */
    char *sent, *arrived;               /* [codec.bytes], [neighbors_max * codec.bytes] */
    struct dp_neighbor *from, *to;      /* [neighbors_max] of the round in flight */
    struct dp_request *requests;        /* [2 * neighbors_max] receives, then sends */
    int32_t from_count, to_count;
    int32_t begun, done;                /* requests: those that were begun, those that are over */
    int64_t round;
};

int dp_compressed_init(struct dp_compressed *x, struct dp_comm *comm, const struct dp_graph *graph,
                       DLDataType type, size_t elements);
void dp_compressed_fini(struct dp_compressed *x);
/* All workers know these values of all: values[elements], the same on all of them. */
void dp_compressed_begin(struct dp_compressed *x, const void *values);

/* Send what block[elements] differs by; it may change afterwards. */
int dp_compressed_start(struct dp_compressed *x, int64_t t, uint64_t tag, const void *block);
/* 0: all messages of what was started have come and gone; DP_EAGAIN, unless it waits. all: see
 * dp_neighbor_wait. */
int dp_compressed_arrive(struct dp_compressed *x, bool wait, const struct dp_comm *all);
/* After that, once: out[elements] is what is to be added. */
void dp_compressed_finish(struct dp_compressed *x, void *out);
/* Bytes that this worker sends in round t. */
size_t dp_compressed_bytes(const struct dp_compressed *x, int64_t t);

#endif
