/* SPDX-License-Identifier: Apache-2.0
 *
 * queues.h - the queue pairs of a connection, and what else a sender and a receiver both have: the block
 * that the peer writes to, what work requests and immediates say, and how a connection fails.
 */
#ifndef DPN_VERBS_QUEUES_H
#define DPN_VERBS_QUEUES_H

#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/cts.h"
#include "nccl-plugin/options.h"
#include "nccl-plugin/verbs/control_message.h"
#include "nccl-plugin/verbs/device.h"
#include "nccl-plugin/verbs/worker.h"

#include <endian.h>
#include <string.h>

enum {
    DPN_PLACES = NCCL_NET_MAX_REQUESTS * DPN_MAX_RECEIVES, /* buffers of open receives */
    /* eager messages; each may complete a receive whose CTS entries are unread */
    DPN_EAGER_SLOTS = 64,
    /* slots for eager messages that are not inline; divides DPN_EAGER_SLOTS */
    DPN_LARGE_SLOTS = 16,
    DPN_CTS_ENTRIES = 4 * DPN_PLACES, /* there are never more unread; a power of two */
    DPN_SEND_QUEUE = 128,             /* work requests of a queue pair */
    DPN_RECV_QUEUE = DPN_PLACES + DPN_LARGE_SLOTS + 1, /* a stripe of each message, a probe */
    DPN_INLINE_BYTES = 128,
    DPN_GENERATIONS = 0x7fff /* the largest 15-bit value is reserved for probes */
};
_Static_assert(DPN_CTS_ENTRIES >= DPN_PLACES + DPN_EAGER_SLOTS * (DPN_MAX_RECEIVES + 1),
               "no CTS entry is overwritten before it is read; a message may cause a credit, too");

/* ---- wire format ----------------------------------------------------------------------------- */

enum dpn_cts_flags {
    DPN_CTS_TAKEN = 1, /* an eager message took the buffer before this entry was written */
    /* the sender sends no eager messages until an entry without this flag arrives */
    DPN_CTS_NO_EAGER = 2
};
/* The device may write an entry in pieces and in any order, so an entry is valid only once `check`
 * matches. An entry with count 0 is a credit: it clears no buffer but tells the sender which eager
 * messages were matched with receives that have no CTS entries. These are all messages before
 * number `bytes`, except those whose bit, by number, is set in `address`. */
struct dpn_cts_entry {
    uint64_t address;
    uint32_t bytes;
    int32_t tag;
    uint32_t keys[DPN_MAX_RAILS];
    uint8_t slot, sub, count;
    uint8_t flags; /* enum dpn_cts_flags */
    uint16_t generation;
    uint16_t taken;  /* number of eager messages that were copied, the low 16 bits */
    uint32_t number; /* counted from the first CTS entry of the connection */
    uint32_t check;
};
_Static_assert(sizeof(struct dpn_cts_entry) == 64, "an entry is one cache line");

/* verbs/cts_write.c */
void dpn_cts_entry_seal(struct dpn_cts_entry *entry);
/* Copy the entry at `from` if it is CTS entry `number` and complete. */
bool dpn_cts_entry_read(const struct dpn_cts_entry *from, uint32_t number,
                        struct dpn_cts_entry *out);

/* Header of an eager message in the ring; see verbs/recv.c. */
struct dpn_eager_head {
    uint32_t number, size;
    int32_t tag;
    uint32_t cts; /* the message is for the first matching CTS entry from this number on */
};

enum { DPN_INLINE_MESSAGE_BYTES = 104, DPN_INLINE_WORD = sizeof(uint64_t) };

/* An inline message, which the receiver polls for in memory: no completion has to be generated and
 * polled for, and no receive posted again. A device may write the message in pieces and in any order,
 * so, as with CTS entries, it is valid only once the checksum of all of it matches. The number
 * distinguishes it from the previous message there. */
struct dpn_inline_message {
    struct dpn_eager_head head;
    uint64_t check;                      /* checksum of the head and the data */
    char data[DPN_INLINE_MESSAGE_BYTES]; /* padded with zeros to a multiple of DPN_INLINE_WORD */
};
_Static_assert(sizeof(struct dpn_eager_head) == 2 * DPN_INLINE_WORD, "as dpn_inline_sum assumes");

static inline uint32_t dpn_inline_words(uint32_t size)
{
    return (size + DPN_INLINE_WORD - 1) / DPN_INLINE_WORD;
}

static inline uint64_t dpn_inline_mix(uint64_t sum, const void *at)
{
    uint64_t word;

    memcpy(&word, at, DPN_INLINE_WORD);
    sum = (sum ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
    return sum ^ sum >> 32;
}

static inline uint64_t dpn_inline_sum(const struct dpn_eager_head *head, const char *data,
                                     uint32_t words)
{
    uint64_t sum = dpn_inline_mix(UINT64_C(0x9e3779b97f4a7c15), head);

    sum = dpn_inline_mix(sum, (const char *)head + DPN_INLINE_WORD);
    for (uint32_t i = 0; i < words; i++)
        sum = dpn_inline_mix(sum, data + i * DPN_INLINE_WORD);
    return sum;
}

/* Sender. Returns how many bytes are to be written. */
static inline uint32_t dpn_inline_make(struct dpn_inline_message *message,
                                       const struct dpn_eager_head *head, const void *data)
{
    const uint32_t words = dpn_inline_words(head->size);

    message->head = *head;
    if (words) {
        memset(message->data + (words - 1) * DPN_INLINE_WORD, 0, DPN_INLINE_WORD);
        memcpy(message->data, data, head->size);
    }
    message->check = dpn_inline_sum(head, message->data, words);
    return (uint32_t)offsetof(struct dpn_inline_message, data) + words * DPN_INLINE_WORD;
}

/* Receiver: whether message `number` has arrived completely. */
static inline bool dpn_inline_has_arrived(const struct dpn_inline_message *message, uint32_t number)
{
    if (__atomic_load_n(&message->head.number, __ATOMIC_ACQUIRE) != number)
        return false;
    const struct dpn_eager_head head = message->head;
    return head.number == number && head.size <= DPN_INLINE_MESSAGE_BYTES &&
           message->check == dpn_inline_sum(&head, message->data, dpn_inline_words(head.size));
}

/* The length of a message whose immediates do not carry it. */
struct dpn_record {
    uint32_t generation, size;
};

_Static_assert(sizeof(struct dpn_inline_message) <= DPN_INLINE_BYTES,
               "the device need not fetch it");

/* The sender's block receives CTS entries and is the source of records and inline messages. In the
 * receiver's block it is the other way round, and the ring of larger eager messages follows it. */
struct dpn_block {
    struct dpn_cts_entry cts[DPN_CTS_ENTRIES];
    struct dpn_record records[DPN_PLACES];        /* indexed by slot and sub */
    struct dpn_eager_head heads[DPN_LARGE_SLOTS]; /* written by the sender */
    struct dpn_inline_message inlines[DPN_EAGER_SLOTS];
    uint64_t scratch[8]; /* destination of the reads that flush */
};
_Static_assert(sizeof(struct dpn_block) % 64 == 0, "the ring begins at a cache line");
_Static_assert(offsetof(struct dpn_block, inlines) % 64 == 0, "and so do inline messages");

/* The ring of larger eager messages behind the receiver's block. */
static inline size_t dpn_eager_stride(uint32_t eager_bytes)
{
    return (sizeof(struct dpn_eager_head) + eager_bytes + 63) / 64 * 64;
}

static inline size_t dpn_eager_ring_bytes(uint32_t eager_bytes)
{
    return eager_bytes ? DPN_LARGE_SLOTS * dpn_eager_stride(eager_bytes) : 0;
}

static inline uint64_t dpn_eager_slot(uint64_t block, uint32_t eager_bytes, uint32_t number)
{
    return block + sizeof(struct dpn_block) +
           number % DPN_LARGE_SLOTS * dpn_eager_stride(eager_bytes);
}

/* The immediate of a stripe. Bits: slot 5, sub 3, stripe 4, count - 1 4, has_record 1, generation
 * 15. */
struct dpn_imm {
    unsigned slot, sub, stripe, count, generation;
    bool has_record;
};

static inline uint32_t dpn_imm_pack(struct dpn_imm m)
{
    return m.slot << 27 | m.sub << 24 | m.stripe << 20 | (m.count - 1) << 16 |
           (uint32_t)m.has_record << 15 | m.generation;
}

static inline struct dpn_imm dpn_imm_unpack(uint32_t imm)
{
    return (struct dpn_imm){imm >> 27,    imm >> 24 & 7, imm >> 20 & 15, (imm >> 16 & 15) + 1,
                            imm & 0x7fff, imm >> 15 & 1};
}

/* The low half of an eager message's immediate; the high half is its number. A probe's immediate is
 * DPN_GENERATIONS. */
enum { DPN_EAGER_IMM = 0xffff };

/* The kind of a work request, stored in its wr_id. */
enum dpn_work_kind {
    DPN_WORK_DATA,
    DPN_WORK_PROBE,
    DPN_WORK_CTS,
    DPN_WORK_RECV,
    DPN_WORK_FLUSH,
    DPN_WORK_COPY, /* of an eager message to GPU memory */
    DPN_WORK_HEARTBEAT,
    DPN_WORK_UNSIGNALED /* completes only on failure; a later work request is signaled */
};

struct dpn_work {
    enum dpn_work_kind kind;
    unsigned qp, epoch; /* of a flush or copy: the rail, and the epoch of its loopback queue pair */
    unsigned slot, stripe;
    unsigned requests; /* entries of the send queue that its completion frees */
};

static inline uint64_t dpn_work_pack(struct dpn_work w)
{
    return (uint64_t)w.kind << 56 | (uint64_t)w.qp << 48 | (uint64_t)w.epoch << 32 |
           (uint64_t)w.slot << 24 | (uint64_t)w.stripe << 16 | w.requests;
}

static inline struct dpn_work dpn_work_unpack(uint64_t id)
{
    return (struct dpn_work){(enum dpn_work_kind)(id >> 56), id >> 48 & 0xff, id >> 32 & 0xffff,
                             id >> 24 & 0xff, id >> 16 & 0xff, id & 0xffff};
}

/* ---- rails and queue pairs ------------------------------------------------------------------- */

/* What a worker does for a queue pair, and how that ended. */
struct dpn_qp_job {
    struct dpn_job base;
    struct dpn_queues *queues; /* of which it reads what no longer changes */
    union {
        struct dpn_qp *qp;
        struct dpn_rail *rail; /* its loopback queue pair */
    } of;
    struct dpn_qp_info ours, theirs;
    struct dpn_gids gids; /* making: ours, for the peer; answering: the peer's */
    bool has_destroyed;
    int err; /* destroying: an errno */
    char why[384];
};

enum dpn_loop_state { DPN_LOOP_IDLE, DPN_LOOP_OPENING, DPN_LOOP_CLOSING };

/* A loopback queue pair, see verbs/flush.c. */
struct dpn_loop {
    bool is_wanted;    /* the device writes to GPUs */
    struct ibv_qp *qp; /* NULL: it failed */
    enum dpn_loop_state state; /* what a worker does with `next` */
    struct ibv_qp *next;
    struct dpn_qp_job job;
    char why[160]; /* it failed */
    uint16_t epoch;
    int failures; /* consecutive */
    int64_t retry_ns;
    int64_t asked_ns;  /* 0: no read is outstanding */
    uint32_t written;  /* completions of data that the device has written to a GPU */
    uint32_t flushed;  /* how many of these are known to be in the GPU's memory */
};

struct dpn_rail {
    struct dpn_port *port;
    struct ibv_cq *cq;
    struct ibv_mr *block_mr;
    struct dpn_loop loop;
    char peer[DPN_CONTROL_NAME]; /* name of the peer's port */
    int speed_mbps;           /* of the slower side */
    bool adaptive;            /* adaptive routing: packets may arrive out of order */
};

enum dpn_qp_state {
    DPN_QP_DOWN,       /* no queue pair */
    DPN_QP_MAKING,     /* by a worker; the receiver's connects it, too */
    DPN_QP_OPENING,    /* the sender waits for OPENED, the receiver for the probe */
    DPN_QP_CONNECTING, /* sender: by a worker */
    DPN_QP_PROBING,    /* sender: the probe was posted */
    DPN_QP_UP,
    /* it has failed: */
    DPN_QP_STOPPING,   /* a worker moves it to the error state */
    DPN_QP_DRAINING,   /* until outstanding work requests are flushed */
    DPN_QP_DESTROYING, /* by a worker */
    DPN_QP_ABANDONING, /* the same, of one that the peer never had */
    DPN_QP_ENDING      /* the same, as the connection has ended */
};

struct dpn_qp {
    enum dpn_qp_state state;
    uint8_t rail;
    uint16_t epoch;
    struct ibv_qp *ibv;
    uint32_t psn;
    uint8_t mtu; /* enum ibv_mtu */
    unsigned inline_bytes;
    unsigned sends_out;    /* signaled sends that have not completed */
    unsigned requests_out; /* entries of the send queue in use */
    unsigned unsignaled;
    unsigned recvs_out, recvs_owed; /* posted; to be posted with the next batch */
    unsigned rewrites_out;          /* receiver, see verbs/cts_write.c */
    uint64_t peer_block;
    uint32_t peer_key, peer_number;
    struct dpn_gid gid, peer_gid;
    /* sender: the prepared work request for inline messages, and its data segment */
    struct ibv_send_wr inline_wr;
    struct ibv_sge inline_sge;
    uint64_t inline_work;
    /* in this epoch; once both are set it may be opened again */
    bool is_closed_there, is_closed_here;
    bool is_given_up; /* the peer closed it while a worker was making it */
    bool has_been_up;
    bool is_without_ece; /* connecting with ECE failed */
    bool uses_ece;
    unsigned completed, seen; /* compared to notice that nothing completes */
    unsigned drain_polls;
    int64_t since_ns; /* when this state began, or of the last completion */
    int64_t retry_ns; /* time of the next attempt */
    int failures;     /* consecutive */
    struct dpn_qp_job job; /* while it is running, only the worker touches ibv and what connecting
                              sets */
};

/* What a sender and a receiver begin with. */
struct dpn_queues {
    struct dpn_comm *comm;
    int error; /* why the connection has ended; 0: it has not */
    bool is_sender;
    bool any_order;     /* messages of a queue pair may arrive out of order */
    bool is_degraded;   /* some queue pairs are not up */
    bool has_lost_loop; /* a loopback queue pair failed and will be opened again */
    uint8_t traffic_class, service_level;
    uint16_t up; /* bit mask of queue pairs in state UP */
    /* sender: bit mask of queue pairs that the placement names; 0: no preference */
    uint16_t preferred;
    int rail_count, qp_count, qps_per_rail;
    unsigned open_count; /* sends or receives that are not tested to their end */
    int failures;        /* failed queue pairs since a message completed, while requests were open */
    uint32_t max_message;
    uint32_t eager_bytes; /* largest eager message; 0: none are sent */
    struct dpn_block *block;
    struct dpn_rail rails[DPN_MAX_RAILS];
    struct dpn_qp qps[DPN_MAX_QPS];
    int64_t down_ns;  /* for how long no queue pair has been up */
    char reason[384]; /* why the last queue pair failed */
    int64_t failed_ns; /* when `error` was */
    char why[512];
};

/* ---- requests -------------------------------------------------------------------------------- */

enum dpn_request_kind { DPN_SEND, DPN_RECV, DPN_FLUSH };

struct dpn_verbs_request {
    struct dpn_request base;
    struct dpn_queues *q;
    enum dpn_request_kind kind;
    unsigned index;
    unsigned left; /* stripes, receives or reads that have not completed */
};

struct dpn_verbs_memory {
    struct dpn_memory base;
    uintptr_t from, to;
    int type;
    int rail_count;
    struct ibv_mr *mrs[DPN_MAX_RAILS]; /* indexed by rail */
    struct dpn_hca *hcas[DPN_MAX_RAILS];
};

/* How long to wait after so many failures: twice as long each time. */
static inline int64_t dpn_backoff_ns(int failures, int64_t first_ns, int64_t last_ns)
{
    const int64_t wait_ns = first_ns << (failures < 7 ? failures : 7);

    return wait_ns < last_ns ? wait_ns : last_ns;
}

/* ---- verbs/qp.c: one queue pair -------------------------------------------------------------- */

/* Record the first error of the connection; later ones are ignored. What called into the connection
 * ends it then: dpn_verbs_has_ended. */
void dpn_verbs_fail(struct dpn_queues *q, int error, const char *fmt, ...) DP_PRINTF(3, 4);

/* A queue pair has failed: log it, and stop it. */
void dpn_qp_fail(struct dpn_queues *q, struct dpn_qp *qp, const char *what, const char *status,
                 const char *hint);
/* Write nothing: an unreachable peer does not acknowledge it. */
void dpn_qp_heartbeat(struct dpn_queues *q, struct dpn_qp *qp);
static inline const struct dpn_port *dpn_qp_port(const struct dpn_queues *q,
                                                 const struct dpn_qp *qp)
{
    return q->rails[qp->rail].port;
}
void dpn_qp_set_state(struct dpn_queues *q, struct dpn_qp *qp, enum dpn_qp_state state);
void dpn_qp_is_up(struct dpn_queues *q, struct dpn_qp *qp);
/* Each begins what a worker does: the sender makes it and then connects it with the receiver's,
 * which is made and connected at once. The job has the result. */
void dpn_qp_open(struct dpn_queues *q, struct dpn_qp *qp);
void dpn_qp_answer(struct dpn_queues *q, struct dpn_qp *qp, const struct dpn_open_qp *open);
void dpn_qp_connect(struct dpn_queues *q, struct dpn_qp *qp, const struct dpn_opened_qp *opened);
/* state: DPN_QP_DESTROYING or DPN_QP_ABANDONING. */
void dpn_qp_destroy(struct dpn_queues *q, struct dpn_qp *qp, enum dpn_qp_state state);
int dpn_qp_post_recvs(struct dpn_queues *q, struct dpn_qp *qp, unsigned count);
/* Write nothing, with an immediate for the receiver: an acknowledged write proves that the path
 * works; two connected queue pairs do not. */
int dpn_qp_probe(struct dpn_queues *q, struct dpn_qp *qp);
/* The connection has ended: destroy queue pairs. Returns whether all are destroyed. */
bool dpn_qps_end(struct dpn_queues *q);
/* The same, waiting for it. false: a worker is still busy at until_ns. */
bool dpn_qps_close(struct dpn_queues *q, int64_t until_ns);

/* Whether it has not failed, nor is it still being made. */
static inline bool dpn_qp_is_connected(const struct dpn_qp *qp)
{
    return qp->state == DPN_QP_OPENING || qp->state == DPN_QP_PROBING || qp->state == DPN_QP_UP;
}
static inline unsigned dpn_qp_index(const struct dpn_queues *q, const struct dpn_qp *qp)
{
    return (unsigned)(qp - q->qps);
}

/* Fill in what is the same for all inline messages of a queue pair, once it is connected. */
void dpn_inline_prepare(struct dpn_queues *q, struct dpn_qp *qp);

/* verbs/memory.c */
int dpn_verbs_reg(const struct dpn_queues *q, const struct dpn_region *region,
                  struct dpn_memory **out);
void dpn_verbs_memory_free(struct dpn_verbs_memory *memory);

static inline struct dpn_verbs_request dpn_verbs_new_request(struct dpn_queues *q,
                                                            enum dpn_request_kind kind,
                                                            unsigned index)
{
    return (struct dpn_verbs_request){.base = {.comm = q->comm}, .q = q, .kind = kind,
                                      .index = index};
}

static inline bool dpn_memory_holds(const struct dpn_verbs_memory *memory, const void *data,
                                    size_t size)
{
    const uintptr_t at = (uintptr_t)data;

    return !size || (memory && at >= memory->from && at <= memory->to && size <= memory->to - at);
}

#endif
