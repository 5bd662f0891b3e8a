/* SPDX-License-Identifier: Apache-2.0
 *
 * watchdog.c - progress of connections that are not in use. NCCL calls a connection only while it
 * has work for it: a receiver whose receives are all done is not called, although the sender, whose
 * queue pair failed before the last acknowledgement, needs its report. So one thread of the process
 * polls every connection that has not been polled, four times a second, and accepts peers that
 * connect again (verbs/acceptor.c). It ends with the last connection.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/acceptor.h"

#include <string.h>

static const int64_t ROUND_NS = 250 * DP_NS_PER_MS;
/* While a queue pair is connected or destroyed, which goes step by step. */
static const int64_t SOON_NS = 5 * DP_NS_PER_MS;

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* taken after a connection's lock, which is only tried here */
static struct dpn_verbs *watched;
static bool is_running;

/* Returns after how long it is to be looked at again. */
static int64_t check(struct dpn_verbs *v)
{
    struct dpn_comm *comm = v->comm;

    if (pthread_mutex_trylock(&comm->lock))
        return ROUND_NS; /* another thread makes progress */
    if (v->error)
        dpn_verbs_has_ended(v);
    else if (dp_now_ns() - v->polled_ns >= (dpn_qps_are_changing(v) ? SOON_NS : ROUND_NS))
        dpn_verbs_progress_all(v);
    const int64_t next_ns = dpn_qps_are_changing(v) ? SOON_NS : ROUND_NS;
    pthread_mutex_unlock(&comm->lock);
    return next_ns;
}

/* A sender connects again after it has lost the wire for control messages. A connection whose label
 * belongs to no receiver is a mistake, or only tests whether this process is alive (label 0): it is
 * closed. */
static void hand_over(struct dp_wire *wire, uint64_t label)
{
    for (struct dpn_verbs *v = label ? watched : NULL; v && wire; v = v->next_watched)
        if (!v->queues.is_sender && v->control.channel.label == label)
            wire = atomic_exchange(&v->control.channel.accepted, wire);
    dp_wire_close(wire);
}

static void accept_all(void)
{
    struct dp_wire *wire;
    uint64_t label;

    while (!dpn_acceptor_accept(&label, &wire))
        hand_over(wire, label);
}

/* Returns how long to sleep; 0: no connection is left. */
static int64_t check_all(void)
{
    int64_t sleep_ns = ROUND_NS;

    pthread_mutex_lock(&lock);
    accept_all();
    for (struct dpn_verbs *v = watched; v; v = v->next_watched) {
        const int64_t next_ns = check(v);
        sleep_ns = next_ns < sleep_ns ? next_ns : sleep_ns;
    }
    is_running = watched;
    if (!is_running)
        sleep_ns = 0;
    pthread_mutex_unlock(&lock);
    return sleep_ns;
}

static void *run(void *none)
{
    (void)none;
    for (int64_t sleep_ns = ROUND_NS; sleep_ns; sleep_ns = check_all())
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
    return NULL;
}

/* ---- forks: the thread, what it watched and the acceptors stay with the parent --------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    dpn_acceptors_lock();
}

static void after_fork(void)
{
    dpn_acceptors_unlock();
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    dpn_acceptors_forget();
    watched = NULL;
    is_running = false;
    after_fork();
}

/* Connections that fail in the thread begin jobs under the lock, so a fork takes theirs after it. */
static void add_handlers(void)
{
    dpn_jobs_handle_forks();
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void dpn_watchdog_handle_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, add_handlers);
}

/* ---- what connections call ------------------------------------------------------------------- */

void dpn_watchdog_add(struct dpn_verbs *v)
{
    dpn_watchdog_handle_forks();
    pthread_mutex_lock(&lock);
    v->next_watched = watched;
    v->is_watched = true;
    watched = v;
    int error = is_running ? 0 : dp_thread_start("dp-watchdog", run, NULL, NULL);
    is_running = !error;
    pthread_mutex_unlock(&lock);
    if (error)
        dp_log(DP_LOG_WARN, "no thread for connections that are not in use: %s", strerror(error));
}

void dpn_watchdog_remove(struct dpn_verbs *v)
{
    pthread_mutex_lock(&lock);
    for (struct dpn_verbs **at = &watched; v->is_watched && *at; at = &(*at)->next_watched)
        if (*at == v) {
            *at = v->next_watched;
            break;
        }
    v->is_watched = false;
    pthread_mutex_unlock(&lock);
}
