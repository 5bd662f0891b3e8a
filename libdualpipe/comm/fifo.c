/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fifo.h"

#include "base/fail.h"

#include <sched.h>
#include <string.h>

/* ---- the queue; the lock is held ------------------------------------------------------------- */

static void push(struct dp_fifo *fifo, struct dp_transfer *t)
{
    t->next = NULL;
    *fifo->end = t;
    fifo->end = &t->next;
}

static struct dp_transfer *pop(struct dp_fifo *fifo)
{
    struct dp_transfer *t = fifo->head;

    fifo->head = t->next;
    if (!fifo->head)
        fifo->end = &fifo->head;
    return t;
}

/* A send that is dropped takes with it what was put aside behind it: otherwise the receive of the
 * dropped one would get a later message. What was put aside before it still arrives. */
static void drop(struct dp_fifo *fifo, bool sends)
{
    struct dp_transfer **at = &fifo->head, *t, *next;

    while (*at && ((*at)->is_send != sends || (*at)->put_aside))
        at = &(*at)->next;
    for (t = *at; t; t = next) {
        next = t->next;
        if (t->put_aside)
            fifo->asides_put--;
        else
            atomic_store_explicit(&t->state, DP_TRANSFER_LEFT, memory_order_release);
    }
    *at = NULL;
    fifo->end = at;
}

static bool put_aside(struct dp_fifo *fifo, const struct dp_transfer *send)
{
    if (send->len > DP_FIFO_SHORT_BYTES ||
        fifo->asides_put - fifo->asides_taken == DP_FIFO_SHORT_COUNT)
        return false;
    struct dp_fifo_aside *a = &fifo->asides[fifo->asides_put++ % DP_FIFO_SHORT_COUNT];
    a->transfer = *send;
    a->transfer.buf = a->bytes;
    a->transfer.put_aside = true;
    if (send->len)
        memcpy(a->bytes, send->buf, send->len);
    push(fifo, &a->transfer);
    return true;
}

/* ---- handshake ------------------------------------------------------------------------------- */

static void copy_message(const struct dp_transfer *send, struct dp_transfer *receive)
{
    receive->met_tag = send->tag;
    receive->met_len = send->len;
    const bool fits = receive->is_any ? send->len <= receive->len
                                      : send->tag == receive->tag && send->len == receive->len;
    if (fits && send->len)
        memcpy(receive->buf, send->buf, send->len);
}

/* Take the first of the other side's transfers and copy; the lock is held, and given back. The
 * owner of `theirs` may free it right after its state is stored; `copying` makes dp_fifo_drop wait
 * until then. true: there is an owner to wake. */
static bool meet(struct dp_fifo *fifo, struct dp_transfer *mine)
{
    struct dp_transfer *theirs = pop(fifo);
    struct dp_transfer *send = mine->is_send ? mine : theirs;
    struct dp_transfer *receive = mine->is_send ? theirs : mine;
    const bool has_owner = !theirs->put_aside;

    if (has_owner) {
        atomic_fetch_add_explicit(&fifo->copying, 1, memory_order_relaxed);
        pthread_mutex_unlock(&fifo->lock);
    }
    copy_message(send, receive);
    atomic_store_explicit(&mine->state, DP_TRANSFER_DONE, memory_order_relaxed);
    if (has_owner) {
        atomic_store_explicit(&theirs->state, DP_TRANSFER_DONE, memory_order_release);
        atomic_fetch_sub_explicit(&fifo->copying, 1, memory_order_release);
    } else {
        fifo->asides_taken++;
        pthread_mutex_unlock(&fifo->lock);
    }
    return has_owner;
}

int dp_fifo_start(struct dp_fifo *fifo, struct dp_transfer *t, bool *met)
{
    t->fifo = fifo;
    atomic_init(&t->state, DP_TRANSFER_WAITING);
    *met = false;
    pthread_mutex_lock(&fifo->lock);
    if (fifo->head && fifo->head->is_send != t->is_send) {
        *met = meet(fifo, t);
        return 0;
    }
    if (fifo->closed) {
        pthread_mutex_unlock(&fifo->lock);
        return dp_fail(DP_ECOMM, "rank %d has left the group",
                       t->is_send ? fifo->receiver : fifo->sender);
    }
    if (t->is_send && put_aside(fifo, t))
        atomic_store_explicit(&t->state, DP_TRANSFER_DONE, memory_order_relaxed);
    else
        push(fifo, t);
    pthread_mutex_unlock(&fifo->lock);
    return 0;
}

bool dp_fifo_receive_sent(struct dp_fifo *fifo, struct dp_transfer *t, bool *met)
{
    pthread_mutex_lock(&fifo->lock);
    if (!fifo->head || !fifo->head->is_send) {
        pthread_mutex_unlock(&fifo->lock);
        return false;
    }
    t->fifo = fifo;
    *met = meet(fifo, t);
    return true;
}

/* ---- ends ---------------------------------------------------------------------------------- */

void dp_fifo_drop(struct dp_fifo *fifo, bool sends)
{
    pthread_mutex_lock(&fifo->lock);
    drop(fifo, sends);
    pthread_mutex_unlock(&fifo->lock);
    while (atomic_load_explicit(&fifo->copying, memory_order_acquire))
        sched_yield();
}

void dp_fifo_leave(struct dp_fifo *fifo, bool sender)
{
    pthread_mutex_lock(&fifo->lock);
    fifo->closed = true;
    drop(fifo, !sender);
    pthread_mutex_unlock(&fifo->lock);
}

void dp_fifo_clear(struct dp_fifo *fifo)
{
    pthread_mutex_lock(&fifo->lock);
    fifo->head = NULL;
    fifo->end = &fifo->head;
    fifo->asides_put = fifo->asides_taken = 0;
    pthread_mutex_unlock(&fifo->lock);
}

void dp_fifo_init(struct dp_fifo *fifo, int sender, int receiver, struct dp_fifo_aside *asides)
{
    *fifo = (struct dp_fifo){.sender = sender, .receiver = receiver, .asides = asides};
    pthread_mutex_init(&fifo->lock, NULL);
    fifo->end = &fifo->head;
}

void dp_fifo_fini(struct dp_fifo *fifo)
{
    pthread_mutex_destroy(&fifo->lock);
}
