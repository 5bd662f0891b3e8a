/* SPDX-License-Identifier: Apache-2.0
 *
 * watchdog.c - progress of connections that are not in use. NCCL calls a comm only while it has
 * work for it: a receiver that has all it waited for is not called, while the sender, whose queue
 * pair failed before the last acknowledgement, needs to hear that from it. So one thread for the
 * process polls every connection that has not been called, four times a second, and accepts peers that
 * connect again (verbs/acceptor.c); it ends with the last connection.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/acceptor.h"

#include <signal.h>
#include <string.h>

static const int64_t ROUND_NS = 250 * DP_NS_PER_MS;

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* after a comm's, which is only tried here */
static struct dpn_verbs *watched;
static bool is_running;

static void check(struct dpn_verbs *v)
{
    struct dpn_comm *comm = v->comm;

    if (pthread_mutex_trylock(&comm->lock))
        return; /* somebody is there */
    if (!v->error && dp_now_ns() - v->looked_ns >= ROUND_NS)
        dpn_verbs_look(v);
    pthread_mutex_unlock(&comm->lock);
}

/* The sender makes a lost wire for control messages again. A call whose label belongs to no receiver is
 * a mistake, or only a test whether this process is there (label 0): it is closed. */
static void pass_on(struct dp_wire *caller, uint64_t label)
{
    for (struct dpn_verbs *v = label ? watched : NULL; v && caller; v = v->next_watched)
        if (!v->is_sender && v->channel.label == label)
            caller = atomic_exchange(&v->channel.accepted, caller);
    dp_wire_close(caller);
}

static void accept_all(void)
{
    struct dp_wire *caller;
    uint64_t label;

    while (!dpn_acceptor_accept(&label, &caller))
        pass_on(caller, label);
}

/* false: there is nothing left to do. */
static bool check_all(void)
{
    pthread_mutex_lock(&lock);
    accept_all();
    for (struct dpn_verbs *v = watched; v; v = v->next_watched)
        check(v);
    is_running = watched;
    bool go_on = is_running;
    pthread_mutex_unlock(&lock);
    return go_on;
}

static void *run(void *none)
{
    const struct timespec round = {.tv_nsec = ROUND_NS};

    (void)none;
    do
        nanosleep(&round, NULL);
    while (check_all());
    return NULL;
}

/* The process' signals are for its own threads. */
static int start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_detach(thread);
    return error;
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
    for (struct dpn_verbs *v = watched; v; v = v->next_watched)
        v->is_watched = v->channel.has_acceptor = false;
    dpn_acceptors_forget();
    watched = NULL;
    is_running = false;
    after_fork();
}

static void add_handlers(void)
{
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
    int error = is_running ? 0 : start_thread();
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
