/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_comm.h - a connection over RDMA.
 *
 *      rail    a port here and a port there
 *      lane    a queue pair here and one there, on a rail; some lanes per rail
 *      line    64 bytes that the receiver writes into the sender's memory: room for one message
 *      stripe  the part of a message that goes over one lane
 *      block   what a side lets the other write to, and writes from
 *      eager   a short message that does not wait for its line: verbs_eager.c
 *      quick   a very short one, that is seen without a completion: verbs_quick.h
 *
 *      receiver                                            sender
 *      irecv: lines       -- RDMA write over any lane -->  its ring of lines (maybe later, some at once)
 *      its memory        <-- RDMA write, one stripe per lane --  isend
 *      completion        <-- the immediate of each stripe: which message, which stripe of how many
 *
 * Who receives knows from the immediates what has arrived, whatever the order; a stripe that comes
 * once more, over another lane, writes the same bytes to the same place. When a lane fails, each side
 * destroys its queue pair and then says so (FENCED), the receiver with what has arrived. Only then is
 * the rest sent over other lanes; so no write of the old lane can come late, when the receive is done
 * and the memory somebody else's, nor is a buffer read that the sender was given back.
 */
#ifndef DPN_VERBS_COMM_H
#define DPN_VERBS_COMM_H

#include "nccl-plugin/net_comm.h"
#include "nccl-plugin/net_grants.h"
#include "nccl-plugin/net_traffic.h"
#include "nccl-plugin/verbs/verbs.h"
#include "nccl-plugin/verbs/verbs_device.h"
#include "nccl-plugin/verbs/verbs_quick.h"
#include "nccl-plugin/verbs/verbs_talk.h"

#include <endian.h>

enum {
    DPN_PLACES = NCCL_NET_MAX_REQUESTS * DPN_MAX_RECEIVES, /* of receives that are open */
    DPN_EAGER_SLOTS = 64, /* short messages; each may end a receive with unread lines */
    DPN_LARGE_SLOTS = 16, /* of those that are not quick, the room; a divisor of the former */
    DPN_LINES = 4 * DPN_PLACES,                           /* never more are unread; 2^n */
    DPN_SEND_QUEUE = 128,                                 /* work requests of a lane */
    DPN_RECV_QUEUE = DPN_PLACES + DPN_LARGE_SLOTS + 1,    /* a stripe of each message, a probe */
    DPN_INLINE_BYTES = 128,
    DPN_GENERATIONS = 0x7fff, /* and this one is a probe's */
    DPN_HELD_POLLS = 256,     /* some tens of microseconds */
    DPN_STRIPE_UNIT = 128     /* LL128: a line of the GPU is never divided */
};
_Static_assert(DPN_LINES >= DPN_PLACES + DPN_EAGER_SLOTS * (DPN_MAX_RECEIVES + 1),
               "no line is overwritten before it is read; a message may cause a credit, too");

/* ---- what travels ---------------------------------------------------------------------------- */

/* Written by the device in whatever pieces, so it counts only once check is right. count 0: a
 * credit, no room, but what became of short messages in receives that have no lines: all before
 * number `bytes` have been given a receive, but those that have a bit, by number, in `address`. */
struct dpn_line {
    uint64_t address;
    uint32_t bytes;
    int32_t tag;
    uint32_t keys[DPN_MAX_RAILS];
    uint8_t slot, sub, count;
    uint8_t is_taken; /* by a short message, before there was the line */
    uint16_t generation;
    uint16_t taken;  /* short messages that were copied, the last 16 bits */
    uint32_t number; /* of lines since the beginning */
    uint32_t check;
};
_Static_assert(sizeof(struct dpn_line) == 64, "a line is one of the cache");

/* How long a message is whose immediates do not tell. */
struct dpn_record {
    uint32_t generation, size;
};

_Static_assert(sizeof(struct dpn_quick) <= DPN_INLINE_BYTES, "the device need not fetch it");

/* Sender: lines come, records and quick messages go. Receiver: the other way round, and the ring of
 * larger short messages follows. */
struct dpn_block {
    struct dpn_line lines[DPN_LINES];
    struct dpn_record records[DPN_PLACES];         /* by slot and sub */
    struct dpn_eager_head heads[DPN_LARGE_SLOTS];  /* of the sender */
    struct dpn_quick quick[DPN_EAGER_SLOTS];
    uint64_t scratch[8];                           /* flushes read into it */
};
_Static_assert(sizeof(struct dpn_block) % 64 == 0, "the ring begins at a line of the cache");
_Static_assert(offsetof(struct dpn_block, quick) % 64 == 0, "and so do quick messages");

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

/* Of a short message: its number above, and this below; a probe's has nothing above and one bit less. */
enum { DPN_EAGER_MARK = 0xffff };

/* What a work request was, in its wr_id. */
enum dpn_work_kind {
    DPN_WORK_DATA,
    DPN_WORK_PROBE,
    DPN_WORK_LINES,
    DPN_WORK_RECV,
    DPN_WORK_FLUSH,
    DPN_WORK_COPY, /* of a short message, to a GPU */
    DPN_WORK_BEAT,
    DPN_WORK_PART /* completes only when it fails; what comes after it counts */
};

struct dpn_work {
    enum dpn_work_kind kind;
    unsigned lane, epoch; /* of a flush or copy: the rail, and its loop's */
    unsigned slot, stripe;
    unsigned requests; /* so many places in the send queue are free again */
};

static inline uint64_t dpn_work_pack(struct dpn_work w)
{
    return (uint64_t)w.kind << 56 | (uint64_t)w.lane << 48 | (uint64_t)w.epoch << 32 |
           (uint64_t)w.slot << 24 | (uint64_t)w.stripe << 16 | w.requests;
}

static inline struct dpn_work dpn_work_unpack(uint64_t id)
{
    return (struct dpn_work){(enum dpn_work_kind)(id >> 56), id >> 48 & 0xff, id >> 32 & 0xffff,
                             id >> 24 & 0xff, id >> 16 & 0xff, id & 0xffff};
}

/* ---- rails and lanes ------------------------------------------------------------------------- */

/* A queue pair that is connected with itself, see verbs_flush.c. */
struct dpn_loop {
    bool is_wanted;    /* the device writes to GPUs */
    struct ibv_qp *qp; /* NULL: lost */
    uint16_t epoch;
    int failures;      /* in a row */
    int64_t retry_ns;
    int64_t asked_ns;  /* 0: no read is to come */
    uint32_t written, flushed; /* by the device: completions of data seen, of these for sure there */
};

struct dpn_rail {
    struct dpn_port *port;
    struct ibv_cq *cq;
    struct ibv_mr *block_mr;
    struct dpn_loop loop;
    char peer[DPN_TALK_NAME]; /* its port */
    int speed_mbps;           /* of the slower side */
    bool adaptive;            /* its packets may overtake each other */
};

enum dpn_lane_state {
    DPN_LANE_DOWN,    /* no queue pair */
    DPN_LANE_OPENING, /* sender: OPENED is to come. Receiver: the probe is */
    DPN_LANE_PROBING, /* sender */
    DPN_LANE_UP,
    DPN_LANE_FENCING  /* the queue pair is in error and gives back what it has */
};

struct dpn_lane {
    enum dpn_lane_state state;
    uint8_t rail;
    uint16_t epoch;
    struct ibv_qp *qp;
    uint32_t psn;
    uint8_t mtu; /* enum ibv_mtu */
    unsigned inline_bytes;
    unsigned sends_out;    /* completions that are to come */
    unsigned requests_out; /* places of the send queue in use */
    unsigned unsignaled;
    unsigned recvs_out, recvs_owed; /* posted; to be posted again */
    unsigned rewrites_out;          /* receiver, see verbs_recv.c */
    uint64_t peer_block;
    uint32_t peer_key, peer_number;
    struct dpn_gid gid, peer_gid;
    struct ibv_send_wr quick; /* sender: of a very short message, and this is its piece */
    struct ibv_sge quick_sge;
    uint64_t quick_work;
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
    uint8_t lane;
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
    bool has_record, is_eager, is_quick;
    uint32_t number; /* of an eager one */
    uint32_t quick_len;
    unsigned count;
    struct dpn_stripe stripes[DPN_MAX_LANES];
};

struct dpn_room {
    size_t size; /* the room; once done the message */
    int tag;
    void *data;
    const struct dpn_memory *memory;
    const void *from; /* a short message, where the device copies it */
    uint8_t copy_slot, copy_rail;
    uint16_t stripes; /* that have arrived, a bit each */
    bool is_copied;   /* a short message is, or is being */
    bool done;
    size_t got;
};

struct dpn_recv {
    struct dpn_verbs_request base;
    unsigned generation, count;
    uint32_t order; /* of the first, of all rooms that there ever were */
    uint32_t line;  /* the number of the first, once there are lines: see held */
    unsigned unlined; /* uses since there were lines: the sender has heard of none of them */
    struct dpn_room rooms[DPN_MAX_RECEIVES];
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

/* Where a granted message goes; and whether it went, over which lanes. */
struct dpn_target {
    uint64_t address;
    uint32_t keys[DPN_MAX_RAILS];
    uint16_t generation;
    bool is_done;
    uint8_t count;
    uint8_t lanes[DPN_MAX_LANES];
};

/* A short message, until its slot is free again. */
struct dpn_eager_send {
    uint32_t number, size;
    int tag;
    bool waits; /* for the line that it is for */
    bool is_done;
    uint8_t lane;
};

/* ---- the connection -------------------------------------------------------------------------- */

enum dpn_step {
    DPN_STEP_BEGIN,
    DPN_STEP_PLAN,
    DPN_STEP_LANES,
    DPN_STEP_AGREE, /* that there is no lane */
    DPN_STEP_PART,  /* once the last word is out, the wire is free */
    DPN_STEP_READY
};

struct dpn_letter; /* a word on its way */

/* What is said beside the queue pairs, and the wire for it: verbs_control.c, verbs_return.c. */
struct dpn_words {
    uint32_t said, confirmed, heard;
    bool is_greeted; /* what is said can be sent */
    struct dpn_resume greeting;
    struct dp_wire_request greeting_req;

    struct dp_wire_address door; /* of the peer's process */
    bool peer_has_door, has_door;
    uint64_t label;              /* 0: a wire that is lost does not come back */
    _Atomic(struct dp_wire *) caller; /* receiver: a new wire, from the keeper */
    struct dp_wire *call;             /* maybe one */
    bool is_lost, is_over;            /* it is not there; and will not be */
    int64_t since_ns, lost_ns; /* when it was lost; for how long, as far as somebody looked */
    int calls, refusals; /* the latter in a row */
    int64_t call_ns, call_until_ns, beat_ns;
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
    char reason[384]; /* why a lane went down last */

    int rail_count, lane_count, lanes_per_rail;
    struct dpn_rail rails[DPN_MAX_RAILS];
    struct dpn_lane lanes[DPN_MAX_LANES];
    bool any_order; /* messages of a lane may overtake each other */
    uint16_t up; /* lanes that are; a bit each */
    uint16_t preferred; /* sender: lanes that the placement names; none: all are alike */
    bool is_troubled; /* not all of them */
    int64_t down_ns;       /* for so long none is */
    int failures;     /* of lanes, since a message was done, while there was something to do */
    uint32_t max_message;
    uint8_t traffic_class, service_level;
    struct dpn_block *block;

    uint32_t free; /* requests, a bit each */
    uint32_t eager_bytes; /* the longest of the short messages; 0: there are none */
    uint32_t eager_taken; /* so many were copied */
    /* sender */
    uint32_t eager_sent;
    struct dpn_eager_send eager_sends[DPN_EAGER_SLOTS]; /* by number */
    struct dpn_send sends[NCCL_NET_MAX_REQUESTS];
    struct dpn_grants grants;
    struct dpn_grant arriving; /* its lines come one after the other */
    unsigned lines_of_group;   /* that have */
    unsigned taken_of_group;   /* of those, a bit each */
    struct dpn_target targets[NCCL_NET_MAX_REQUESTS][DPN_MAX_RECEIVES];
    uint32_t lines_read;
    unsigned waiting; /* stripes that are not sent to their end */
    unsigned next_lane;
    struct dpn_fenced_receiver reports[DPN_MAX_LANES];
    /* receiver */
    struct dpn_recv recvs[NCCL_NET_MAX_REQUESTS];
    uint32_t lines_made, lines_sent;
    uint32_t lines_new; /* never written: those from here on. Before, some are to be once more */
    uint8_t line_lanes[DPN_LINES]; /* that they went over, by number; DPN_MAX_LANES: none */
    unsigned rewrites_out;         /* writes of lines once more that did not complete */
    uint32_t rewritten;            /* the first of those lines */
    uint32_t held;       /* receives without lines that have room, a bit each */
    unsigned held_polls; /* that found nothing */
    uint32_t rooms_made, rooms_closed; /* all before the latter have a message */
    uint8_t room_recvs[DPN_PLACES];    /* receives, by order of the first room */
    bool is_credit_due;  /* a receive that is held took a message, which no line says */
    uint32_t credited, credit_every; /* short messages that were copied, when a line said so last */
    size_t short_room; /* the last room that more would have gone into than a short message */
    unsigned shorts;   /* that came to such ones, in a row */
    uint32_t eager_seen; /* all before this have come */
    /* By number: after that one; in a slot; unmatched; not quick. */
    uint64_t eager_here, eager_busy, eager_waits, eager_large;
    unsigned unpolled; /* quick ones since the last look at completions */
    uint32_t flushes_free;
    struct dpn_flush flushes[NCCL_NET_MAX_REQUESTS];
    bool has_lost_loop; /* that may come back */

    unsigned idle; /* polls that found nothing */
    int64_t looked_ns, peer_gone_ns;
    struct dp_wire_request incoming;
    union dpn_talk heard;
    bool is_listening; /* incoming is on its way */
    struct dpn_letter *letters; /* eldest first */
    struct dpn_words words;
    bool is_kept; /* in the keeper's list; under its lock */
    struct dpn_verbs *next_kept;
};

/* The first failure of the connection counts. Destroys all queue pairs: nothing is touched after. */
void dpn_verbs_fail(struct dpn_verbs *v, int error, const char *fmt, ...) DP_PRINTF(3, 4);
/* With the rails, how many lanes each has and the room for short messages decided: what is needed for
 * lanes to be opened. */
int dpn_verbs_open_rails(struct dpn_verbs *v);

/* verbs_ports.c: the device's ports and, if the sender is to look for the receiver's subnet, others that
 * may stand in for them. */
void dpn_verbs_gather_ports(struct dpn_verbs *v);
void dpn_verbs_describe_ports(const struct dpn_verbs *v, struct dpn_talk_port *ports);
/* The most that one work request may carry on all of them. */
uint32_t dpn_verbs_max_message(const struct dpn_verbs *v);
/* Ports that meet: each of the side that has more with one of the other, in turn, if they are of one
 * kind. */
void dpn_verbs_pair_ports(const struct dpn_verbs *v, const struct dpn_hello *hello,
                          const struct dpn_talk_port *own, struct dpn_plan *plan);

/* verbs_control.c: the words. */
void dpn_verbs_say(struct dpn_verbs *v, enum dpn_talk_kind kind, const union dpn_talk *talk);
void dpn_verbs_listen(struct dpn_verbs *v);
/* The next word, which is in v->heard then. */
bool dpn_verbs_hear(struct dpn_verbs *v, enum dpn_talk_kind *kind);
/* Whether a word of ours is still on its way. */
bool dpn_verbs_is_talking(struct dpn_verbs *v);
void dpn_verbs_forget_letters(struct dpn_verbs *v);
/* Whether a word is not heard yet that messages may wait for. */
bool dpn_verbs_has_news(const struct dpn_verbs *v);
/* Before the wire is closed. */
void dpn_verbs_hear_out(struct dpn_verbs *v);
/* The first word over a new wire. */
void dpn_verbs_greet(struct dpn_verbs *v);

/* verbs_return.c: the wire for words, when it is lost. */
void dpn_words_tend(struct dpn_verbs *v, int64_t now_ns);
void dpn_words_are_back(struct dpn_verbs *v);
void dpn_words_end(struct dpn_verbs *v);

/* verbs_agree.c: goes on with it. 0: there are lanes; DP_EAGAIN; otherwise there is no RDMA to this
 * peer. */
int dpn_verbs_agree(struct dpn_verbs *v);
/* The peer calls here no more. */
void dpn_verbs_leave_door(const struct dpn_verbs *v);

/* verbs_lane.c: the lives of lanes. */
void dpn_lane_open(struct dpn_verbs *v, struct dpn_lane *lane);
void dpn_lane_take_open(struct dpn_verbs *v, const struct dpn_open_lane *open);
void dpn_lane_take_opened(struct dpn_verbs *v, const struct dpn_opened_lane *opened);
void dpn_lane_is_up(struct dpn_verbs *v, struct dpn_lane *lane);
/* Write nothing: a peer that is gone does not answer. */
void dpn_lane_beat(struct dpn_verbs *v, struct dpn_lane *lane);
/* The line in the log is written here. */
void dpn_lane_fence(struct dpn_verbs *v, struct dpn_lane *lane, const char *what, const char *status,
                    const char *hint);
void dpn_lane_take_fenced(struct dpn_verbs *v, unsigned lane, unsigned epoch);
/* What time brings: fences that are done, attempts, deadlines. */
void dpn_lanes_tend(struct dpn_verbs *v, int64_t now_ns);
static inline unsigned dpn_lane_index(const struct dpn_verbs *v, const struct dpn_lane *lane)
{
    return (unsigned)(lane - v->lanes);
}

/* verbs_placement.c: the ports that the placement names for a flow between two workers, before a side
 * tells its own; and, of the sender, its lanes once there are some. */
void dpn_verbs_place(struct dpn_verbs *v, int32_t from, int32_t to, enum dpn_traffic traffic);
void dpn_verbs_prefer_placed(struct dpn_verbs *v, const struct dpn_plan *plan);

/* verbs_progress.c */
void dpn_verbs_progress(struct dpn_verbs *v);
/* The same, and the rest for sure. */
void dpn_verbs_look(struct dpn_verbs *v);
/* Completions only; whether there were any. */
bool dpn_verbs_poll(struct dpn_verbs *v);

/* verbs_send.c */
int dpn_verbs_isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out);
void dpn_verbs_push(struct dpn_verbs *v);
void dpn_verbs_sent(struct dpn_verbs *v, struct dpn_work work);
/* A lane is gone on both sides: what did not arrive by it is to be sent again. */
void dpn_verbs_resend(struct dpn_verbs *v, unsigned lane, const struct dpn_fenced_receiver *report);

/* There is no room for so many bytes. */
void dpn_verbs_refuse(struct dpn_verbs *v, size_t size, struct dpn_place place);

/* verbs_eager.c: short messages that do not wait. Sender: */
size_t dpn_eager_ring_bytes(uint32_t eager_bytes);
uint64_t dpn_eager_slot(uint64_t block, uint32_t eager_bytes, uint32_t number);
bool dpn_eager_may(const struct dpn_verbs *v, const struct dpn_piece *piece);
/* A credit. */
void dpn_eager_take_credit(struct dpn_verbs *v, const struct dpn_line *line);
void dpn_eager_begin(struct dpn_verbs *v, struct dpn_send *send);
/* The group that has arrived is granted. */
void dpn_eager_match_lines(struct dpn_verbs *v, unsigned slot, unsigned count);
void dpn_eager_credit(struct dpn_verbs *v, uint16_t taken);
void dpn_eager_done(struct dpn_verbs *v, const struct dpn_send *send);
bool dpn_eager_has_arrived(const struct dpn_fenced_receiver *report, uint32_t number);
bool dpn_eager_is_lost(const struct dpn_verbs *v, unsigned lane,
                       const struct dpn_fenced_receiver *report);
/* Receiver: */
void dpn_eager_take(struct dpn_verbs *v, uint16_t low, uint32_t bytes);
/* Quick ones; whether there were any. */
bool dpn_eager_take_quick(struct dpn_verbs *v);
static inline bool dpn_eager_poll(struct dpn_verbs *v)
{
    if (v->is_sender || !v->eager_bytes)
        return false;
    const struct dpn_quick *next = &v->block->quick[v->eager_seen % DPN_EAGER_SLOTS];
    return __atomic_load_n(&next->head.number, __ATOMIC_RELAXED) == v->eager_seen &&
           dpn_eager_take_quick(v);
}
void dpn_eager_match_recv(struct dpn_verbs *v, struct dpn_recv *recv);
void dpn_eager_copied(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, uint32_t number);
/* The sender may leave when all it sent has come: there is something left, and nobody waits in vain. */
bool dpn_eager_goes_on(const struct dpn_verbs *v);
void dpn_eager_report(const struct dpn_verbs *v, struct dpn_fenced_receiver *report);

/* verbs_recv.c */
int dpn_verbs_irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                    struct dpn_request **out);
/* Those that are not held back. */
void dpn_verbs_push_lines(struct dpn_verbs *v);
/* No receive is without lines now. */
void dpn_verbs_release_lines(struct dpn_verbs *v);
/* Polls that find nothing, once there are many: the sender may want lines of what is held. */
static inline void dpn_verbs_wait_for_lines(struct dpn_verbs *v, bool found)
{
    v->held_polls = found ? 0 : v->held_polls + 1;
    if (v->held && v->held_polls >= DPN_HELD_POLLS)
        dpn_verbs_release_lines(v);
}

/* A message of this size has come to a room of that: what will come to the next one? */
void dpn_verbs_note_size(struct dpn_verbs *v, size_t room, size_t size);
/* The sender has ended this lane, and had read the lines before this one: others of that lane are to
 * be written again. */
void dpn_verbs_rewind_lines(struct dpn_verbs *v, unsigned lane, uint32_t lines_read);
/* A write of lines has completed. */
void dpn_verbs_lines_came(struct dpn_verbs *v, struct dpn_lane *lane, struct dpn_work work);
void dpn_verbs_take_mark(struct dpn_verbs *v, const struct dpn_lane *lane, uint32_t imm,
                         uint32_t bytes);
void dpn_verbs_report(const struct dpn_verbs *v, struct dpn_fenced_receiver *report);
int dpn_lane_post_recvs(struct dpn_verbs *v, struct dpn_lane *lane, unsigned count);

/* verbs_flush.c */
int dpn_verbs_iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                     struct dpn_request **out);
enum { DPN_LOOP_QUEUE = NCCL_NET_MAX_REQUESTS + DPN_EAGER_SLOTS };
int dpn_loop_open(struct dpn_rail *rail);
void dpn_loop_close(struct dpn_rail *rail);
/* A completion of a flush or a copy. */
void dpn_loop_take(struct dpn_verbs *v, struct dpn_work work, const struct ibv_wc *wc);
void dpn_loops_tend(struct dpn_verbs *v, int64_t now_ns);
/* Whether a short message can be copied to whatever memory the port reaches. */
bool dpn_port_takes_eager(const struct dpn_port *port);
void dpn_verbs_copy_to_gpu(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, const void *from,
                           unsigned slot);

/* verbs_keeper.c: from when it is ready until it is closed; forks from before there is a door. */
void dpn_verbs_heed_forks(void);
void dpn_verbs_keep(struct dpn_verbs *v);
void dpn_verbs_unkeep(struct dpn_verbs *v);

/* verbs_reg.c */
int dpn_verbs_reg(struct dpn_comm *comm, const struct dpn_region *region, struct dpn_memory **out);
void dpn_verbs_dereg(struct dpn_comm *comm, struct dpn_memory *base);

/* verbs_quick.c: what is the same for all of a lane, once it is joined with the peer's. */
void dpn_quick_prepare(struct dpn_verbs *v, struct dpn_lane *lane);
/* The stripe of a quick message, over its lane; whether it is on its way. */
bool dpn_quick_post(struct dpn_verbs *v, struct dpn_send *send);

/* verbs_line.c */
void dpn_line_seal(struct dpn_line *line);
/* Copy what is at `from` if it is line `number`, whole. */
bool dpn_line_read(const struct dpn_line *from, uint32_t number, struct dpn_line *out);

static inline bool dpn_memory_holds(const struct dpn_verbs_memory *memory, const void *data,
                                    size_t size)
{
    const uintptr_t at = (uintptr_t)data;

    return !size || (memory && at >= memory->from && at <= memory->to && size <= memory->to - at);
}

#endif
