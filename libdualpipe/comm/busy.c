/* SPDX-License-Identifier: Apache-2.0
 *
 * busy.c - a rank that is at work without calls of its comm, as on files: the others wait, as long as a
 * slow disk may take. What is announced to them is short, and a thread renews it.
 */
#include "base/thread.h"
#include "comm/internal.h"

#include <dualpipe/comm.h>

#include <stdlib.h>
#include <time.h>

enum {
    ANNOUNCED_S = 10,
    RENEW_S = 2,
    WITHOUT_THREAD_S = 1800 /* no thread can be had: as long as a slow disk may take */
};

struct dp_busy {
    struct dp_comm *comm;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool runs, is_over;
};

static void announce(struct dp_busy *b, int s)
{
    dp_comm_busy(b->comm, s * INT64_C(1000000000));
}

static void *renew(void *arg)
{
    struct dp_busy *b = arg;
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

struct dp_busy *dp_comm_busy_begin(struct dp_comm *comm)
{
    struct dp_busy *b = comm ? calloc(1, sizeof(*b)) : NULL;
    pthread_condattr_t monotonic;

    if (!b)
        return NULL;
    b->comm = comm;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->over, &monotonic);
    pthread_condattr_destroy(&monotonic);
    announce(b, ANNOUNCED_S);
    b->runs = !dp_thread_start("dp-busy", renew, b, &b->thread);
    if (!b->runs)
        announce(b, WITHOUT_THREAD_S);
    return b;
}

void dp_comm_busy_end(struct dp_busy *b)
{
    if (!b)
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
    free(b);
}
