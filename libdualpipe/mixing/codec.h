/* SPDX-License-Identifier: Apache-2.0
 *
 * codec.h - how a block is sent with fewer bytes: what it differs from a reference by, rounded. The
 * reference then becomes what a receiver knows, so that what rounding left out is part of the next
 * difference (error feedback).
 *
 *      | float32 scale of each 256 elements | int8 of each element |
 *      scale = largest magnitude / 127; an element is its int8 times the scale
 *
 * A difference that is not finite stays one: it makes its 256 elements NaN.
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
    DLDataType type; /* float32 or float64 */
    size_t elements;
    size_t bytes; /* of a message */
};

struct dp_codec dp_codec_of(DLDataType type, size_t elements);
/* message[bytes] of x - reference, which goes to where its receivers' copies go. */
void dp_codec_write(const struct dp_codec *c, const void *x, void *reference, void *message);
/* sum += what a message says. */
void dp_codec_add(const struct dp_codec *c, const void *message, void *sum);

#endif
