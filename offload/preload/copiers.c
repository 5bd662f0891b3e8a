/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: sched_getaffinity, pthread_setname_np */

#include "offload/preload/copiers.h"

#include "base/copy.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { THREADS_MAX = 16, DEFAULT_THREADS = 4 };
static const size_t piece_bytes = (size_t)256 << 10;

/* One copy at a time, whose caller holds `in_use`. Its pieces are taken by number. A thread joins
 * it under the lock while it is open, so it sees the copy; the caller closes it when no piece is
 * left, and waits for those that have joined, not for those that are still waking up. */
static pthread_mutex_t in_use = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begins = PTHREAD_COND_INITIALIZER, ends = PTHREAD_COND_INITIALIZER;
static unsigned long number; /* of the copy */
static bool is_open;
static int started, joined; /* threads that there are, and those at work on this copy */
static struct {
    char *to;
    const char *from;
    size_t bytes, whole;
} copy;
static atomic_size_t next_piece;

static void copy_pieces(void)
{
    for (;;) {
        const size_t at = piece_bytes * atomic_fetch_add(&next_piece, 1);
        if (at >= copy.bytes)
            return;
        const size_t left = copy.bytes - at;
        dp_copy_piece(copy.to + at, copy.from + at, left < piece_bytes ? left : piece_bytes,
                      copy.whole);
    }
}

static void *serve(void *unused)
{
    unsigned long done = 0;

    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!is_open || number == done)
            pthread_cond_wait(&begins, &lock);
        done = number;
        joined++;
        pthread_mutex_unlock(&lock);
        copy_pieces();
        pthread_mutex_lock(&lock);
        if (!--joined)
            pthread_cond_signal(&ends);
    }
    return NULL;
}

static int default_threads(void)
{
    cpu_set_t allowed;
    const int cpus = sched_getaffinity(0, sizeof(allowed), &allowed) ? 2 : CPU_COUNT(&allowed);

    return cpus < 2 ? 1 : cpus / 2 < DEFAULT_THREADS ? cpus / 2 : DEFAULT_THREADS;
}

/* Signals are for the program's own threads. */
static bool start_one(void)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool is_started = !pthread_create(&thread, NULL, serve, NULL);
    if (is_started) {
        pthread_setname_np(thread, "dualpipe-copy");
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

/* By the caller that holds in_use. */
static void start(int threads)
{
    static bool was_tried;

    if (was_tried)
        return;
    was_tried = true;
    if (!threads)
        threads = default_threads();
    while (started < threads - 1 && started < THREADS_MAX && start_one())
        started++;
}

static void copy_together(char *to, const char *from, size_t bytes, size_t whole)
{
    pthread_mutex_lock(&lock);
    copy.to = to;
    copy.from = from;
    copy.bytes = bytes;
    copy.whole = whole;
    atomic_store(&next_piece, 0);
    number++;
    is_open = true;
    pthread_cond_broadcast(&begins);
    pthread_mutex_unlock(&lock);
    copy_pieces();
    pthread_mutex_lock(&lock);
    is_open = false;
    while (joined)
        pthread_cond_wait(&ends, &lock);
    pthread_mutex_unlock(&lock);
}

void dpo_copiers_copy(int threads, void *to, const void *from, size_t bytes, size_t whole)
{
    if (threads == 1 || bytes <= piece_bytes || pthread_mutex_trylock(&in_use)) {
        dp_copy_piece(to, from, bytes, whole);
        return;
    }
    start(threads);
    copy_together(to, from, bytes, whole);
    pthread_mutex_unlock(&in_use);
}
