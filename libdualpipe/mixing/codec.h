/* SPDX-License-Identifier: Apache-2.0
 *
 * codec.h - how a block is sent with fewer bytes: what it differs from a reference by, rounded. The
 * reference then becomes what a receiver knows, so that what rounding left out is part of the next
 * difference (error feedback).
 *
 *      int8     | float32 scale of each 256 elements | int8 of each element |
 *               scale = largest magnitude / 127; an element is its int8 times the scale
 *      top-k    | uint32 number of each kept element | its value |
 *               those of the largest magnitudes, ascending; the others are 0
 *
 * A difference that is not finite stays one: int8 makes its 256 elements NaN, and top-k prefers it.
 *
 * Sources: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms
 * with compressed communication" (CHOCO-SGD), 2019; Dettmers, "8-bit approximations for parallelism in
 * deep learning", 2016, for a scale of each block.
 */
#ifndef DP_MIXING_CODEC_H
#define DP_MIXING_CODEC_H

#include <dualpipe/mixer.h>

enum { DP_CODEC_SCALED = 256 }; /* elements of a scale */

struct dp_codec {
    enum dp_mixer_compression kind;
    DLDataType type; /* float32 or float64 */
    size_t elements;
    size_t kept;     /* top-k */
    size_t bytes;    /* of a message */
    uint32_t *bins;  /* top-k: room for counts of magnitudes */
};

/* DP_ENOMEM. fraction: of elements that top-k keeps, at least one. */
int dp_codec_init(struct dp_codec *c, enum dp_mixer_compression kind, double fraction,
                  DLDataType type, size_t elements);
void dp_codec_fini(struct dp_codec *c);

/* message[bytes] of x - reference, which goes to where its receivers' copies go. */
void dp_codec_write(const struct dp_codec *c, const void *x, void *reference, void *message);
/* sum += what a message says. DP_EMISMATCH for one that was not written for such a block. */
int dp_codec_add(const struct dp_codec *c, const void *message, void *sum);

#endif
