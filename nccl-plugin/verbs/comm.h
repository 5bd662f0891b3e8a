/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - a connection over RDMA.
 *
 *      rail        a port here and a port there
 *      queue pair  one here and one there, connected, on a rail; several per rail are possible
 *      CTS entry   64 bytes that the receiver writes into the sender's memory: a receive buffer is
 *                  ready for one message (clear to send)
 *      stripe      the part of a message that goes over one queue pair
 *      block       the memory of a side that the other side writes to, and that it writes from
 *      eager       a short message that does not wait for its CTS entry: verbs/eager.c
 *      inline      a very short eager message, which is seen without a completion: verbs/inline.h
 *
 *      receiver                                             sender
 *      irecv: CTS entries -- RDMA write, any queue pair -->  its ring of CTS entries
 *      the receive buffer <-- RDMA write, a stripe per queue pair --  isend
 *      completion         <-- the immediate of each stripe: which message, which stripe of how many
 *
 * The receiver may delay CTS entries and write several at once (verbs/recv.c). It knows from the
 * immediates what has arrived, in whatever order. A stripe that is sent again, over another queue
 * pair, writes the same bytes to the same place. When a queue pair fails, each side destroys its
 * own end and then reports that (FENCED); the receiver's report says what has arrived. Only then is
 * the rest sent over other queue pairs. So no write of the old queue pair can arrive after the
 * receive is done and its memory has been reused, and no buffer is read that was returned to its
 * owner.
 */
#ifndef DPN_VERBS_COMM_H
#define DPN_VERBS_COMM_H

#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/cts.h"
#include "nccl-plugin/net/traffic.h"
#include "nccl-plugin/verbs/verbs.h"
#include "nccl-plugin/verbs/device.h"
#include "nccl-plugin/verbs/inline.h"
#include "nccl-plugin/verbs/control_message.h"
#include "nccl-plugin/verbs/stall.h"

#include <endian.h>

enum {
    DPN_PLACES = NCCL_NET_MAX_REQUESTS * DPN_MAX_RECEIVES, /* of receives that are open */
    DPN_EAGER_SLOTS = 64, /* eager messages; each may end a receive with unread CTS entries */
    DPN_LARGE_SLOTS = 16, /* of those that are not inline, the room; a divisor of the former */
    DPN_CTS_ENTRIES = 4 * DPN_PLACES,                  /* never more are unread; 2^n */
    DPN_SEND_QUEUE = 128,                              /* work requests of a queue pair */
    DPN_RECV_QUEUE = DPN_PLACES + DPN_LARGE_SLOTS + 1, /* a stripe of each message, a probe */
    DPN_INLINE_BYTES = 128,
    DPN_GENERATIONS = 0x7fff, /* and this one is a probe's */
    DPN_SENDS = 256,      /* in flight; NCCL shares a connection among many (PXN), each with 32 */
    DPN_DELAY_NS = 20000, /* what CTS entries are held back for, while nothing comes */
    DPN_STRIPE_UNIT = 128 /* LL128: a GPU line is never divided */
};
_Static_assert(DPN_CTS_ENTRIES >= DPN_PLACES + DPN_EAGER_SLOTS * (DPN_MAX_RECEIVES + 1),
               "no CTS entry is overwritten before it is read; a message may cause a credit, too");

/* ---- what travels ---------------------------------------------------------------------------- */

enum dpn_cts_flags {
    DPN_CTS_TAKEN = 1,   /* an eager message took the buffer before there was the CTS entry */
    DPN_CTS_NO_EAGER = 2 /* the sender sends no eager messages until an entry comes without this */
};
/* Written by the device in whatever pieces, so it counts only once check is right. count 0: a
 * credit, no room, but what became of eager messages in receives that have no CTS entries: all
 * before number `bytes` have been given a receive, but those that have a bit, by number, in
 * `address`. */
struct dpn_cts_entry {
    uint64_t address;
    uint32_t bytes;
    int32_t tag;
    uint32_t keys[DPN_MAX_RAILS];
    uint8_t slot, sub, count;
    uint8_t flags; /* enum dpn_cts_flags */
    uint16_t generation;
    uint16_t taken;  /* eager messages that were copied, the last 16 bits */
    uint32_t number; /* of CTS entries since the beginning */
    uint32_t check;
};
_Static_assert(sizeof(struct dpn_cts_entry) == 64, "an entry is one cache line");

/* How long a message is whose immediates do not tell. */
struct dpn_record {
    uint32_t generation, size;
};

_Static_assert(sizeof(struct dpn_inline_message) <= DPN_INLINE_BYTES,
               "the device need not fetch it");

/* Sender: CTS entries come, records and inline messages go. Receiver: the other way round, and the
 * ring of larger eager messages follows. */
struct dpn_block {
    struct dpn_cts_entry cts[DPN_CTS_ENTRIES];
    struct dpn_record records[DPN_PLACES];         /* by slot and sub */
    struct dpn_eager_head heads[DPN_LARGE_SLOTS];  /* of the sender */
    struct dpn_inline_message inlines[DPN_EAGER_SLOTS];
    uint64_t scratch[8];                           /* flushes read into it */
};
_Static_assert(sizeof(struct dpn_block) % 64 == 0, "the ring begins at a cache line");
_Static_assert(offsetof(struct dpn_block, inlines) % 64 == 0, "and so do inline messages");

/* An immediate: slot 5 bits, sub 3, stripe 4, stripes - 1 4, has a record 1, generation 15. */
struct dpn_mark {
    unsigned slot, sub, stripe, count, generation;
    bool has_record;
};

static inline uint32_t dpn_mark_pack(struct dpn_mark m)
{
    return m.slot << 27 | m.sub << 24 | m.stripe << 20 | (m.count - 1) << 16 |
           (uint32_t)m.has_record << 15 | m.generation;
}

static inline struct dpn_mark dpn_mark_unpack(uint32_t imm)
{
    return (struct dpn_mark){imm >> 27, imm >> 24 & 7, imm >> 20 & 15, (imm >> 16 & 15) + 1,
                             imm & 0x7fff, imm >> 15 & 1};
}

/* Of an eager message: its number above, and this below; a probe's has nothing above and one bit
 * less. */
enum { DPN_EAGER_MARK = 0xffff };

/* What a work request was, in its wr_id. */
enum dpn_work_kind {
    DPN_WORK_DATA,
    DPN_WORK_PROBE,
    DPN_WORK_CTS,
    DPN_WORK_RECV,
    DPN_WORK_FLUSH,
    DPN_WORK_COPY, /* of an eager message, to a GPU */
    DPN_WORK_HEARTBEAT,
    DPN_WORK_PART /* completes only when it fails; what comes after it counts */
};

struct dpn_work {
    enum dpn_work_kind kind;
    unsigned qp, epoch; /* of a flush or copy: the rail, and its loop's */
    unsigned slot, stripe;
    unsigned requests; /* so many places in the send queue are free again */
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

/* A queue pair that is connected with itself, see verbs/flush.c. */
struct dpn_loop {
    bool is_wanted;    /* the device writes to GPUs */
    struct ibv_qp *qp; /* NULL: lost */
    uint16_t epoch;
    int failures;      /* in a row */
    int64_t retry_ns;
    int64_t asked_ns;  /* 0: no read is to come */
    uint32_t written;  /* completions of data that the device has written to a GPU */
    uint32_t flushed;  /* so many of these are certain to be in the GPU's memory */
};

struct dpn_rail {
    struct dpn_port *port;
    struct ibv_cq *cq;
    struct ibv_mr *block_mr;
    struct dpn_loop loop;
    char peer[DPN_CONTROL_NAME]; /* its port */
    int speed_mbps;           /* of the slower side */
    bool adaptive;            /* its packets may overtake each other */
};

enum dpn_qp_state {
    DPN_QP_DOWN,    /* no queue pair */
    DPN_QP_OPENING, /* sender: OPENED is to come. Receiver: the probe is */
    DPN_QP_PROBING, /* sender */
    DPN_QP_UP,
    DPN_QP_FENCING  /* the queue pair is in error and gives back what it has */
};

struct dpn_qp {
    enum dpn_qp_state state;
    uint8_t rail;
    uint16_t epoch;
    struct ibv_qp *ibv;
    uint32_t psn;
    uint8_t mtu; /* enum ibv_mtu */
    unsigned inline_bytes;
    unsigned sends_out;    /* completions that are to come */
    unsigned requests_out; /* places of the send queue in use */
    unsigned unsignaled;
    unsigned recvs_out, recvs_owed; /* posted; to be posted again */
    unsigned rewrites_out;          /* receiver, see verbs/recv.c */
    uint64_t peer_block;
    uint32_t peer_key, peer_number;
    struct dpn_gid gid, peer_gid;
    struct ibv_send_wr inline_wr; /* sender: of an inline message, and this is its piece */
    struct ibv_sge inline_sge;
    uint64_t inline_work;
    bool is_fenced_there, is_fenced_here; /* of this epoch; both: it may be opened again */
    bool has_been_up;
    bool is_without_ece;   /* it went wrong with it */
    bool uses_ece;
    unsigned completed, seen; /* to notice that nothing moves */
    unsigned drain_looks;
    int64_t since_ns;      /* of this state, or of the last completion */
    int64_t retry_ns;      /* when to try again */
    int failures;          /* in a row */
};

/* ---- requests -------------------------------------------------------------------------------- */

enum dpn_request_kind { DPN_SEND, DPN_RECV, DPN_FLUSH };

struct dpn_verbs_request {
    struct dpn_request base;
    struct dpn_verbs *verbs;
    enum dpn_request_kind kind;
    unsigned index;
    unsigned left; /* stripes, receives, reads that are not done */
};

enum dpn_stripe_state { DPN_STRIPE_WAITING, DPN_STRIPE_SENT, DPN_STRIPE_DONE };

struct dpn_stripe {
    uint32_t offset, len, sent;
    unsigned chains; /* of work requests that are out */
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
    uint32_t number; /* of an eager one */
    uint32_t inline_len;
    unsigned count;
    struct dpn_stripe stripes[DPN_MAX_QPS];
};

struct dpn_recv_buffer {
    size_t size; /* the room; once done the message */
    int tag;
    void *data;
    const struct dpn_memory *memory;
    const void *from; /* an eager message, where the device copies it */
    uint8_t copy_slot, copy_rail;
    uint16_t stripes; /* that have arrived, a bit each */
    bool is_copied;   /* an eager message is, or is being */
    bool done;
    size_t got;
};

struct dpn_recv {
    struct dpn_verbs_request base;
    unsigned generation, count;
    uint32_t order; /* of the first, of all buffers that there ever were */
    uint32_t cts;  /* the number of the first, once there are CTS entries: see held */
    unsigned
        uses_without_cts; /* uses since there were CTS entries: the sender has heard of none of them */
    struct dpn_recv_buffer buffers[DPN_MAX_RECEIVES];
};

/* Reads by which rails are not back; and what they had written when it was asked for. */
struct dpn_flush {
    struct dpn_verbs_request base;
    const void *at;
    const struct dpn_verbs_memory *memory;
    uint8_t rails; /* a bit each */
    uint32_t written[DPN_MAX_RAILS];
};

struct dpn_verbs_memory {
    struct dpn_memory base;
    uintptr_t from, to;
    int type;
    int rail_count;
    struct ibv_mr *mrs[DPN_MAX_RAILS]; /* by rail */
    struct dpn_hca *hcas[DPN_MAX_RAILS];
};

/* Where a cleared to send message goes; and whether it went, over which queue pairs. */
struct dpn_target {
    uint64_t address;
    uint32_t keys[DPN_MAX_RAILS];
    uint16_t generation;
    bool is_done;
    uint8_t count;
    uint8_t qps[DPN_MAX_QPS];
};

/* An eager message, until its slot is free again. */
struct dpn_eager_send {
    uint32_t number, size;
    int tag;
    bool waits; /* for the CTS entry that it is for */
    bool is_done;
    uint8_t qp;
};

/* ---- the connection -------------------------------------------------------------------------- */

enum dpn_step {
    DPN_STEP_BEGIN,
    DPN_STEP_PLAN,
    DPN_STEP_QPS,
    DPN_STEP_AGREE, /* that there is no queue pair */
    DPN_STEP_PART,  /* once the last control message is out, the wire is free */
    DPN_STEP_READY
};

struct dpn_control_message; /* a control message on its way */

/* What is said beside the queue pairs, and the wire for it: verbs/control.c, verbs/reconnect.c. */
struct dpn_channel {
    uint32_t sent, acked, received;
    bool is_resumed; /* what is said can be sent */
    struct dpn_resume resume;
    struct dp_wire_request resume_req;

    struct dp_wire_address acceptor; /* of the peer's process */
    bool peer_has_acceptor, has_acceptor;
    uint64_t label;              /* 0: a wire that is lost does not come back */
    _Atomic(struct dp_wire *) accepted; /* receiver: a new wire, from the watchdog */
    struct dp_wire *attempt;             /* maybe one */
    bool is_lost, is_final;            /* it is not there; and will not be */
    int64_t since_ns, lost_ns; /* when it was lost; for how long, as far as somebody looked */
    int attempts, refusals; /* the latter in a row */
    int64_t attempt_ns, attempt_until_ns, heartbeat_ns;
    char why[160];
};

struct dpn_verbs {
    struct dpn_comm *comm;
    bool is_sender;
    enum dpn_step step;
    struct dpn_device const *device; /* NCCL's, or own_device */
    struct dpn_device own_device;    /* of a placement */
    int placed_ports;                /* its first ports are those that the placement names */
    int placed_qps, placed_class;
    struct dpn_port *ports[DPN_MAX_RAILS]; /* the device's first, then those that may stand in */
    int port_count;
    int error;
    char why[512];
    char reason[384]; /* why a queue pair went down last */

    int rail_count, qp_count, qps_per_rail;
    struct dpn_rail rails[DPN_MAX_RAILS];
    struct dpn_qp qps[DPN_MAX_QPS];
    bool any_order; /* messages of a queue pair may overtake each other */
    uint16_t up; /* queue pairs that are; a bit each */
    uint16_t preferred; /* sender: queue pairs that the placement names; none: all are alike */
    bool is_troubled; /* not all of them */
    int64_t down_ns;       /* for so long none is */
    int failures;     /* of queue pairs, since a message was done, while there was something to do */
    uint32_t max_message;
    uint8_t traffic_class, service_level;
    struct dpn_block *block;

    uint32_t free;        /* receiver: requests, a bit each */
    uint32_t eager_bytes; /* the longest of the eager messages; 0: there are none */
    bool may_eager;       /* sender: the receiver's memory takes them now, see DPN_CTS_NO_EAGER */
    uint32_t eager_taken; /* so many were copied */
    /* sender */
    uint32_t eager_sent;
    struct dpn_eager_send eager_sends[DPN_EAGER_SLOTS]; /* by number */
    struct dpn_send sends[DPN_SENDS];    /* those that were never used take no memory */
    uint64_t sends_used[DPN_SENDS / 64]; /* a bit each */
    struct dpn_cts_list cts_list;
    struct dpn_cts arriving; /* its CTS entries come one after the other */
    unsigned cts_of_group;   /* that have */
    unsigned taken_of_group;   /* of those, a bit each */
    struct dpn_target targets[NCCL_NET_MAX_REQUESTS][DPN_MAX_RECEIVES];
    uint32_t cts_read;
    unsigned waiting; /* stripes that are not sent to their end */
    unsigned next_qp;
    struct dpn_fenced_receiver reports[DPN_MAX_QPS];
    /* receiver */
    struct dpn_recv recvs[NCCL_NET_MAX_REQUESTS];
    uint32_t cts_made, cts_sent;
    uint32_t cts_new; /* never written: those from here on. Before, some are to be once more */
    uint8_t cts_qps[DPN_CTS_ENTRIES]; /* that they went over, by number; DPN_MAX_QPS: none */
    unsigned rewrites_out;         /* writes of CTS entries once more that did not complete */
    uint32_t rewritten;            /* the first of those CTS entries */
    uint32_t delayed;       /* receives without CTS entries that have room, a bit each */
    unsigned delayed_polls; /* that found nothing, */
    int64_t delayed_ns;     /* and when the first of them was */
    uint32_t buffers_made, buffers_closed; /* all before the latter have a message */
    uint8_t buffer_recvs[DPN_PLACES];    /* receives, by order of the first room */
    bool is_credit_due;  /* a receive that is held took a message, which no CTS entry says */
    uint32_t credited, credit_every; /* eager messages that were copied, when a CTS entry said so last */
    size_t short_buffer; /* the last room that more would have gone into than an eager message */
    unsigned shorts;   /* that came to such ones, in a row */
    uint32_t eager_seen; /* all before this have come */
    /* By number: after that one; in a slot; unmatched; not inline. */
    uint64_t eager_here, eager_busy, eager_waits, eager_large;
    unsigned unpolled; /* inline ones since the last look at completions */
    uint32_t flushes_free;
    struct dpn_flush flushes[NCCL_NET_MAX_REQUESTS];
    bool has_lost_loop; /* that may come back */

    unsigned idle;  /* polls that found nothing */
    unsigned polls; /* others; deadlines and control messages have their turn among them, too */
    int64_t looked_ns, peer_gone_ns;
    struct dp_wire_request incoming;
    union dpn_control_body received;
    bool is_receiving; /* incoming is on its way */
    bool has_peer_failed; /* it has said so */
    struct dpn_stall stall;
    struct dpn_control_message *unacked; /* oldest first */
    struct dpn_channel channel;
    bool is_watched; /* in the watchdog's list; under its lock */
    struct dpn_verbs *next_watched;
};

/* The first failure of the connection counts. Destroys all queue pairs: nothing is touched
 * after. The peer is told why. */
void dpn_verbs_fail(struct dpn_verbs *v, int error, const char *fmt, ...) DP_PRINTF(3, 4);
/* With the rails, how many queue pairs each has and the room for eager messages decided: what is
 * needed for queue pairs to be opened. */
int dpn_verbs_open_rails(struct dpn_verbs *v);

/* verbs/ports.c: the device's ports and, if the sender is to look for the receiver's subnet, others
 * that may stand in for them. */
void dpn_verbs_gather_ports(struct dpn_verbs *v);
void dpn_verbs_describe_ports(const struct dpn_verbs *v, struct dpn_port_info *ports);
/* The most that one work request may carry on all of them. */
uint32_t dpn_verbs_max_message(const struct dpn_verbs *v);
/* Ports that meet: each of the side that has more with one of the other, in turn, if they are of
 * one kind. */
void dpn_verbs_pair_ports(const struct dpn_verbs *v, const struct dpn_hello *hello,
                          const struct dpn_port_info *own, struct dpn_plan *plan);

/* verbs/control.c: the control messages. */
void dpn_control_send(struct dpn_verbs *v, enum dpn_control_kind kind,
                      const union dpn_control_body *body);
void dpn_control_poll(struct dpn_verbs *v);
/* The next message, which is in v->received then. */
bool dpn_control_receive(struct dpn_verbs *v, enum dpn_control_kind *kind);
/* Whether a control message of ours is still on its way. */
bool dpn_control_is_sending(struct dpn_verbs *v);
void dpn_control_free_all(struct dpn_verbs *v);
/* The connection has ended here, why is in v->why. */
void dpn_control_tell_failed(struct dpn_verbs *v);
/* Whether a control message is not heard yet that messages may wait for. */
bool dpn_control_has_unacked_fence(const struct dpn_verbs *v);
/* Before the wire is closed. */
void dpn_control_drain(struct dpn_verbs *v);
/* The first message over a new wire. */
void dpn_control_resume(struct dpn_verbs *v);

/* verbs/reconnect.c: the wire for control messages, when it is lost. */
void dpn_channel_poll(struct dpn_verbs *v, int64_t now_ns);
void dpn_channel_resumed(struct dpn_verbs *v);
void dpn_channel_close(struct dpn_verbs *v);

/* verbs/handshake.c: goes on with it. 0: there are queue pairs; DP_EAGAIN; otherwise there is no
 * RDMA to this peer. */
int dpn_verbs_handshake(struct dpn_verbs *v);
/* The peer calls here no more. */
void dpn_verbs_release_acceptor(const struct dpn_verbs *v);

/* verbs/qp.c: the lives of queue pairs. */
void dpn_qp_open(struct dpn_verbs *v, struct dpn_qp *qp);
void dpn_qp_take_open(struct dpn_verbs *v, const struct dpn_open_qp *open);
void dpn_qp_take_opened(struct dpn_verbs *v, const struct dpn_opened_qp *opened);
void dpn_qp_is_up(struct dpn_verbs *v, struct dpn_qp *qp);
/* Write nothing: a peer that is gone does not answer. */
void dpn_qp_heartbeat(struct dpn_verbs *v, struct dpn_qp *qp);
/* The log line is written here. */
void dpn_qp_fence(struct dpn_verbs *v, struct dpn_qp *qp, const char *what, const char *status,
                    const char *hint);
void dpn_qp_take_fenced(struct dpn_verbs *v, unsigned qp, unsigned epoch);
/* What time brings: fences that are done, attempts, deadlines. */
void dpn_qps_poll(struct dpn_verbs *v, int64_t now_ns);
static inline unsigned dpn_qp_index(const struct dpn_verbs *v, const struct dpn_qp *qp)
{
    return (unsigned)(qp - v->qps);
}

/* verbs/placement.c: the ports that the placement names for a flow between two workers, before a
 * side tells its own; and, of the sender, its queue pairs once there are some. */
void dpn_verbs_place(struct dpn_verbs *v, int32_t from, int32_t to, enum dpn_traffic traffic);
void dpn_verbs_prefer_placed(struct dpn_verbs *v, const struct dpn_plan *plan);

/* verbs/progress.c */
void dpn_verbs_progress(struct dpn_verbs *v);
/* The same, and the rest for sure. */
void dpn_verbs_look(struct dpn_verbs *v);
/* Completions only; whether there were any. */
bool dpn_verbs_poll(struct dpn_verbs *v);

/* verbs/send.c */
int dpn_verbs_isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out);
void dpn_verbs_push(struct dpn_verbs *v);
struct dpn_verbs_request dpn_verbs_new_request(struct dpn_verbs *v, enum dpn_request_kind kind,
                                               unsigned index);
/* The CTS entries that have come. */
void dpn_verbs_read_cts(struct dpn_verbs *v);
/* Whether a message that was acknowledged is not among what the receiver has. */
bool dpn_verbs_has_lost(const struct dpn_verbs *v, const struct dpn_fenced_receiver *report);
void dpn_verbs_sent(struct dpn_verbs *v, struct dpn_work work);
/* A queue pair is gone on both sides: what did not arrive by it is to be sent again. */
void dpn_verbs_resend(struct dpn_verbs *v, unsigned qp, const struct dpn_fenced_receiver *report);

/* There is no room for so many bytes. */
void dpn_verbs_refuse(struct dpn_verbs *v, size_t size, struct dpn_place place);

/* verbs/eager.c: eager messages that do not wait. Sender: */
size_t dpn_eager_ring_bytes(uint32_t eager_bytes);
uint64_t dpn_eager_slot(uint64_t block, uint32_t eager_bytes, uint32_t number);
bool dpn_eager_may(const struct dpn_verbs *v, const struct dpn_piece *piece);
/* A credit. */
void dpn_eager_take_credit(struct dpn_verbs *v, const struct dpn_cts_entry *entry);
void dpn_eager_begin(struct dpn_verbs *v, struct dpn_send *send);
/* The group that has arrived is cleared to send. */
void dpn_eager_match_cts(struct dpn_verbs *v, unsigned slot, unsigned count);
void dpn_eager_credit(struct dpn_verbs *v, uint16_t taken);
void dpn_eager_done(struct dpn_verbs *v, const struct dpn_send *send);
bool dpn_eager_has_arrived(const struct dpn_fenced_receiver *report, uint32_t number);
bool dpn_eager_is_lost(const struct dpn_verbs *v, unsigned qp,
                       const struct dpn_fenced_receiver *report);
/* Receiver: */
void dpn_eager_take(struct dpn_verbs *v, uint16_t low, uint32_t bytes);
/* Quick ones; whether there were any. */
bool dpn_eager_take_inline(struct dpn_verbs *v);
static inline bool dpn_eager_poll(struct dpn_verbs *v)
{
    if (v->is_sender || !v->eager_bytes)
        return false;
    const struct dpn_inline_message *next = &v->block->inlines[v->eager_seen % DPN_EAGER_SLOTS];
    return __atomic_load_n(&next->head.number, __ATOMIC_RELAXED) == v->eager_seen &&
           dpn_eager_take_inline(v);
}
void dpn_eager_match_recv(struct dpn_verbs *v, struct dpn_recv *recv);
void dpn_eager_copied(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, uint32_t number);
/* The sender may leave when all it sent has come: there is something left, and nobody waits in
 * vain. */
bool dpn_eager_goes_on(const struct dpn_verbs *v);
void dpn_eager_report(const struct dpn_verbs *v, struct dpn_fenced_receiver *report);

/* verbs/recv.c */
int dpn_verbs_irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                    struct dpn_request **out);
/* Those that are not held back. */
void dpn_cts_push(struct dpn_verbs *v);
/* No receive is without CTS entries now. */
void dpn_cts_release(struct dpn_verbs *v);
/* Polls have found nothing: once that has been so for DPN_DELAY_NS the sender may want the CTS
 * entries that are held back. */
void dpn_cts_release_late(struct dpn_verbs *v);
static inline void dpn_cts_release_if_idle(struct dpn_verbs *v, bool found)
{
    if (found || !v->delayed)
        v->delayed_polls = 0;
    else if (v->delayed_polls++ % 4 == 0) /* the clock costs as much as a poll */
        dpn_cts_release_late(v);
}

/* A message of this size has come to a room of that: what will come to the next one? */
void dpn_verbs_note_size(struct dpn_verbs *v, size_t room, size_t size);
/* The sender has ended this queue pair, and had read the CTS entries before this one: others of
 * that queue pair are to be written again. */
void dpn_cts_rewind(struct dpn_verbs *v, unsigned qp, uint32_t cts_read);
/* A write of CTS entries has completed. */
void dpn_cts_write_done(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_work work);
void dpn_verbs_take_mark(struct dpn_verbs *v, const struct dpn_qp *qp, uint32_t imm,
                         uint32_t bytes);
void dpn_verbs_report(const struct dpn_verbs *v, struct dpn_fenced_receiver *report);
int dpn_qp_post_recvs(struct dpn_verbs *v, struct dpn_qp *qp, unsigned count);

/* verbs/flush.c */
int dpn_verbs_iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                     struct dpn_request **out);
enum {
    DPN_LOOP_QUEUE = NCCL_NET_MAX_REQUESTS + 2 * DPN_EAGER_SLOTS
}; /* a copy is a write and a read */
int dpn_loop_open(struct dpn_rail *rail);
/* Its queue pair is gone: 0, or an errno if it could not be destroyed. */
int dpn_loop_close(struct dpn_rail *rail);
/* A completion of a flush or a copy. */
void dpn_loop_take(struct dpn_verbs *v, struct dpn_work work, const struct ibv_wc *wc);
void dpn_loops_poll(struct dpn_verbs *v, int64_t now_ns);
/* Whether the port reaches memory of GPUs. */
bool dpn_port_reaches_gpus(const struct dpn_port *port);
/* Whether an eager message can be copied to whatever memory the port reaches. */
bool dpn_port_takes_eager(const struct dpn_port *port);
void dpn_verbs_copy_to_gpu(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub,
                           const void *from, unsigned slot);

/* verbs/watchdog.c: from when it is ready until it is closed; forks from before there is a
 * acceptor. */
void dpn_watchdog_handle_forks(void);
void dpn_watchdog_add(struct dpn_verbs *v);
void dpn_watchdog_remove(struct dpn_verbs *v);

/* verbs/reg.c */
int dpn_verbs_reg(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out);
void dpn_verbs_dereg(struct dpn_comm *comm, struct dpn_memory *base);

/* verbs/inline.c: what is the same for all of a qp, once it is joined with the peer's. */
void dpn_inline_prepare(struct dpn_verbs *v, struct dpn_qp *qp);
/* The stripe of a inline message, over its qp; whether it is on its way. */
bool dpn_inline_post(struct dpn_verbs *v, struct dpn_send *send);

/* verbs/cts.c */
void dpn_cts_entry_seal(struct dpn_cts_entry *entry);
/* Copy what is at `from` if it is CTS entry `number`, whole. */
bool dpn_cts_entry_read(const struct dpn_cts_entry *from, uint32_t number,
                        struct dpn_cts_entry *out);

/* Whether there is something to do. */
static inline bool dpn_verbs_is_busy(const struct dpn_verbs *v)
{
    bool any = v->free != UINT32_MAX;

    for (int w = 0; w < DPN_SENDS / 64; w++)
        any |= v->sends_used[w] != 0;
    return any;
}

/* The next send in use from i on; DPN_SENDS: none. */
static inline unsigned dpn_verbs_next_send(const struct dpn_verbs *v, unsigned i)
{
    for (unsigned w = i / 64, at = i % 64; w < DPN_SENDS / 64; w++, at = 0) {
        const uint64_t rest = v->sends_used[w] >> at << at;
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
