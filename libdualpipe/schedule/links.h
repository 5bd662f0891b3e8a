/* SPDX-License-Identifier: Apache-2.0
 *
 * links.h - the directed links between ranks, and what is under way on them. A link is FIFO: its
 * k-th send meets its k-th receive, whatever they carry.
 */
#ifndef DP_SCHEDULE_LINKS_H
#define DP_SCHEDULE_LINKS_H

#include <dualpipe/schedule.h>

/* Where a message op of one slot goes. */
struct dp_port {
    int32_t link; /* -1: this slot has no such message */
    int32_t peer; /* pipeline rank at the other end */
    int32_t flow; /* what the message belongs to: the activations, or gradients, of the slot that
                   * receives it; the same number at both ends */
    uint32_t tag; /* micro-batch 0's name on the link, the same at both ends; others add their mb */
};

struct dp_links {
    int32_t count, flows;
    struct dp_port *ports; /* [4 * slots of all ranks]: RECV_F, RECV_B, SEND_F, SEND_B */
    struct dp_port *skip_ports; /* [4 * streams * skips]: RECV_SKIP_F, _B, SEND_SKIP_F, _B */
};

/* The schedule's placement must be right. The caller ends it with dp_links_fini. */
int dp_links_init(struct dp_links *links, const struct dp_schedule *s);
void dp_links_fini(struct dp_links *links);

/* A rank's ports; and of these, that of a message op. */
static inline const struct dp_port *dp_links_ports(const struct dp_links *links,
                                                   const struct dp_schedule *s, int rank)
{
    return links->ports + 4 * s->first_slot[rank];
}
static inline const struct dp_port *dp_port_of(const struct dp_port *ports, uint32_t slot,
                                               enum dp_op_kind kind)
{
    return &ports[4 * slot + (kind - DP_OP_RECV_F)];
}

/* The same for any message op of a rank. */
static inline const struct dp_port *dp_links_port(const struct dp_links *links,
                                                  const struct dp_schedule *s, int rank,
                                                  struct dp_op op)
{
    if (!dp_op_is_skip((enum dp_op_kind)op.kind))
        return dp_port_of(dp_links_ports(links, s, rank), op.slot, (enum dp_op_kind)op.kind);
    const int stream = dp_schedule_slot(s, rank, (int)op.slot)->stream;
    const size_t at = (size_t)stream * (size_t)s->skip_count + dp_op_argument(op);
    return &links->skip_ports[4 * at + (op.kind - DP_OP_RECV_SKIP_F)];
}

/* One message under way. */
struct dp_message {
    uint32_t tag;
    uint32_t index; /* of the op that posted it, or what the user of the queue likes */
    int64_t time_ns;
};

/* Messages under way in one direction: a ring that grows to the most there ever are at once. */
struct dp_messages {
    uint32_t head, count, capacity; /* capacity: a power of 2, or 0 */
    struct dp_message *ring;
};

static inline struct dp_message *dp_messages_at(const struct dp_messages *q, uint32_t k)
{
    return &q->ring[(q->head + k) & (q->capacity - 1)];
}

bool dp_messages_grow(struct dp_messages *q); /* false: no memory */

static inline bool dp_messages_push(struct dp_messages *q, struct dp_message message)
{
    if (q->count == q->capacity && !dp_messages_grow(q))
        return false;
    *dp_messages_at(q, q->count++) = message;
    return true;
}

/* Take out the k-th, 0 the oldest. The gap is closed from the front: it is short. */
static inline struct dp_message dp_messages_take(struct dp_messages *q, uint32_t k)
{
    struct dp_message message = *dp_messages_at(q, k);

    for (; k > 0; k--)
        *dp_messages_at(q, k) = *dp_messages_at(q, k - 1);
    q->head = (q->head + 1) & (q->capacity - 1);
    q->count--;
    return message;
}

/* ---- durations ------------------------------------------------------------------------------- */

/* How long each op of a schedule takes, looked up. */

struct dp_durations {
    int slots;           /* max_slots of the schedule */
    int64_t *single_ns;  /* [ranks * slots * 5]: F, B, I, W, RECOMPUTE */
    int64_t *pair_ns;    /* [ranks * slots * slots]: F of one slot with B of another */
    int64_t reduce_ns;
    const int64_t *op_ns; /* dp_cost.op_ns */
    double longest_ns;    /* of all ops */
};

/* DP_EINVAL for a cost that is negative, no number or past what 64 bits hold. cost must outlive it. */
int dp_durations_init(struct dp_durations *d, const struct dp_schedule *s,
                      const struct dp_cost *cost);
void dp_durations_fini(struct dp_durations *d);

/* Of a compute or a REDUCE; an overlapped pair is asked for by its F. */
static inline int64_t dp_duration_ns(const struct dp_durations *d, const struct dp_schedule *s,
                                     int rank, const struct dp_op *op)
{
    size_t at = (size_t)rank * (size_t)d->slots + op->slot;

    if (d->op_ns)
        return d->op_ns[op - s->ops];
    if (op->flags & DP_OP_OVERLAP)
        return d->pair_ns[at * (size_t)d->slots + op[1].slot];
    if (op->kind == DP_OP_REDUCE)
        return d->reduce_ns;
    return d->single_ns[5 * at + (op->kind - DP_OP_F)];
}

#endif
