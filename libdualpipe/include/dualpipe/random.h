/* SPDX-License-Identifier: Apache-2.0
 *
 * random.h - random numbers that depend on what they are for, not on when or where they are drawn.
 *
 * A counter-based generator (Philox4x32-10): number i of a key is a pure function of key and i. A
 * stage that draws its dropout masks from the key of (seed, step, layer, micro-batch) gets the same
 * masks under every schedule, on every number of ranks, and again when it recomputes.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 */
#ifndef DUALPIPE_RANDOM_H
#define DUALPIPE_RANDOM_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Key: 64 bits of Philox key and 64 bits of the counter's upper half. */
struct dp_random_key {
    uint64_t key, stream;
};

/* The key of a place in a training run. For one seed, distinct (step, where, mb) give distinct keys,
 * over their whole range; where is a stage or a layer. Any thread. */
DP_PUBLIC struct dp_random_key dp_random_key(uint64_t seed, uint64_t step, uint32_t where,
                                             uint32_t mb);

/* Four 32-bit numbers: block `i` of the key. Any thread. */
DP_PUBLIC void dp_random_block(struct dp_random_key key, uint64_t i, uint32_t out[4]);

/* out[n]: uniform in [0, 1), 24 bits each, numbers first .. first + n - 1 of the key. */
DP_PUBLIC void dp_random_uniform(struct dp_random_key key, uint64_t first, float *out, size_t n);

/* out[n]: standard normal (Box-Muller), numbers first .. first + n - 1 of the key. */
DP_PUBLIC void dp_random_normal(struct dp_random_key key, uint64_t first, float *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
