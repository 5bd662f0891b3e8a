/* SPDX-License-Identifier: Apache-2.0
 *
 * sender.h - the sender's side of a connection: what is cleared to send, and what is in flight.
 */
#ifndef DPN_VERBS_SENDER_H
#define DPN_VERBS_SENDER_H

#include "nccl-plugin/verbs/queues.h"

enum {
    DPN_SENDS = 256, /* in flight; NCCL shares a connection among many users (PXN), each with 32 */
    DPN_STRIPE_UNIT = 128 /* an LL128 line of a GPU is never divided */
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

struct dpn_sender {
    struct dpn_queues q;
    bool may_eager; /* the receiver's memory takes eager messages, see DPN_CTS_NO_EAGER */
    uint32_t eager_sent;
    uint32_t eager_taken; /* eager messages that were copied */
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
    bool has_refused; /* a message was too long for its receive, which the peer is not told yet */
    struct dpn_refused refused;
};

/* verbs/send.c. Errors of the connection are the caller's business. */
int dpn_verbs_isend(struct dpn_sender *tx, const struct dpn_piece *piece, struct dpn_request **out);
void dpn_verbs_push(struct dpn_sender *tx);
/* Process CTS entries that have arrived. */
void dpn_verbs_read_cts(struct dpn_sender *tx);
/* Whether the report lacks a message that the device has acknowledged. */
bool dpn_verbs_has_lost(const struct dpn_sender *tx, const struct dpn_closed_receiver *report);
void dpn_verbs_sent(struct dpn_sender *tx, struct dpn_work work);
/* A queue pair is closed on both sides: send again what did not arrive over it. */
void dpn_verbs_resend(struct dpn_sender *tx, unsigned qp, const struct dpn_closed_receiver *report);

/* Note that the receiver is to be told that its buffer is too small for a message of this size. */
void dpn_verbs_refuse(struct dpn_sender *tx, size_t size, struct dpn_place place);

/* verbs/eager_send.c: eager messages. */
bool dpn_eager_may(const struct dpn_sender *tx, const struct dpn_piece *piece);
/* Process a credit. */
void dpn_eager_take_credit(struct dpn_sender *tx, const struct dpn_cts_entry *entry);
void dpn_eager_begin(struct dpn_sender *tx, struct dpn_send *send);
/* A complete group has been cleared to send. */
void dpn_eager_match_cts(struct dpn_sender *tx, unsigned slot, unsigned count);
void dpn_eager_credit(struct dpn_sender *tx, uint16_t taken);
void dpn_eager_done(struct dpn_sender *tx, const struct dpn_send *send);
bool dpn_eager_has_arrived(const struct dpn_closed_receiver *report, uint32_t number);
bool dpn_eager_is_lost(const struct dpn_sender *tx, unsigned qp,
                       const struct dpn_closed_receiver *report);
/* Post an inline message. Returns whether that succeeded. */
bool dpn_inline_post(struct dpn_sender *tx, struct dpn_send *send);

/* The next send in use from i on; DPN_SENDS: none. */
static inline unsigned dpn_verbs_next_send(const struct dpn_sender *tx, unsigned i)
{
    for (unsigned w = i / 64, at = i % 64; w < DPN_SENDS / 64; w++, at = 0) {
        const uint64_t rest = tx->sends_used[w] >> at << at;
        if (rest)
            return w * 64 + (unsigned)__builtin_ctzll(rest);
    }
    return DPN_SENDS;
}

#endif
