/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_keeper.c - who looks after connections that nobody uses. NCCL calls a comm only while it has
 * work for it: a receiver that has all it waited for is not called, while the sender, whose lane failed
 * before the last acknowledgement, needs to hear that from it. So one thread for the process looks
 * at every connection that has been left alone, four times a second, and lets in who comes back
 * (verbs_door.c); it ends with the last of them.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_door.h"

#include <signal.h>
#include <string.h>

static const int64_t ROUND_NS = 250 * DP_NS_PER_MS;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* after a comm's, which is only tried here */
static struct dpn_verbs *kept;
static bool is_running;

static void look_after(struct dpn_verbs *v)
{
    struct dpn_comm *comm = v->comm;

    if (pthread_mutex_trylock(&comm->lock))
        return; /* somebody is there */
    if (!v->error && dp_now_ns() - v->looked_ns >= ROUND_NS)
        dpn_verbs_look(v);
    pthread_mutex_unlock(&comm->lock);
}

/* A wire for words that was lost is made again by the sender; whoever has no receiver here is wrong, or
 * only asks whether we are there (label 0). */
static void let_in(struct dp_wire *caller, uint64_t label)
{
    for (struct dpn_verbs *v = label ? kept : NULL; v && caller; v = v->next_kept)
        if (!v->is_sender && v->words.label == label)
            caller = atomic_exchange(&v->words.caller, caller);
    dp_wire_close(caller);
}

static void answer_door(void)
{
    struct dp_wire *caller;
    uint64_t label;

    while (!dpn_door_admit(&label, &caller))
        let_in(caller, label);
}

/* false: there is nothing left to do. */
static bool make_round(void)
{
    pthread_mutex_lock(&lock);
    answer_door();
    for (struct dpn_verbs *v = kept; v; v = v->next_kept)
        look_after(v);
    is_running = kept;
    bool go_on = is_running;
    pthread_mutex_unlock(&lock);
    return go_on;
}

static void *keep(void *none)
{
    const struct timespec round = {.tv_nsec = ROUND_NS};

    (void)none;
    do
        nanosleep(&round, NULL);
    while (make_round());
    return NULL;
}

/* The process' signals are for its own threads. */
static int start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, keep, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_detach(thread);
    return error;
}

/* ---- forks: the thread, what it kept and the doors stay with the parent ----------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    dpn_doors_lock();
}

static void after_fork(void)
{
    dpn_doors_unlock();
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    for (struct dpn_verbs *v = kept; v; v = v->next_kept)
        v->is_kept = v->words.has_door = false;
    dpn_doors_forget();
    kept = NULL;
    is_running = false;
    after_fork();
}

static void add_handlers(void)
{
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void dpn_verbs_heed_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, add_handlers);
}

/* ---- what connections call --------------------------------------------------------------------- */

void dpn_verbs_keep(struct dpn_verbs *v)
{
    dpn_verbs_heed_forks();
    pthread_mutex_lock(&lock);
    v->next_kept = kept;
    v->is_kept = true;
    kept = v;
    int error = is_running ? 0 : start_thread();
    is_running = !error;
    pthread_mutex_unlock(&lock);
    if (error)
        dp_log(DP_LOG_WARN, "no thread for connections that are not in use: %s", strerror(error));
}

void dpn_verbs_unkeep(struct dpn_verbs *v)
{
    pthread_mutex_lock(&lock);
    for (struct dpn_verbs **at = &kept; v->is_kept && *at; at = &(*at)->next_kept)
        if (*at == v) {
            *at = v->next_kept;
            break;
        }
    v->is_kept = false;
    pthread_mutex_unlock(&lock);
}
