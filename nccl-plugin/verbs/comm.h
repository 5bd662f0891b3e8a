/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - a connection over RDMA.
 *
 *      rail        a port of this side and one of the peer
 *      queue pair  two connected queue pairs, one a side, on a rail; a rail may have several
 *      CTS entry   64 bytes that the receiver writes into the sender's memory: a receive buffer is
 *                  ready for one message (clear to send)
 *      slot, sub   index of a receive, and of a buffer of it
 *      stripe      the part of a message that goes over one queue pair
 *      block       the memory of a side that the peer writes to, and that it writes from
 *      eager       a short message that does not wait for its CTS entry: verbs/recv.c
 *      inline      a very short eager message, which is seen without a completion: verbs/inline.h
 *
 *      receiver                                             sender
 *      irecv: CTS entries -- RDMA write, any queue pair -->  its ring of CTS entries
 *      the receive buffer <-- RDMA write, a stripe per queue pair --  isend
 *      completion         <-- the immediate of each stripe: which message, which stripe of how many
 *
 * The receiver may delay CTS entries and write several at once (verbs/cts_write.c). The immediates
 * tell what has arrived, in whatever order. A stripe that is sent again, over another queue pair,
 * writes the same bytes to the same address. When a queue pair fails, each side destroys its own
 * one and then reports that (CLOSED); the receiver's report says what has arrived. Only then is the
 * rest sent over other queue pairs. So no write of the old queue pair can arrive after the receive
 * is done and its memory has been reused, and no buffer is read that was returned to its owner.
 *
 * A file calls only those in lines above its own:
 *
 *      worker, ibv_qp, qp                calls that may block; one queue pair, and how it fails
 *      control, flush                    messages beside the queue pairs; loopback
 *      cts_write, eager_send
 *      send, recv
 *      qps, reconnect                    completions; what both sides tell each other
 *      progress                          all of these, at intervals; stalls; the end of the connection
 *      memory, choice, handshake         registrations; ports; how it begins
 *      verbs                             the transport
 */
#ifndef DPN_VERBS_COMM_H
#define DPN_VERBS_COMM_H

#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/cts.h"
#include "nccl-plugin/options.h"
#include "nccl-plugin/verbs/verbs.h"
#include "nccl-plugin/verbs/device.h"
#include "nccl-plugin/verbs/inline.h"
#include "nccl-plugin/verbs/control_message.h"
#include "nccl-plugin/verbs/worker.h"

#include <endian.h>

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
    DPN_GENERATIONS = 0x7fff, /* the largest 15-bit value is reserved for probes */
    DPN_SENDS = 256, /* in flight; NCCL shares a connection among many users (PXN), each with 32 */
    DPN_DELAY_NS = 20000, /* how long CTS entries are delayed while nothing arrives */
    DPN_STRIPE_UNIT = 128 /* an LL128 line of a GPU is never divided */
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

/* ---- requests -------------------------------------------------------------------------------- */

enum dpn_request_kind { DPN_SEND, DPN_RECV, DPN_FLUSH };

struct dpn_verbs_request {
    struct dpn_request base;
    struct dpn_verbs *verbs;
    enum dpn_request_kind kind;
    unsigned index;
    unsigned left; /* stripes, receives or reads that have not completed */
};

enum dpn_stripe_state { DPN_STRIPE_WAITING, DPN_STRIPE_SENT, DPN_STRIPE_DONE };

struct dpn_stripe {
    uint32_t offset, len, sent;
    unsigned chains; /* chains of work requests that have not completed */
    enum dpn_stripe_state state;
    uint8_t qp;
    uint16_t epoch;
};

struct dpn_send {
    struct dpn_verbs_request base;
    const char *data;
    size_t size;
    int tag;
    const struct dpn_verbs_memory *memory;
    struct dpn_place place;
    unsigned generation;
    bool has_record, is_eager, is_inline;
    uint32_t number; /* of an eager message */
    uint32_t inline_len;
    unsigned count;
    struct dpn_stripe stripes[DPN_MAX_QPS];
};

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

struct dpn_verbs_memory {
    struct dpn_memory base;
    uintptr_t from, to;
    int type;
    int rail_count;
    struct ibv_mr *mrs[DPN_MAX_RAILS]; /* indexed by rail */
    struct dpn_hca *hcas[DPN_MAX_RAILS];
};

/* The destination of a message that is cleared to send; whether it was sent, and over which queue
 * pairs. */
struct dpn_target {
    uint64_t address;
    uint32_t keys[DPN_MAX_RAILS];
    uint16_t generation;
    bool is_done;
    uint8_t count;
    uint8_t qps[DPN_MAX_QPS];
};

/* An eager message, kept until its slot is free again. */
struct dpn_eager_send {
    uint32_t number, size;
    int tag;
    bool waits; /* its CTS entry has not arrived */
    bool is_done;
    uint8_t qp;
};

/* How long to wait after so many failures: twice as long each time. */
static inline int64_t dpn_backoff_ns(int failures, int64_t first_ns, int64_t last_ns)
{
    const int64_t wait_ns = first_ns << (failures < 7 ? failures : 7);

    return wait_ns < last_ns ? wait_ns : last_ns;
}

/* ---- the connection -------------------------------------------------------------------------- */

enum dpn_step {
    DPN_STEP_BEGIN,
    DPN_STEP_PLAN,
    DPN_STEP_QPS,
    DPN_STEP_NO_QPS,   /* no queue pair came up, both sides agree to decline */
    DPN_STEP_DECLINED, /* the wire is free for other use once the last control message is sent */
    DPN_STEP_READY
};

struct dpn_control_message; /* a control message in flight */

/* The control channel: the wire beside the queue pairs, and the state that outlives a lost wire.
 * See verbs/control.c and verbs/reconnect.c. */
struct dpn_channel {
    uint32_t sent, acked, received;
    bool is_resumed; /* control messages may be sent over this wire */
    struct dpn_resume resume;
    struct dp_wire_request resume_req;

    struct dp_wire_address acceptor; /* of the peer's process */
    bool peer_has_acceptor, has_acceptor;
    uint64_t label;                     /* 0: a lost wire is not replaced */
    _Atomic(struct dp_wire *) accepted; /* receiver: a new wire that the watchdog accepted */
    struct dp_wire *attempt;            /* a connection attempt in progress, or NULL */
    bool is_lost, is_final;             /* the wire is lost; and no attempt will replace it */
    int64_t since_ns, lost_ns; /* when it was lost; for how long, counting only time with polls */
    int attempts, refusals;    /* refusals: consecutive */
    int64_t attempt_ns, attempt_until_ns, heartbeat_ns;
    char why[224];
};

/* Which ports this side offers. */
struct dpn_choice {
    struct dpn_device const *device; /* NCCL's device, or own_device */
    struct dpn_device own_device;    /* as the placement wants it */
    int placed_ports;                /* the first ports of own_device, which the placement names */
    int placed_qps, placed_class;
    /* the device's ports, then those that may replace them */
    struct dpn_port *ports[DPN_MAX_RAILS];
    int port_count;
};

/* The queue pairs of a connection, and what they share. */
struct dpn_queues {
    bool is_sender;
    bool any_order; /* messages of a queue pair may arrive out of order */
    bool is_degraded; /* some queue pairs are not up */
    uint8_t traffic_class, service_level;
    uint16_t up;    /* bit mask of queue pairs in state UP */
    /* sender: bit mask of queue pairs that the placement names; 0: no preference */
    uint16_t preferred;
    int rail_count, qp_count, qps_per_rail;
    int failures;     /* failed queue pairs since a message completed, while requests were open */
    uint32_t max_message;
    struct dpn_block *block;
    struct dpn_rail rails[DPN_MAX_RAILS];
    struct dpn_qp qps[DPN_MAX_QPS];
    int64_t down_ns;  /* for how long no queue pair has been up */
    char reason[384]; /* why the last queue pair failed */
};

struct dpn_sender {
    bool may_eager; /* the receiver's memory takes eager messages, see DPN_CTS_NO_EAGER */
    uint32_t eager_sent;
    struct dpn_eager_send eager_sends[DPN_EAGER_SLOTS]; /* indexed by number */
    struct dpn_send sends[DPN_SENDS];    /* pages of entries that were never used take no memory */
    uint64_t sends_used[DPN_SENDS / 64]; /* bit mask */
    struct dpn_cts_list cts_list;
    struct dpn_cts arriving; /* a group whose CTS entries are arriving */
    unsigned cts_of_group;   /* entries of it that have arrived */
    unsigned taken_of_group; /* bit mask of those with DPN_CTS_TAKEN */
    struct dpn_target targets[NCCL_NET_MAX_REQUESTS][DPN_MAX_RECEIVES];
    uint32_t cts_read;
    unsigned waiting; /* stripes that are not completely posted */
    unsigned next_qp;
    struct dpn_closed_receiver reports[DPN_MAX_QPS];
};

struct dpn_receiver {
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
    uint32_t eager_seen; /* all messages before this number have arrived */
    /* Bit masks by number: arrived out of order; occupying a slot; not matched; not inline. */
    uint64_t eager_arrived, eager_busy, eager_waits, eager_large;
    unsigned unpolled; /* inline messages since completions were polled last */
    uint32_t flushes_free;
    struct dpn_flush flushes[NCCL_NET_MAX_REQUESTS];
    bool has_lost_loop; /* a loopback queue pair failed and will be opened again */
};

/* The control messages of a connection. */
struct dpn_control {
    struct dp_wire_request incoming;
    union dpn_control_body received;
    bool is_receiving;    /* a receive for `incoming` is posted */
    bool has_peer_failed; /* the peer sent FAILED */
    struct dpn_control_message *unacked; /* oldest first */
    struct dpn_channel channel;
};

/* See verbs/progress.c. */
struct dpn_stall {
    bool has_moved;     /* something completed or arrived since the last poll */
    uint32_t moves;     /* number of polls with has_moved */
    int64_t stalled_ns; /* time without it while requests were open */
    /* receiver */
    int64_t reported_ns; /* stalled_ns at the last report */
    uint32_t number;     /* number of the control message with that report */
    /* sender */
    uint32_t peer_moves, cts_read; /* at the last report */
    unsigned reports;              /* consecutive reports with the same contents */
};

/* A part for each owner: memory of its own would cost a load on the way to it. */
struct dpn_verbs {
    struct dpn_comm *comm;
    enum dpn_step step;
    int error;
    bool has_told;        /* the peer knows */
    uint32_t eager_bytes; /* largest eager message; 0: none are sent */
    uint32_t eager_taken; /* eager messages that were copied */
    unsigned idle;        /* consecutive polls that found nothing */
    unsigned polls; /* other polls; these check deadlines and control messages at intervals, too */
    struct dpn_queues queues;
    struct dpn_receiver recv;
    struct dpn_sender send;
    struct dpn_control control;
    struct dpn_choice choice;
    struct dpn_stall stall;
    int64_t polled_ns, peer_gone_ns;
    int64_t failed_ns; /* when `error` was */
    char why[512];
    bool is_watched; /* is in the watchdog's list; protected by the watchdog's lock */
    struct dpn_verbs *next_watched;
};

/* verbs/qp.c. Record the first error of the connection; later ones are ignored. What called
 * into the connection ends it then: dpn_verbs_has_ended. */
void dpn_verbs_fail(struct dpn_verbs *v, int error, const char *fmt, ...) DP_PRINTF(3, 4);

/* A queue pair has failed: log it, and stop it. */
void dpn_qp_fail(struct dpn_verbs *v, struct dpn_qp *qp, const char *what, const char *status,
                 const char *hint);
/* Write nothing: an unreachable peer does not acknowledge it. */
void dpn_qp_heartbeat(struct dpn_verbs *v, struct dpn_qp *qp);

/* verbs/choice.c. Collect the device's ports and, if the sender has to match the receiver's subnet,
 * others that may replace them. */
void dpn_choice_gather(struct dpn_choice *c, bool is_sender);
void dpn_choice_describe(const struct dpn_choice *c, struct dpn_port_info *ports);
/* The largest work request that all ports carry, in bytes. */
uint32_t dpn_choice_max_message(const struct dpn_choice *c);
/* Pair ports of the same link layer; ports of the side that has fewer are used several times, in
 * turn. */
void dpn_choice_pair(const struct dpn_choice *c, const struct dpn_hello *hello,
                     const struct dpn_port_info *own, struct dpn_plan *plan);
/* Before a side describes its ports: choose those that the placement names for a flow between two
 * workers. Returns the device that counts its bytes, dev where the placement names none. The sender
 * prefers the queue pairs of these, once there are some. */
int dpn_choice_place(struct dpn_choice *c, bool is_sender, int32_t from, int32_t to,
                     enum dpn_traffic traffic, int dev);
void dpn_choice_prefer(const struct dpn_choice *c, const struct dpn_plan *plan,
                       struct dpn_queues *q);

/* verbs/control.c: the control messages. */
void dpn_control_send(struct dpn_verbs *v, enum dpn_control_kind kind,
                      const union dpn_control_body *body);
/* Receive the next message into v->control.received. false: there is none. */
bool dpn_control_receive(struct dpn_verbs *v, enum dpn_control_kind *kind);
/* Whether a control message of this side is still being sent. */
bool dpn_control_is_sending(struct dpn_verbs *v);
/* Whether the next one, which the next poll takes, tells that the peer has ended the connection. */
bool dpn_control_tells_the_end(struct dpn_verbs *v);
void dpn_control_free_all(struct dpn_verbs *v);
/* Send FAILED with the reason in v->why. */
void dpn_control_send_failed(struct dpn_verbs *v);
/* Whether a CLOSED message, for which other messages may wait, is not acknowledged yet. */
bool dpn_control_has_unacked_closed(const struct dpn_verbs *v);
/* Read what is left, before the wire is closed. */
void dpn_control_drain(struct dpn_verbs *v);
/* Begin with a new wire; process the peer's RESUME, after which both sides send again. */
void dpn_control_resume(struct dpn_verbs *v);
void dpn_control_take_resume(struct dpn_verbs *v, const struct dpn_resume *resume);

/* verbs/reconnect.c: replaces the wire for control messages when it is lost. */
void dpn_channel_poll(struct dpn_verbs *v, int64_t now_ns);
void dpn_channel_resumed(struct dpn_verbs *v);
void dpn_channel_close(struct dpn_verbs *v);

/* Its acceptors listen for peers that have lost the control wire of a connection. Any thread. */

/* Called before and after a fork. Between the two the child calls dpn_acceptors_forget: the
 * listeners that it inherited stay with its parent. */
void dpn_acceptors_lock(void);
void dpn_acceptors_unlock(void);
void dpn_acceptors_forget(void);

/* The address of the acceptor on this interface, and a label, never 0, for one connection. Errors
 * are those of a wire's listen. */
int dpn_acceptor_use(const char *interface, struct dp_wire_address *address, uint64_t *label);
void dpn_acceptor_release(const char *interface);

/* DP_EAGAIN; or 0 with an accepted wire and the label of the connection that it is for. */
int dpn_acceptor_accept(uint64_t *label, struct dp_wire **out);

/* verbs/handshake.c. Continue the handshake. 0: there are queue pairs; DP_EAGAIN: call again;
 * otherwise there is no RDMA to this peer. */
int dpn_verbs_handshake(struct dpn_verbs *v);
/* The peer does not connect here any more. */
void dpn_verbs_release_acceptor(const struct dpn_verbs *v);
/* The completion queues and the registered block of each rail, whose queue pairs are all gone. */
void dpn_rails_close(struct dpn_queues *q);

/* verbs/qp.c: one queue pair. */
static inline const struct dpn_port *dpn_qp_port(const struct dpn_queues *q,
                                                 const struct dpn_qp *qp)
{
    return q->rails[qp->rail].port;
}
void dpn_qp_set_state(struct dpn_queues *q, struct dpn_qp *qp, enum dpn_qp_state state);
void dpn_qp_is_up(struct dpn_queues *q, struct dpn_qp *qp);
/* Each begins what a worker does: the sender makes it and then connects it with the receiver's,
 * which is made and connected at once. The job has the result. */
void dpn_qp_make(struct dpn_queues *q, struct dpn_qp *qp, uint16_t epoch);
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

/* verbs/qps.c: what both sides tell each other about them. */
void dpn_qp_open(struct dpn_verbs *v, struct dpn_qp *qp);
void dpn_qp_take_open(struct dpn_verbs *v, const struct dpn_open_qp *open);
void dpn_qp_take_opened(struct dpn_verbs *v, const struct dpn_opened_qp *opened);
void dpn_qp_take_closed(struct dpn_verbs *v, unsigned qp, unsigned epoch);
/* Finish draining, retry, and check deadlines. */
void dpn_qps_poll(struct dpn_verbs *v, int64_t now_ns);
/* Whether one is being connected, or destroyed: dpn_qps_poll soon has something to do. */
bool dpn_qps_are_changing(const struct dpn_verbs *v);
/* Whether it has not failed, nor is it still being made. */
static inline bool dpn_qp_is_connected(const struct dpn_qp *qp)
{
    return qp->state == DPN_QP_OPENING || qp->state == DPN_QP_PROBING || qp->state == DPN_QP_UP;
}
static inline unsigned dpn_qp_index(const struct dpn_queues *q, const struct dpn_qp *qp)
{
    return (unsigned)(qp - q->qps);
}

/* verbs/progress.c */
void dpn_verbs_progress(struct dpn_verbs *v);
/* The same, with everything that is otherwise done only at intervals. */
void dpn_verbs_progress_all(struct dpn_verbs *v);
/* After an error, call again until this is true: the peer is told, and all queue pairs are
 * destroyed, so that no memory is accessed any more, and the error may be reported. After
 * DUALPIPE_NET_TIMEOUT it is true in any case. */
bool dpn_verbs_has_ended(struct dpn_verbs *v);

/* verbs/qps.c: process completions only. Returns whether there were any. */
bool dpn_verbs_poll(struct dpn_verbs *v);
/* The same without looking for inline messages. */
bool dpn_verbs_poll_queues(struct dpn_verbs *v);

/* verbs/send.c. Errors of the connection are the caller's business. */
int dpn_verbs_isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out);
void dpn_verbs_push(struct dpn_verbs *v);
/* Process CTS entries that have arrived. */
void dpn_verbs_read_cts(struct dpn_verbs *v);
/* Whether the report lacks a message that the device has acknowledged. */
bool dpn_verbs_has_lost(const struct dpn_verbs *v, const struct dpn_closed_receiver *report);
void dpn_verbs_sent(struct dpn_verbs *v, struct dpn_work work);
/* A queue pair is closed on both sides: send again what did not arrive over it. */
void dpn_verbs_resend(struct dpn_verbs *v, unsigned qp, const struct dpn_closed_receiver *report);

/* Tell the receiver that its buffer is too small for a message of this size. */
void dpn_verbs_refuse(struct dpn_verbs *v, size_t size, struct dpn_place place);

/* verbs/eager_send.c, verbs/recv.c: eager messages. Sender: */
bool dpn_eager_may(const struct dpn_verbs *v, const struct dpn_piece *piece);
/* Process a credit. */
void dpn_eager_take_credit(struct dpn_verbs *v, const struct dpn_cts_entry *entry);
void dpn_eager_begin(struct dpn_verbs *v, struct dpn_send *send);
/* A complete group has been cleared to send. */
void dpn_eager_match_cts(struct dpn_verbs *v, unsigned slot, unsigned count);
void dpn_eager_credit(struct dpn_verbs *v, uint16_t taken);
void dpn_eager_done(struct dpn_verbs *v, const struct dpn_send *send);
bool dpn_eager_has_arrived(const struct dpn_closed_receiver *report, uint32_t number);
bool dpn_eager_is_lost(const struct dpn_verbs *v, unsigned qp,
                       const struct dpn_closed_receiver *report);
/* Receiver: */
void dpn_eager_take(struct dpn_verbs *v, uint16_t low, uint32_t bytes);
/* Process inline messages. Returns whether there were any. */
bool dpn_eager_take_inline(struct dpn_verbs *v);
static inline bool dpn_eager_poll(struct dpn_verbs *v)
{
    if (v->queues.is_sender || !v->eager_bytes)
        return false;
    const struct dpn_inline_message *next =
        &v->queues.block->inlines[v->recv.eager_seen % DPN_EAGER_SLOTS];
    return __atomic_load_n(&next->head.number, __ATOMIC_RELAXED) == v->recv.eager_seen &&
           dpn_eager_take_inline(v);
}
void dpn_eager_copied(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, uint32_t number);
/* Whether messages have arrived that no open receive waits for. The sender may have closed the
 * connection after these; they are still to be delivered. */
bool dpn_eager_has_unclaimed(const struct dpn_verbs *v);

/* verbs/recv.c. Errors of the connection are the caller's business. */
int dpn_verbs_irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                    struct dpn_request **out);
void dpn_verbs_take_imm(struct dpn_verbs *v, unsigned qp, uint32_t imm, uint32_t bytes);
void dpn_verbs_report(const struct dpn_verbs *v, struct dpn_closed_receiver *report);

/* verbs/cts_write.c. Make CTS entries for a receive that is posted, or delay that. */
void dpn_cts_make(struct dpn_verbs *v, int n, const struct dpn_piece *pieces);
/* Write the CTS entries that are made and not written. */
void dpn_cts_push(struct dpn_verbs *v);
/* Make CTS entries for all delayed receives. */
void dpn_cts_release(struct dpn_verbs *v);
/* Called after polls that found nothing: after DPN_DELAY_NS of these, make the CTS entries, as the
 * sender may wait for them. */
void dpn_cts_release_late(struct dpn_verbs *v);
static inline void dpn_cts_release_if_idle(struct dpn_verbs *v, bool found)
{
    if (found || !v->recv.delayed)
        v->recv.delayed_polls = 0;
    else if (v->recv.delayed_polls++ % 4 == 0) /* reading the clock costs as much as a poll */
        dpn_cts_release_late(v);
}

/* Note that a message of `size` arrived in a buffer of `room` bytes, to predict the next one. */
void dpn_verbs_note_size(struct dpn_verbs *v, size_t room, size_t size);
/* The sender has closed this queue pair after it had read the CTS entries before cts_read: later
 * ones that went over this queue pair are written again. */
void dpn_cts_rewind(struct dpn_verbs *v, unsigned qp, uint32_t cts_read);
/* A write of CTS entries has completed. */
void dpn_cts_write_done(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_work work);

/* verbs/flush.c */
int dpn_verbs_iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                     struct dpn_request **out);
enum {
    DPN_LOOP_QUEUE = NCCL_NET_MAX_REQUESTS + 2 * DPN_EAGER_SLOTS
}; /* a copy is a write and a read */
int dpn_loop_open(struct dpn_rail *rail);
/* As dpn_qps_end and dpn_qps_close. */
bool dpn_loop_end(struct dpn_verbs *v, struct dpn_rail *rail);
bool dpn_loop_close(struct dpn_rail *rail, int64_t until_ns);
/* Process a completion of a flush or a copy. Returns whether it is done; a copied message is the
 * caller's business. */
bool dpn_loop_take(struct dpn_verbs *v, struct dpn_work work, const struct ibv_wc *wc);
void dpn_loops_poll(struct dpn_verbs *v, int64_t now_ns);
/* Whether the port's device accesses GPU memory. */
bool dpn_port_reaches_gpus(const struct dpn_port *port);
/* Whether an eager message can be copied to all memory that the port's device accesses. */
bool dpn_port_takes_eager(const struct dpn_port *port);
void dpn_verbs_copy_to_gpu(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub,
                           const void *from, unsigned slot);

/* verbs/memory.c */
int dpn_verbs_reg(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out);
void dpn_verbs_dereg(struct dpn_comm *comm, struct dpn_memory *base);

/* Inline messages, verbs/eager_send.c. Fill in what is the same for all inline messages of a queue
 * pair, once it is connected. */
void dpn_inline_prepare(struct dpn_queues *q, struct dpn_qp *qp);
/* Post an inline message. Returns whether that succeeded. */
bool dpn_inline_post(struct dpn_verbs *v, struct dpn_send *send);

/* verbs/cts_write.c */
void dpn_cts_entry_seal(struct dpn_cts_entry *entry);
/* Copy the entry at `from` if it is CTS entry `number` and complete. */
bool dpn_cts_entry_read(const struct dpn_cts_entry *from, uint32_t number,
                        struct dpn_cts_entry *out);

static inline struct dpn_verbs_request dpn_verbs_new_request(struct dpn_verbs *v,
                                                            enum dpn_request_kind kind,
                                                            unsigned index)
{
    return (struct dpn_verbs_request){.base = {.comm = v->comm}, .verbs = v, .kind = kind,
                                      .index = index};
}

/* Whether any request is open. */
static inline bool dpn_verbs_is_busy(const struct dpn_verbs *v)
{
    bool any = v->recv.free != UINT32_MAX;

    for (int w = 0; w < DPN_SENDS / 64; w++)
        any |= v->send.sends_used[w] != 0;
    return any;
}

/* The next send in use from i on; DPN_SENDS: none. */
static inline unsigned dpn_verbs_next_send(const struct dpn_verbs *v, unsigned i)
{
    for (unsigned w = i / 64, at = i % 64; w < DPN_SENDS / 64; w++, at = 0) {
        const uint64_t rest = v->send.sends_used[w] >> at << at;
        if (rest)
            return w * 64 + (unsigned)__builtin_ctzll(rest);
    }
    return DPN_SENDS;
}

static inline bool dpn_memory_holds(const struct dpn_verbs_memory *memory, const void *data,
                                    size_t size)
{
    const uintptr_t at = (uintptr_t)data;

    return !size || (memory && at >= memory->from && at <= memory->to && size <= memory->to - at);
}

#endif
