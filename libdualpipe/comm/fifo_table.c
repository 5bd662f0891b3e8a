/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fifo_table.h"

#include "base/fail.h"

#include <dualpipe/comm.h>

#include <stdlib.h>

void dp_fifo_table_init(struct dp_fifo_table *t, int size)
{
    t->size = size;
    t->tables = calloc(DP_FIFO_TABLE_CHANNELS, sizeof(*t->tables));
}

static struct dp_full_fifo *new_fifo(int sender, int receiver)
{
    struct dp_full_fifo *full = calloc(1, sizeof(*full));

    if (full)
        dp_fifo_init(&full->fifo, sender, receiver, full->asides);
    return full;
}

static void free_fifo(struct dp_full_fifo *full)
{
    if (full)
        dp_fifo_fini(&full->fifo);
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

static void clear(struct dp_full_fifo *full)
{
    dp_fifo_clear(&full->fifo);
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
