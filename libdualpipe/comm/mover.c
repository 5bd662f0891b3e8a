/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/mover.h"

#include "base/fail.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct dp_mover {
    const struct dp_mover_ops *ops;
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* held by who works on the transfers; for what follows */
    pthread_cond_t changed;
    bool moving, quit, napping;
    atomic_bool wanted;        /* the rank waits for the lock */
    int wake;                  /* an eventfd: the nap is over */
    int armed;                 /* how many fds a nap waits for */
    struct pollfd *fds, *none; /* [1 + max_fds]; none: nothing has happened on any of them */
};

static void disarm(struct dp_mover *m, const struct pollfd *fds)
{
    m->ops->disarm(m->user, fds, m->armed);
    m->napping = false;
}

/* Sleep until a wire has something, or until the rank is back; then it has disarmed already. */
static void nap(struct dp_mover *m)
{
    uint64_t count;
    nfds_t fds = (nfds_t)(1 + m->armed);

    m->fds[0] = (struct pollfd){.fd = m->wake, .events = POLLIN};
    m->napping = true;
    pthread_mutex_unlock(&m->lock);
    poll(m->fds, fds, -1);
    ssize_t n = read(m->wake, &count, sizeof(count));
    (void)n;
    pthread_mutex_lock(&m->lock);
    if (m->napping)
        disarm(m, m->fds + 1);
}

static void move_on(struct dp_mover *m)
{
    m->ops->move(m->user);
    if (m->wanted)
        return;
    if (m->ops->arm(m->user, m->fds + 1, &m->armed))
        nap(m);
    else
        disarm(m, m->none);
}

/* A mutex goes to whoever is awake, and that is the mover: so it looks whether the rank wants
 * it. */
static void *run(void *arg)
{
    struct dp_mover *m = arg;

    pthread_mutex_lock(&m->lock);
    while (!m->quit) {
        if (m->moving && !m->wanted)
            move_on(m);
        else
            pthread_cond_wait(&m->changed, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

void dp_mover_start(struct dp_mover *m)
{
    pthread_mutex_lock(&m->lock);
    m->moving = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* A mover that naps is not waited for: it will find that its nap has been ended, and touch
 * nothing. */
void dp_mover_stop(struct dp_mover *m)
{
    const uint64_t one = 1;

    m->wanted = true;
    pthread_mutex_lock(&m->lock);
    m->wanted = m->moving = false;
    if (m->napping) {
        disarm(m, m->none);
        ssize_t n = write(m->wake, &one, sizeof(one));
        (void)n;
    }
    pthread_mutex_unlock(&m->lock);
}

/* Signals are for the program's own threads. */
static int start_thread(struct dp_mover *m)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&m->thread, NULL, run, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? dp_fail(DP_EIO, "cannot start a thread: %s", strerror(error)) : 0;
}

static void free_memory(struct dp_mover *m)
{
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    if (m->wake >= 0)
        close(m->wake);
    free(m->none);
    free(m->fds);
    free(m);
}

int dp_mover_new(const struct dp_mover_ops *ops, void *user, int max_fds, struct dp_mover **out)
{
    struct dp_mover *m = calloc(1, sizeof(*m));
    int err;

    if (!m)
        return dp_fail(DP_ENOMEM, "no memory for a thread that moves transfers");
    m->ops = ops;
    m->user = user;
    m->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    m->fds = calloc(1 + (size_t)max_fds, sizeof(*m->fds));
    m->none = calloc(1 + (size_t)max_fds, sizeof(*m->none));
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    if (m->wake < 0 || !m->fds || !m->none)
        err = dp_fail(DP_ENOMEM, "no memory or no eventfd for a thread that moves transfers");
    else
        err = start_thread(m);
    if (err)
        free_memory(m);
    else
        *out = m;
    return err;
}

void dp_mover_free(struct dp_mover *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->quit = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    free_memory(m);
}
