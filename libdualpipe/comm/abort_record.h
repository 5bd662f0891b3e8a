/* SPDX-License-Identifier: Apache-2.0
 *
 * abort_record.h - why a group was aborted: the record that the first failure leaves, and the
 * search for the culprit of a wait that timed out.
 */
#ifndef DP_COMM_ABORT_RECORD_H
#define DP_COMM_ABORT_RECORD_H

#include <dualpipe/comm.h>
#include <stdatomic.h>

enum dp_abort_record_state { DP_ABORT_RECORD_EMPTY, DP_ABORT_RECORD_WRITTEN, DP_ABORT_RECORD_FULL };

/* Keeps the first record of several that threads put at once. Zeroed memory is an empty one. */
struct dp_abort_record {
    atomic_int state; /* enum dp_abort_record_state */
    struct dp_abort why;
};

/* true if it was the first. Either way there is a record when it returns. */
bool dp_abort_record_put(struct dp_abort_record *record, const struct dp_abort *why);
/* false if there is none (yet). why may be NULL. Every message asks. */
static inline bool dp_abort_record_get(struct dp_abort_record *record, struct dp_abort *why)
{
    if (atomic_load_explicit(&record->state, memory_order_acquire) != DP_ABORT_RECORD_FULL)
        return false;
    if (why)
        *why = record->why;
    return true;
}
/* Remove the record. No other thread may use it at that time. */
void dp_abort_record_clear(struct dp_abort_record *record);

/* How long the rank that decides waits for the word of one that seems to wait for none: longer than
 * a rank that waits keeps that to itself, by a margin for busy machines. */
enum { DP_ABORT_GRACE_MS = 250 };

/* Where the ranks that wait for each other end, from this one on: the rank that waits for none. -1:
 * none does, as they wait in a circle, or for any rank. */
int dp_abort_record_end(int rank, const atomic_int *waiting_for, int size);

/* Ranks wait in a circle, and one of them may have been stopped in its wait: the first from this one
 * on that does not answer counts as one that waits for none. If all answer the circle stays. */
void dp_abort_record_break(int rank, atomic_int *waiting_for, int size, const bool *answers);

/* A wait for why->rank timed out; -1: for any rank, which names none. waiting_for[size] is the peer
 * that each rank waits for (-1: none). Go from one to the next up to the rank that waits for none,
 * put its number into why->rank and the way there at the end of why->text. A circle, which is a
 * deadlock or a link that has lost a message, is said to be one, and why->rank is in it. */
void dp_abort_record_follow(struct dp_abort *why, const atomic_int *waiting_for, int size);

#endif
