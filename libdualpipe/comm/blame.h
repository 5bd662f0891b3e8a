/* SPDX-License-Identifier: Apache-2.0
 *
 * blame.h - why a group was aborted: the record that the first failure leaves, and who is to blame
 * when a wait has been in vain.
 */
#ifndef DP_COMM_BLAME_H
#define DP_COMM_BLAME_H

#include <dualpipe/comm.h>
#include <stdatomic.h>

/* Keeps the first record of several that threads put at once. Zeroed memory is an empty one. */
struct dp_blame {
    atomic_int state;
    struct dp_abort why;
};

/* true if it was the first. Either way there is a record when it returns. */
bool dp_blame_put(struct dp_blame *blame, const struct dp_abort *why);
/* false if there is none (yet). why may be NULL. */
bool dp_blame_get(struct dp_blame *blame, struct dp_abort *why);
/* Forget it; while nobody else uses it. */
void dp_blame_clear(struct dp_blame *blame);

/* why->rank was waited for in vain. waiting_for[size] says whom each rank waits for (-1: nobody).
 * Go from one to the next up to the rank that waits for nobody, put its number into why->rank and
 * the way there at the end of why->text. A circle, which is a deadlock, leaves why->rank as it was
 * and says so. */
void dp_blame_follow(struct dp_abort *why, const atomic_int *waiting_for, int size);

#endif
