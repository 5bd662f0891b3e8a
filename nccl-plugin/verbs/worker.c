/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/worker.h"

#include "base/clock.h"
#include "base/thread.h"

#include <stddef.h>
#include <time.h>

enum { WORKERS = 16 }; /* a network that is down lets each wait for a second */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended;
static struct dpn_job *waiting, **waiting_end = &waiting;
static int workers;

/* ---- the queue; all under the lock ----------------------------------------------------------- */

static void put(struct dpn_job *job)
{
    job->next = NULL;
    *waiting_end = job;
    waiting_end = &job->next;
}

/* Whether it was waiting. */
static bool take(struct dpn_job *job)
{
    struct dpn_job **at = &waiting;

    while (*at && *at != job)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = job->next;
    if (!*at)
        waiting_end = at;
    return true;
}

static void finish(struct dpn_job *job)
{
    atomic_store_explicit(&job->is_running, false, memory_order_release);
    pthread_cond_broadcast(&ended);
}

/* ---- threads: they end when nothing is left -------------------------------------------------- */

static void *work(void *none)
{
    (void)none;
    pthread_mutex_lock(&lock);
    while (waiting) {
        struct dpn_job *job = waiting;
        take(job);
        pthread_mutex_unlock(&lock);
        job->run(job);
        pthread_mutex_lock(&lock);
        finish(job);
    }
    workers--;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- forks: the threads and their jobs stay with the parent ---------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void init_condition(void)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ended, &attr);
    pthread_condattr_destroy(&attr);
}

static void after_fork_in_child(void)
{
    waiting = NULL;
    waiting_end = &waiting;
    workers = 0;
    init_condition();
    after_fork();
}

static void init(void)
{
    init_condition();
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* ---- what connections call ------------------------------------------------------------------- */

void dpn_jobs_handle_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, init);
}

void dpn_job_begin(struct dpn_job *job, void (*run)(struct dpn_job *job))
{
    dpn_jobs_handle_forks();
    job->run = run;
    atomic_store(&job->is_running, true);
    pthread_mutex_lock(&lock);
    put(job);
    workers += workers < WORKERS && !dp_thread_start("dp-verbs-setup", work, NULL, NULL);
    const bool has_worker = workers || !take(job);
    pthread_mutex_unlock(&lock);
    if (!has_worker) {
        run(job);
        atomic_store(&job->is_running, false);
    }
}

bool dpn_job_end(struct dpn_job *job, int64_t until_ns)
{
    const struct timespec until = {until_ns / DP_NS_PER_S, until_ns % DP_NS_PER_S};
    int error = 0;

    if (!dpn_job_is_running(job))
        return true;
    pthread_mutex_lock(&lock);
    if (take(job))
        finish(job);
    while (dpn_job_is_running(job) && !error)
        error = pthread_cond_timedwait(&ended, &lock, &until);
    const bool has_ended = !dpn_job_is_running(job);
    pthread_mutex_unlock(&lock);
    return has_ended;
}
