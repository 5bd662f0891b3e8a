/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/blame.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { EMPTY, BEING_WRITTEN, FULL };

bool dp_blame_put(struct dp_blame *blame, const struct dp_abort *why)
{
    int expected = EMPTY;

    if (!atomic_compare_exchange_strong(&blame->state, &expected, BEING_WRITTEN)) {
        while (!dp_blame_get(blame, NULL))
            sched_yield();
        return false;
    }
    blame->why = *why;
    blame->why.text[sizeof(blame->why.text) - 1] = '\0';
    atomic_store_explicit(&blame->state, FULL, memory_order_release);
    return true;
}

bool dp_blame_get(struct dp_blame *blame, struct dp_abort *why)
{
    if (atomic_load_explicit(&blame->state, memory_order_acquire) != FULL)
        return false;
    if (why)
        *why = blame->why;
    return true;
}

void dp_blame_clear(struct dp_blame *blame)
{
    atomic_store(&blame->state, EMPTY);
}

void dp_blame_follow(struct dp_abort *why, const atomic_int *waiting_for, int size)
{
    const size_t room = sizeof(why->text);
    int at = why->rank;

    for (int steps = 0; steps < size; steps++) {
        int next = atomic_load_explicit(&waiting_for[at], memory_order_relaxed);
        if (next < 0) {
            why->rank = at;
            return;
        }
        size_t len = strlen(why->text);
        snprintf(why->text + len, room - len, ", which waits for rank %d", next);
        at = next;
    }
    static const char circle[] = ", and so on in a circle";
    size_t len = strlen(why->text);
    if (len > room - sizeof(circle))
        len = room - sizeof(circle);
    memcpy(why->text + len, circle, sizeof(circle));
}
