/* SPDX-License-Identifier: Apache-2.0
 *
 * squares.h - sums of squares of gradients, where the gradients are. On a device they are queued,
 * for all slots, before the host waits for the end of a step; those of gradients that change later
 * are queued and waited for when they are wanted.
 */
#ifndef DP_TRAINER_SQUARES_H
#define DP_TRAINER_SQUARES_H

#include "trainer/place.h"

struct squares;

/* For lists of `most` parameters, of so many slots; p stays. */
int squares_new(struct place *p, int32_t most, int slots, struct squares **out);
void squares_free(struct squares *s); /* may be NULL */

/* On a device: queue those of the slot's gradients as they are at that point of the stream. */
int squares_queue(struct squares *s, int slot, const struct dp_parameter *list, int32_t count);
/* *out: [count] those that were queued, otherwise those of now; until the next call. Waits for
 * them. */
int squares_take(struct squares *s, int slot, const struct dp_parameter *list, int32_t count,
                 const double **out);

#endif
