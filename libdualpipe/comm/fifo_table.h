/* SPDX-License-Identifier: Apache-2.0
 *
 * fifo_table.h - the fifos of a group of threads: one for each sender, receiver and channel, made
 * at its first use. Any thread may find and make fifos at any time.
 */
#ifndef DP_COMM_FIFO_TABLE_H
#define DP_COMM_FIFO_TABLE_H

#include "comm/fifo.h"

enum { DP_FIFO_TABLE_CHANNELS = 1 << 16 };

/* A fifo and room for its short messages. */
struct dp_full_fifo {
    struct dp_fifo fifo;
    struct dp_fifo_aside asides[DP_FIFO_SHORT_COUNT];
};
typedef _Atomic(struct dp_full_fifo *) dp_fifo_cell; /* NULL: not used yet */

struct dp_fifo_table {
    int size;
    _Atomic(dp_fifo_cell *) *tables; /* [channel][sender][receiver]; NULL: not used yet */
    atomic_int channels;             /* from 0 on, that are used */
};

/* Of a group of `size`. Without memory, tables is NULL. */
void dp_fifo_table_init(struct dp_fifo_table *t, int size);
void dp_fifo_table_fini(struct dp_fifo_table *t);

static inline dp_fifo_cell *dp_fifo_table_cell(const struct dp_fifo_table *t, dp_fifo_cell *table,
                                               int sender, int receiver)
{
    return &table[(size_t)sender * (size_t)t->size + (size_t)receiver];
}

/* NULL: not used yet. */
static inline struct dp_fifo *dp_fifo_table_find(const struct dp_fifo_table *t, int sender,
                                                 int receiver, int channel)
{
    dp_fifo_cell *table =
        channel < DP_FIFO_TABLE_CHANNELS ? atomic_load(&t->tables[channel]) : NULL;
    struct dp_full_fifo *full =
        table ? atomic_load(dp_fifo_table_cell(t, table, sender, receiver)) : NULL;

    return full ? &full->fifo : NULL;
}

/* One that was not found; both sides may make it at once, and get the same. DP_ENOMEM. */
int dp_fifo_table_make(struct dp_fifo_table *t, int sender, int receiver, int channel,
                       struct dp_fifo **out);

/* Call fn for all fifos to or from a rank that are used, on channels from first to end. */
void dp_fifo_table_for_rank(const struct dp_fifo_table *t, int rank, int first, int end,
                            void (*fn)(struct dp_fifo *fifo, bool sending));
/* All are as new. */
void dp_fifo_table_clear(const struct dp_fifo_table *t);

#endif
