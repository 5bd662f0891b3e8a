/* SPDX-License-Identifier: Apache-2.0
 *
 * compressed.h - a bucket's block on its way as compressed differences. A block is sent as what it
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
 * deep learning", 2016, for a scale of each block.
 */
#ifndef DP_MIXING_COMPRESSED_H
#define DP_MIXING_COMPRESSED_H

#include "mixing/round.h"

enum { DP_CODEC_SCALED = 256 }; /* elements of a scale */

struct dp_codec {
    DLDataType type; /* float32 or float64 */
    size_t elements;
    size_t bytes; /* of a message */
};

struct dp_codec dp_codec_of(DLDataType type, size_t elements);
/* message[bytes] of x - reference, which goes to where its receivers' copies go. */
void dp_codec_write(const struct dp_codec *c, const void *x, void *reference, void *message);
/* sum += what a message says. */
void dp_codec_add(const struct dp_codec *c, const void *message, void *sum);

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

#endif
