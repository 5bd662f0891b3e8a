/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/abort_record.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

bool dp_abort_record_put(struct dp_abort_record *record, const struct dp_abort *why)
{
    int expected = DP_ABORT_RECORD_EMPTY;

    if (!atomic_compare_exchange_strong(&record->state, &expected, DP_ABORT_RECORD_WRITTEN)) {
        while (!dp_abort_record_get(record, NULL))
            sched_yield();
        return false;
    }
    record->why = *why;
    record->why.text[sizeof(record->why.text) - 1] = '\0';
    atomic_store_explicit(&record->state, DP_ABORT_RECORD_FULL, memory_order_release);
    return true;
}

void dp_abort_record_clear(struct dp_abort_record *record)
{
    atomic_store(&record->state, DP_ABORT_RECORD_EMPTY);
}

int dp_abort_record_end(int rank, const atomic_int *waiting_for, int size)
{
    for (int steps = 0; steps < size && rank >= 0; steps++) {
        const int next = atomic_load_explicit(&waiting_for[rank], memory_order_relaxed);
        if (next < 0)
            return rank;
        rank = next;
    }
    return -1;
}

void dp_abort_record_break(int rank, atomic_int *waiting_for, int size, const bool *answers)
{
    for (int steps = 0; steps < size && rank >= 0; steps++) {
        if (!answers[rank]) {
            atomic_store(&waiting_for[rank], -1);
            return;
        }
        rank = atomic_load(&waiting_for[rank]);
    }
}

static int next_of(const atomic_int *waiting_for, int rank)
{
    return atomic_load_explicit(&waiting_for[rank], memory_order_relaxed);
}

/* Of the circle that rank `in` is part of: `rank` if it is, too. */
static int rank_of_circle(int rank, int in, const atomic_int *waiting_for, int size)
{
    int at = in;

    for (int steps = 0; steps < size && at >= 0 && at != rank; steps++)
        at = next_of(waiting_for, at);
    return at == rank ? rank : in;
}

void dp_abort_record_follow(struct dp_abort *why, const atomic_int *waiting_for, int size)
{
    const size_t room = sizeof(why->text);
    int at = why->rank;

    for (int steps = 0; steps < size && at >= 0; steps++) {
        int next = next_of(waiting_for, at);
        if (next < 0) {
            why->rank = at;
            return;
        }
        size_t len = strlen(why->text);
        snprintf(why->text + len, room - len, ", which waits for rank %d", next);
        at = next;
    }
    if (at < 0)
        return;
    why->rank = rank_of_circle(why->rank, at, waiting_for, size);
    static const char circle[] = ", and so on in a circle";
    size_t len = strlen(why->text);
    if (len > room - sizeof(circle))
        len = room - sizeof(circle);
    memcpy(why->text + len, circle, sizeof(circle));
}
