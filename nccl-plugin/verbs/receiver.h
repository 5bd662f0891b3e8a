/* SPDX-License-Identifier: Apache-2.0
 *
 * receiver.h - the receiver's side of a connection: receives, CTS entries, flushes.
 */
#ifndef DPN_VERBS_RECEIVER_H
#define DPN_VERBS_RECEIVER_H

#include "nccl-plugin/verbs/queues.h"

enum { DPN_DELAY_NS = 20000 }; /* how long CTS entries are delayed while nothing arrives */

struct dpn_recv_buffer {
    size_t size; /* of the buffer; once done, of the message */
    int tag;
    void *data;
    const struct dpn_memory *memory;
    const void *from; /* an eager message that the device copies */
    uint8_t copy_slot, copy_rail;
    uint16_t stripes; /* bit mask of stripes that have arrived */
    bool is_copied;   /* an eager message was copied, or is being copied */
    bool done;
    size_t got;
};

struct dpn_recv {
    struct dpn_verbs_request base;
    unsigned generation, count;
    /* number of its first buffer, counted from the first buffer of the connection */
    uint32_t order;
    uint32_t cts; /* number of its first CTS entry, once it has entries: see `delayed` */
    unsigned
        /* uses since it last had CTS entries, which the sender does not know of */
        uses_without_cts;
    struct dpn_recv_buffer buffers[DPN_MAX_RECEIVES];
};

/* rails: where a read has not completed. written: the value of dpn_loop.written, by rail, when the
 * flush was requested. */
struct dpn_flush {
    struct dpn_verbs_request base;
    const void *at;
    const struct dpn_verbs_memory *memory;
    uint8_t rails; /* bit mask */
    uint32_t written[DPN_MAX_RAILS];
};

struct dpn_receiver {
    struct dpn_queues q;
    uint32_t free; /* bit mask of free receives */
    struct dpn_recv recvs[NCCL_NET_MAX_REQUESTS];
    uint32_t cts_made, cts_sent;
    /* entries from here on were never written; before it some may be written again */
    uint32_t cts_new;
    /* which queue pair wrote an entry, by number; DPN_MAX_QPS: none */
    uint8_t cts_qps[DPN_CTS_ENTRIES];
    unsigned rewrites_out;  /* outstanding writes that repeat CTS entries */
    uint32_t rewritten;     /* the first CTS entry that these repeat */
    uint32_t delayed;       /* bit mask of receives with open buffers and without CTS entries */
    unsigned delayed_polls; /* consecutive polls that found nothing while receives are delayed */
    int64_t delayed_ns;     /* time of the first of these */
    uint32_t buffers_made, buffers_closed; /* all buffers before the latter have a message */
    uint8_t buffer_recvs[DPN_PLACES]; /* receives, indexed by the order of their first buffer */
    bool is_credit_due; /* a delayed receive took a message, which no CTS entry reports */
    /* value of eager_taken that was reported last; report it every so many */
    uint32_t credited, credit_every;
    size_t short_buffer; /* size of the last buffer that is larger than an eager message */
    unsigned shorts;     /* consecutive eager messages into buffers of that size */
    uint32_t eager_taken; /* eager messages that were copied */
    uint32_t eager_seen; /* all messages before this number have arrived */
    /* Bit masks by number: arrived out of order; occupying a slot; not matched; not inline. */
    uint64_t eager_arrived, eager_busy, eager_waits, eager_large;
    unsigned unpolled; /* inline messages since completions were polled last */
    uint32_t flushes_free;
    struct dpn_flush flushes[NCCL_NET_MAX_REQUESTS];
};

/* verbs/recv.c. Errors of the connection are the caller's business. */
int dpn_verbs_irecv(struct dpn_receiver *rx, int n, const struct dpn_piece *pieces,
                    struct dpn_request **out);
void dpn_verbs_take_imm(struct dpn_receiver *rx, unsigned qp, uint32_t imm, uint32_t bytes);
void dpn_verbs_report(const struct dpn_receiver *rx, struct dpn_closed_receiver *report);

void dpn_eager_take(struct dpn_receiver *rx, uint16_t low, uint32_t bytes);
/* Process inline messages. Returns whether there were any. */
bool dpn_eager_take_inline(struct dpn_receiver *rx);
static inline bool dpn_eager_poll(struct dpn_receiver *rx)
{
    if (!rx->q.eager_bytes)
        return false;
    const struct dpn_inline_message *next =
        &rx->q.block->inlines[rx->eager_seen % DPN_EAGER_SLOTS];
    return __atomic_load_n(&next->head.number, __ATOMIC_RELAXED) == rx->eager_seen &&
           dpn_eager_take_inline(rx);
}
void dpn_eager_copied(struct dpn_receiver *rx, struct dpn_recv *recv, unsigned sub, uint32_t number);
/* Whether messages have arrived that no open receive waits for. The sender may have closed the
 * connection after these; they are still to be delivered. */
bool dpn_eager_has_unclaimed(const struct dpn_receiver *rx);

/* verbs/cts_write.c. Make CTS entries for a receive that is posted, or delay that. */
void dpn_cts_make(struct dpn_receiver *rx, int n, const struct dpn_piece *pieces);
/* Write the CTS entries that are made and not written. */
void dpn_cts_push(struct dpn_receiver *rx);
/* Make CTS entries for all delayed receives. */
void dpn_cts_release(struct dpn_receiver *rx);
/* Called after polls that found nothing: after DPN_DELAY_NS of these, make the CTS entries, as the
 * sender may wait for them. */
void dpn_cts_release_late(struct dpn_receiver *rx);
static inline void dpn_cts_release_if_idle(struct dpn_receiver *rx, bool found)
{
    if (found || !rx->delayed)
        rx->delayed_polls = 0;
    else if (rx->delayed_polls++ % 4 == 0) /* reading the clock costs as much as a poll */
        dpn_cts_release_late(rx);
}

/* Note that a message of `size` arrived in a buffer of `room` bytes, to predict the next one. */
void dpn_verbs_note_size(struct dpn_receiver *rx, size_t room, size_t size);
/* The sender has closed this queue pair after it had read the CTS entries before cts_read: later
 * ones that went over this queue pair are written again. */
void dpn_cts_rewind(struct dpn_receiver *rx, unsigned qp, uint32_t cts_read);
/* A write of CTS entries has completed. */
void dpn_cts_write_done(struct dpn_receiver *rx, struct dpn_qp *qp, struct dpn_work work);

/* verbs/flush.c */
int dpn_verbs_iflush(struct dpn_receiver *rx, int n, const struct dpn_piece *pieces,
                     struct dpn_request **out);
enum {
    DPN_LOOP_QUEUE = NCCL_NET_MAX_REQUESTS + 2 * DPN_EAGER_SLOTS
}; /* a copy is a write and a read */
int dpn_loop_open(struct dpn_rail *rail);
/* As dpn_qps_end and dpn_qps_close. */
bool dpn_loop_end(struct dpn_rail *rail);
bool dpn_loop_close(struct dpn_rail *rail, int64_t until_ns);
/* Process a completion of a flush or a copy. Returns whether it is done; a copied message is the
 * caller's business. */
bool dpn_loop_take(struct dpn_receiver *rx, struct dpn_work work, const struct ibv_wc *wc);
void dpn_loops_poll(struct dpn_receiver *rx, int64_t now_ns);
/* Whether the port's device accesses GPU memory. */
bool dpn_port_reaches_gpus(const struct dpn_port *port);
/* Whether an eager message can be copied to all memory that the port's device accesses. */
bool dpn_port_takes_eager(const struct dpn_port *port);
void dpn_verbs_copy_to_gpu(struct dpn_receiver *rx, struct dpn_recv *recv, unsigned sub,
                           const void *from, unsigned slot);

#endif
