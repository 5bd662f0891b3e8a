/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/busy.h"

#include <signal.h>
#include <time.h>

enum {
    ANNOUNCED_S = 10,
    RENEW_S = 2,
    WITHOUT_THREAD_S = 1800 /* no thread can be had: as long as a slow disk may take */
};

static void announce(struct busy *b, int s)
{
    dp_comm_busy(b->comm, s * INT64_C(1000000000));
}

static void *renew(void *arg)
{
    struct busy *b = arg;
    struct timespec until;

    pthread_mutex_lock(&b->lock);
    while (!b->is_over) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += RENEW_S;
        pthread_cond_timedwait(&b->over, &b->lock, &until);
        if (!b->is_over)
            announce(b, ANNOUNCED_S);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Signals of the process are handled by its own threads. */
static bool start_thread(struct busy *b)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = !pthread_create(&b->thread, NULL, renew, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void busy_begin(struct busy *b, struct dp_comm *comm)
{
    pthread_condattr_t monotonic;

    *b = (struct busy){.comm = comm};
    if (!comm)
        return;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->over, &monotonic);
    pthread_condattr_destroy(&monotonic);
    announce(b, ANNOUNCED_S);
    b->runs = start_thread(b);
    if (!b->runs)
        announce(b, WITHOUT_THREAD_S);
}

void busy_end(struct busy *b)
{
    if (!b->comm)
        return;
    pthread_mutex_lock(&b->lock);
    b->is_over = true;
    pthread_cond_signal(&b->over);
    pthread_mutex_unlock(&b->lock);
    if (b->runs)
        pthread_join(b->thread, NULL);
    announce(b, 0);
    pthread_cond_destroy(&b->over);
    pthread_mutex_destroy(&b->lock);
}
