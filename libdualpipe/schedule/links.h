/* SPDX-License-Identifier: Apache-2.0
 *
 * links.h - the directed links between ranks, and what is under way on them. A link is FIFO: its
 * k-th send meets its k-th receive, whatever they carry.
 */
#ifndef DP_SCHEDULE_LINKS_H
#define DP_SCHEDULE_LINKS_H

#include <dualpipe/schedule.h>

/* Where a message op of one slot goes, and the name of its message: the same at both ends, and
 * different from all others of the link. */
struct dp_port {
    int32_t link; /* -1: this slot has no such message */
    uint32_t tag; /* of micro-batch 0; others add their number */
};

struct dp_links {
    int32_t count;
    int32_t *from, *to;    /* [count] pipeline ranks */
    struct dp_port *ports; /* [ranks * slots_per_rank * 4]: RECV_F, RECV_B, SEND_F, SEND_B */
};

/* The schedule's placement must be right. The caller ends it with dp_links_fini. */
int dp_links_init(struct dp_links *links, const struct dp_schedule *s);
void dp_links_fini(struct dp_links *links);

static inline const struct dp_port *dp_links_port(const struct dp_links *links,
                                                  const struct dp_schedule *s, int rank,
                                                  struct dp_op op)
{
    size_t slot = (size_t)rank * (size_t)s->slots_per_rank + op.slot;
    return &links->ports[4 * slot + (op.kind - DP_OP_RECV_F)];
}

/* One message under way. */
struct dp_parcel {
    uint32_t tag;
    uint32_t index; /* of the op that posted it, or what the user of the queue likes */
    int64_t time_ns;
};

/* Messages under way in one direction: a ring that grows to the most there ever are at once. */
struct dp_parcels {
    uint32_t head, count, capacity; /* capacity: a power of 2, or 0 */
    struct dp_parcel *ring;
};

bool dp_parcels_push(struct dp_parcels *q, struct dp_parcel parcel); /* false: no memory */
/* Take out the k-th, 0 the oldest. */
struct dp_parcel dp_parcels_take(struct dp_parcels *q, uint32_t k);
static inline const struct dp_parcel *dp_parcels_at(const struct dp_parcels *q, uint32_t k)
{
    return &q->ring[(q->head + k) & (q->capacity - 1)];
}

#endif
