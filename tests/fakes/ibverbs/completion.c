/* SPDX-License-Identifier: Apache-2.0
 *
 * completion.c - completion queues and the channels that say when there is something in them.
 */
#include "verbs_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct fv_completion *ring(const struct fv_cq *cq)
{
    return fv_at(cq->ring);
}

/* ---- in -------------------------------------------------------------------------------------- */

static void notify(struct fv_cq *cq, bool is_solicited)
{
    if (!cq->armed || (cq->armed_solicited_only && !is_solicited))
        return;
    cq->armed = false;
    fv_post_letter(cq->mailbox, 0, cq->owner);
}

void fv_complete(int index, const struct fv_completion *c, bool is_solicited)
{
    struct fv_cq *cq = &fv->cqs[index];
    const uint32_t count = atomic_load(&cq->count);

    if (count == cq->room) {
        if (!cq->overrun) {
            fprintf(stderr, "fake verbs: a completion queue of %u entries is overrun\n", cq->room);
            fv_post_letter(cq->events, IBV_EVENT_CQ_ERR, cq->owner);
        }
        cq->overrun = true;
        return;
    }
    ring(cq)[(cq->head + count) % cq->room] = *c;
    atomic_store(&cq->count, count + 1);
    notify(cq, is_solicited || c->wc.status != IBV_WC_SUCCESS);
}

void fv_forget_completions(int index, int qp)
{
    struct fv_cq *cq = &fv->cqs[index];
    const uint32_t count = atomic_load(&cq->count);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct fv_completion *c = &ring(cq)[(cq->head + i) % cq->room];
        if (c->qp != qp)
            ring(cq)[(cq->head + kept++) % cq->room] = *c;
    }
    atomic_store(&cq->count, kept);
}

/* ---- out ------------------------------------------------------------------------------------- */

/* A completion gives back its place in the send queue, and those before it. */
static void take(struct fv_cq *cq, struct ibv_wc *out)
{
    const struct fv_completion *c = &ring(cq)[cq->head];

    *out = c->wc;
    if (c->sent)
        ((struct fv_my_qp *)(uintptr_t)fv->qps[c->qp].owner)->reclaimed = c->sent;
    cq->head = (cq->head + 1) % cq->room;
    atomic_fetch_sub(&cq->count, 1);
}

/* A caller that waits for an event relies on a poll that finds all there is. */
static int shorten(struct fv_my_cq *q, const struct fv_cq *cq, int count)
{
    const uint64_t n = ++q->polls;

    if (cq->mailbox >= 0 || !count || !fv_strikes(FV_SHORT, q->ordinal, n))
        return count;
    return (int)fv_draw(FV_SHORT, q->ordinal, n, (unsigned)count);
}

int fv_poll(struct ibv_cq *ib, int room, struct ibv_wc *out)
{
    struct fv_my_cq *q = (struct fv_my_cq *)(void *)ib;
    struct fv_cq *cq = &fv->cqs[q->index];

    if (!atomic_load(&cq->count) && !atomic_load(&fv_me.waiting))
        return 0;
    fv_lock();
    fv_progress();
    int count = (int)atomic_load(&cq->count);
    count = shorten(q, cq, count < room ? count : room);
    for (int i = 0; i < count; i++)
        take(cq, &out[i]);
    const bool lost = cq->overrun && !count;
    fv_unlock();
    return lost ? -EIO : count;
}

int fv_req_notify(struct ibv_cq *ib, int solicited_only)
{
    const struct fv_my_cq *q = (const struct fv_my_cq *)(const void *)ib;
    struct fv_cq *cq = &fv->cqs[q->index];

    if (cq->mailbox < 0)
        return EINVAL;
    fv_lock();
    cq->armed = true;
    cq->armed_solicited_only = solicited_only;
    fv_unlock();
    return 0;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static int find_free(void)
{
    int i = 0;

    while (i < FV_CQS && fv->cqs[i].used)
        i++;
    return i < FV_CQS ? i : -1;
}

static int enter(struct fv_my_cq *q, int room)
{
    struct fv_my_channel *channel = (struct fv_my_channel *)(void *)q->ib.channel;
    const uint64_t ring_at = fv_alloc((size_t)room * sizeof(struct fv_completion));
    const int index = ring_at ? find_free() : -1;

    if (index < 0) {
        fv_free(ring_at, (size_t)room * sizeof(struct fv_completion));
        return -1;
    }
    struct fv_cq *cq = &fv->cqs[index];
    memset(cq, 0, sizeof(*cq));
    cq->used = true;
    cq->mailbox = channel ? channel->mailbox : -1;
    cq->events = fv_context(q->ib.context)->mailbox;
    cq->owner = (uintptr_t)q;
    cq->room = (uint32_t)room;
    cq->ring = ring_at;
    q->ordinal = ++fv_me.cq_serial;
    if (channel)
        channel->ib.refcnt++;
    fv_me.alive++;
    return index;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *c, int room, void *cq_context,
                                    struct ibv_comp_channel *channel, int vector)
{
    int err = fv_call_error("ibv_create_cq");

    if (!err && (room < 1 || room > (int)fv_context(c)->device->cqes || vector))
        err = EINVAL;
    struct fv_my_cq *q = err ? NULL : calloc(1, sizeof(*q));
    if (!q) {
        errno = err ? err : ENOMEM;
        return NULL;
    }
    q->ib.context = c;
    q->ib.channel = channel;
    q->ib.cq_context = cq_context;
    q->ib.cqe = room;
    pthread_mutex_init(&q->ib.mutex, NULL);
    pthread_cond_init(&q->ib.cond, NULL);
    fv_lock();
    q->index = enter(q, room);
    fv_unlock();
    if (q->index < 0) {
        free(q);
        errno = ENOMEM;
        return NULL;
    }
    q->ib.handle = (uint32_t)q->index;
    return &q->ib;
}

/* Until what was taken of it is acknowledged; a caller that never does gets an error. */
static bool wait_for_acks(struct fv_my_cq *q)
{
    struct timespec until;
    int err = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&q->ib.mutex);
    while (!err && (q->ib.comp_events_completed != q->events_got ||
                    q->ib.async_events_completed != q->async_got))
        err = pthread_cond_timedwait(&q->ib.cond, &q->ib.mutex, &until);
    pthread_mutex_unlock(&q->ib.mutex);
    return !err;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *ib)
{
    struct fv_my_cq *q = (struct fv_my_cq *)(void *)ib;
    struct fv_cq *cq = &fv->cqs[q->index];

    fv_lock();
    const bool busy = q->users > 0;
    fv_unlock();
    if (busy || !wait_for_acks(q))
        return EBUSY;
    fv_lock();
    fv_forget_letters(cq->events, cq->owner);
    if (cq->mailbox >= 0)
        fv_forget_letters(cq->mailbox, cq->owner);
    fv_free(cq->ring, cq->room * sizeof(struct fv_completion));
    cq->used = false;
    if (ib->channel)
        ib->channel->refcnt--;
    fv_me.alive--;
    fv_unlock();
    pthread_cond_destroy(&q->ib.cond);
    pthread_mutex_destroy(&q->ib.mutex);
    free(q);
    return 0;
}

/* ---- channels -------------------------------------------------------------------------------- */

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
    const int err = fv_call_error("ibv_create_comp_channel");
    struct fv_my_channel *ch = err ? NULL : calloc(1, sizeof(*ch));

    if (!ch) {
        errno = err ? err : ENOMEM;
        return NULL;
    }
    ch->ib.context = c;
    fv_lock();
    ch->mailbox = fv_mailbox_open("", "", &ch->ib.fd);
    fv_me.alive += ch->mailbox >= 0;
    fv_unlock();
    if (ch->mailbox < 0) {
        free(ch);
        return NULL;
    }
    return &ch->ib;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *ib)
{
    struct fv_my_channel *ch = (struct fv_my_channel *)(void *)ib;

    fv_lock();
    const bool busy = ib->refcnt > 0;
    if (!busy) {
        fv_mailbox_close(ch->mailbox, ib->fd);
        fv_me.alive--;
    }
    fv_unlock();
    if (busy)
        return EBUSY;
    free(ch);
    return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *ib, struct ibv_cq **cq, void **cq_context)
{
    const struct fv_my_channel *ch = (const struct fv_my_channel *)(const void *)ib;
    struct fv_letter letter;

    if (fv_wait_letter(ch->mailbox, ib->fd, &letter))
        return -1;
    struct fv_my_cq *q = (struct fv_my_cq *)(uintptr_t)letter.element;
    pthread_mutex_lock(&q->ib.mutex);
    q->events_got++;
    pthread_mutex_unlock(&q->ib.mutex);
    *cq = &q->ib;
    *cq_context = q->ib.cq_context;
    return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_broadcast(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}
