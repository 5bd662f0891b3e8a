/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fifo.h"

#include "base/fail.h"
#include <dualpipe/comm.h>

#include <sched.h>
#include <stdlib.h>
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

/* ---- fifo table ------------------------------------------------------------------------------ */

void dp_fifo_table_init(struct dp_fifo_table *t, int size)
{
    t->size = size;
    t->tables = calloc(DP_FIFO_TABLE_CHANNELS, sizeof(*t->tables));
}

static struct dp_full_fifo *new_fifo(int sender, int receiver)
{
    struct dp_full_fifo *full = calloc(1, sizeof(*full));

    if (!full)
        return NULL;
    full->fifo = (struct dp_fifo){.sender = sender, .receiver = receiver, .asides = full->asides};
    pthread_mutex_init(&full->fifo.lock, NULL);
    full->fifo.end = &full->fifo.head;
    return full;
}

static void free_fifo(struct dp_full_fifo *full)
{
    if (full)
        pthread_mutex_destroy(&full->fifo.lock);
    free(full);
}

static void note_channel(struct dp_fifo_table *t, int channel)
{
    int channels = atomic_load(&t->channels);

    while (channels <= channel &&
           !atomic_compare_exchange_weak(&t->channels, &channels, channel + 1))
        ;
}

/* Both sides may make it at once: the exchange decides, and the other one's goes. */
int dp_fifo_table_make(struct dp_fifo_table *t, int sender, int receiver, int channel,
                       struct dp_fifo **out)
{
    dp_fifo_cell *none = NULL, *table;

    if (channel >= DP_FIFO_TABLE_CHANNELS)
        return dp_fail(DP_ENOMEM, "more than %d communicators in one family",
                       DP_FIFO_TABLE_CHANNELS / DP_CHANNELS);
    table = atomic_load(&t->tables[channel]);
    if (!table) {
        table = calloc((size_t)t->size * (size_t)t->size, sizeof(*table));
        if (table && !atomic_compare_exchange_strong(&t->tables[channel], &none, table)) {
            free(table);
            table = none;
        }
    }
    struct dp_full_fifo *nothing = NULL, *full = table ? new_fifo(sender, receiver) : NULL;
    if (!full)
        return dp_fail(DP_ENOMEM, "no memory for messages from rank %d to rank %d", sender,
                       receiver);
    if (!atomic_compare_exchange_strong(dp_fifo_table_cell(t, table, sender, receiver), &nothing,
                                        full)) {
        free_fifo(full);
        full = nothing;
    }
    note_channel(t, channel);
    *out = &full->fifo;
    return 0;
}

void dp_fifo_table_for_rank(const struct dp_fifo_table *t, int rank, int first, int end,
                            void (*fn)(struct dp_fifo *fifo, bool sending))
{
    const int channels = atomic_load(&t->channels);

    for (int channel = first; channel < end && channel < channels; channel++)
        for (int peer = 0; peer < t->size && atomic_load(&t->tables[channel]); peer++) {
            struct dp_fifo *out = dp_fifo_table_find(t, rank, peer, channel);
            struct dp_fifo *in = dp_fifo_table_find(t, peer, rank, channel);
            if (out)
                fn(out, true);
            if (in)
                fn(in, false);
        }
}

static void for_all(const struct dp_fifo_table *t, void (*fn)(struct dp_full_fifo *full))
{
    const size_t cells = (size_t)t->size * (size_t)t->size;

    for (int channel = 0; channel < atomic_load(&t->channels); channel++) {
        dp_fifo_cell *table = atomic_load(&t->tables[channel]);
        for (size_t i = 0; table && i < cells; i++)
            if (atomic_load(&table[i]))
                fn(atomic_load(&table[i]));
    }
}

/* As new, while neither side has a transfer. */
static void clear(struct dp_full_fifo *full)
{
    struct dp_fifo *fifo = &full->fifo;

    pthread_mutex_lock(&fifo->lock);
    fifo->head = NULL;
    fifo->end = &fifo->head;
    fifo->asides_put = fifo->asides_taken = 0;
    pthread_mutex_unlock(&fifo->lock);
}

void dp_fifo_table_clear(const struct dp_fifo_table *t)
{
    for_all(t, clear);
}

void dp_fifo_table_fini(struct dp_fifo_table *t)
{
    for_all(t, free_fifo);
    for (int channel = 0; channel < atomic_load(&t->channels); channel++)
        free(atomic_load(&t->tables[channel]));
    free(t->tables);
}
