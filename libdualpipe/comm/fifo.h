/* SPDX-License-Identifier: Apache-2.0
 *
 * fifo.h - messages from one thread to another: a queue of the sends that no receive has matched
 * yet, or of the receives that no send has matched; never both. The side that comes second copies,
 * straight from one caller's buffer to the other's:
 *
 *      sender     send A     send B                      queue:   A   A B   B   (empty)
 *      receiver                       receive a  receive b        copies A to a, B to b
 *
 * A short message that comes before its receive is put aside in the fifo, so that its send is done
 * at once. Nothing is allocated per message.
 *
 * Threads: the sender and the receiver, each only its own side.
 */
#ifndef DP_COMM_FIFO_H
#define DP_COMM_FIFO_H

#include "comm/comm_ops.h"

#include <pthread.h>
#include <stdatomic.h>

enum { DP_FIFO_SHORT_BYTES = 1024, DP_FIFO_SHORT_COUNT = 4 };

enum dp_transfer_state { DP_TRANSFER_WAITING, DP_TRANSFER_DONE, DP_TRANSFER_LEFT };

/* Lives in the caller's request. It may go away as soon as its state says that it is finished, so
 * that storing the state is always the last thing that the other side does to it. */
struct dp_transfer {
    struct dp_request_head head;
    struct dp_transfer *next;
    char *buf; /* of a send only read */
    size_t len, met_len;
    uint64_t tag, met_tag; /* met_*: of a receive, what the message really had */
    struct dp_fifo *fifo;
    atomic_int state; /* LEFT: the other side has closed */
    bool is_send, put_aside;
    bool is_any; /* a receive of any tag, and any length up to len */
};
_Static_assert(sizeof(struct dp_transfer) <= sizeof(struct dp_request), "a transfer is a request");

/* A short message and its bytes, in the order of the fifo's queue. */
struct dp_fifo_aside {
    struct dp_transfer transfer;
    char bytes[DP_FIFO_SHORT_BYTES];
};

struct dp_fifo {
    pthread_mutex_t lock; /* held for a few instructions, or the copy of a short message */
    struct dp_transfer *head, **end;
    int sender, receiver;
    unsigned asides_put, asides_taken;
    bool closed;
    atomic_int copying; /* a transfer taken out of the queue is still being read or written */
    struct dp_fifo_aside *asides; /* [DP_FIFO_SHORT_COUNT] */
};

/* Begin a transfer, whose buf, len, tag and is_send are set. *met: whether a transfer of the other
 * side is done by it. DP_ECOMM if the other side has left. */
int dp_fifo_start(struct dp_fifo *fifo, struct dp_transfer *t, bool *met);
/* A receive takes the message that waits, as dp_fifo_start; false: none does, and nothing is done. */
bool dp_fifo_receive_sent(struct dp_fifo *fifo, struct dp_transfer *t, bool *met);
/* Take one side's transfers out, and wait until no copy from or to its buffers is running. Nothing
 * that was sent after the first send that is dropped arrives. */
void dp_fifo_drop(struct dp_fifo *fifo, bool sends);
/* One side closes: what it has put aside stays for the receiver, what waits for it is LEFT. */
void dp_fifo_leave(struct dp_fifo *fifo, bool sender);

/* ---- fifo table ------------------------------------------------------------------------------ */

/* The fifos of a group of threads: one for each sender, receiver and channel, made
 * at its first use. Any thread may find and make fifos at any time. */

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
