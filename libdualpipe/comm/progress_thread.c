/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/progress_thread.h"

#include "base/fail.h"
#include "base/thread.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct dp_progress_thread {
    const struct dp_progress_thread_ops *ops;
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* held by the thread that works on the transfers; guards what follows */
    pthread_cond_t changed;
    bool moving, quit, sleeping;
    atomic_bool wanted;        /* the rank waits for the lock */
    int wake;                  /* an eventfd: ends the sleep */
    int armed;                 /* how many fds a sleep polls */
    struct pollfd *fds, *none; /* [1 + max_fds]; none: nothing has happened on any of them */
};

static void disarm(struct dp_progress_thread *m, const struct pollfd *fds)
{
    m->ops->disarm(m->user, fds, m->armed);
    m->sleeping = false;
}

/* What has no descriptor to poll is looked at once a millisecond. */
static int limit_ms(const struct dp_progress_thread *m)
{
    for (int i = 1; i <= m->armed; i++)
        if (m->fds[i].fd < 0)
            return 1;
    return -1;
}

/* Sleep until a wire has something, or until the rank stops the thread, which has then disarmed
 * already. */
static void sleep_on_fds(struct dp_progress_thread *m)
{
    uint64_t count;
    nfds_t fds = (nfds_t)(1 + m->armed);

    m->fds[0] = (struct pollfd){.fd = m->wake, .events = POLLIN};
    m->sleeping = true;
    pthread_mutex_unlock(&m->lock);
    poll(m->fds, fds, limit_ms(m));
    ssize_t n = read(m->wake, &count, sizeof(count));
    (void)n;
    pthread_mutex_lock(&m->lock);
    if (m->sleeping)
        disarm(m, m->fds + 1);
}

static void move_on(struct dp_progress_thread *m)
{
    m->ops->move(m->user);
    if (m->wanted)
        return;
    if (m->ops->arm(m->user, m->fds + 1, &m->armed))
        sleep_on_fds(m);
    else
        disarm(m, m->none);
}

/* An unlocked mutex mostly goes to the running thread, which is this one: so it checks whether the
 * rank wants the lock. */
static void *run(void *arg)
{
    struct dp_progress_thread *m = arg;

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

void dp_progress_thread_start(struct dp_progress_thread *m)
{
    pthread_mutex_lock(&m->lock);
    m->moving = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* A sleeping progress thread is not waited for: when it wakes, `sleeping` is false and it touches
 * nothing. */
void dp_progress_thread_stop(struct dp_progress_thread *m)
{
    const uint64_t one = 1;

    m->wanted = true;
    pthread_mutex_lock(&m->lock);
    m->wanted = m->moving = false;
    if (m->sleeping) {
        disarm(m, m->none);
        ssize_t n = write(m->wake, &one, sizeof(one));
        (void)n;
    }
    pthread_mutex_unlock(&m->lock);
}

static int start_thread(struct dp_progress_thread *m)
{
    const int error = dp_thread_start("dp-progress", run, m, &m->thread);

    return error ? dp_fail(DP_EIO, "cannot start a thread: %s", strerror(error)) : 0;
}

static void free_memory(struct dp_progress_thread *m)
{
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    if (m->wake >= 0)
        close(m->wake);
    free(m->none);
    free(m->fds);
    free(m);
}

int dp_progress_thread_new(const struct dp_progress_thread_ops *ops, void *user, int max_fds,
                           struct dp_progress_thread **out)
{
    struct dp_progress_thread *m = calloc(1, sizeof(*m));
    int err;

    if (!m)
        return dp_fail(DP_ENOMEM, "no memory for a thread that moves transfers");
    m->ops = ops;
    m->user = user;
    m->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    const int error = errno;
    m->fds = calloc(1 + (size_t)max_fds, sizeof(*m->fds));
    m->none = calloc(1 + (size_t)max_fds, sizeof(*m->none));
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    if (m->wake < 0)
        err = dp_fail(DP_EIO, "no eventfd for the progress thread: %s", dp_errno_text(error));
    else if (!m->fds || !m->none)
        err = dp_fail(DP_ENOMEM, "no memory for the progress thread");
    else
        err = start_thread(m);
    if (err)
        free_memory(m);
    else
        *out = m;
    return err;
}

void dp_progress_thread_free(struct dp_progress_thread *m)
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
