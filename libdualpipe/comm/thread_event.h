/* SPDX-License-Identifier: Apache-2.0
 *
 * thread_event.h - what a rank that is a thread sleeps on, and its mail: messages about the
 * survival of the group.
 */
#ifndef DP_COMM_THREAD_EVENT_H
#define DP_COMM_THREAD_EVENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct dp_mail {
    struct dp_mail *next;
    int from;
    size_t len;
    uint64_t bytes[];
};

/* A thread that changes something for the rank counts up. */
struct dp_thread_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_uint count;
    atomic_bool sleeping;
    struct dp_mail *mail, **mail_end; /* under the lock */
    atomic_bool has_mail;
    char padding[64];
};

/* In zeroed memory. monotonic: of conditions whose time is CLOCK_MONOTONIC. */
void dp_thread_event_init(struct dp_thread_event *event, const pthread_condattr_t *monotonic);
void dp_thread_event_fini(struct dp_thread_event *event);

/* Pairs with sleep: either the sleeper sees the new count, or the waker sees that it sleeps. */
static inline void dp_thread_event_wake(struct dp_thread_event *event)
{
    atomic_fetch_add(&event->count, 1);
    if (!atomic_load(&event->sleeping))
        return;
    pthread_mutex_lock(&event->lock);
    pthread_cond_signal(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

/* While the count is `seen`, until a time of CLOCK_MONOTONIC. */
void dp_thread_event_sleep(struct dp_thread_event *event, unsigned seen, int64_t until_ns);
struct timespec dp_thread_timespec(int64_t ns);

/* Puts a copy of the message there, and wakes the rank; without memory there is none. */
void dp_thread_event_post(struct dp_thread_event *event, int from, const void *message, size_t len);
/* All that there is, the oldest first; NULL: none. */
struct dp_mail *dp_thread_event_take(struct dp_thread_event *event);
void dp_mail_free(struct dp_mail *mail);

#endif
