/* SPDX-License-Identifier: Apache-2.0
 *
 * eager_send.c - the sender's side of verbs/recv.c, where eager messages are explained.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/sender.h"

#include <string.h>

/* ---- inline messages, whose work request is ready but for the slot --------------------------- */

bool dpn_inline_post(struct dpn_sender *tx, struct dpn_send *send)
{
    struct dpn_stripe *s = &send->stripes[0];
    struct dpn_qp *qp = &tx->q.qps[s->qp];
    const unsigned slot = send->number % DPN_EAGER_SLOTS;
    struct ibv_send_wr *bad;

    if (qp->requests_out == DPN_SEND_QUEUE)
        return false;
    qp->inline_wr.wr_id =
        qp->inline_work | dpn_work_pack((struct dpn_work){.slot = send->base.index});
    qp->inline_wr.wr.rdma.remote_addr = qp->peer_block + offsetof(struct dpn_block, inlines) +
                                        slot * sizeof(struct dpn_inline_message);
    qp->inline_sge.addr = (uintptr_t)&tx->q.block->inlines[slot];
    qp->inline_sge.length = send->inline_len;
    qp->inline_wr.send_flags =
        IBV_SEND_SIGNALED | (send->inline_len <= qp->inline_bytes ? IBV_SEND_INLINE : 0u);
    int error = ibv_post_send(qp->ibv, &qp->inline_wr, &bad);
    s->epoch = qp->epoch;
    qp->requests_out++;
    if (error) {
        dpn_qp_fail(&tx->q, qp, "send", strerror(error), ": the send queue takes no more");
        return false;
    }
    qp->sends_out++;
    s->chains++;
    s->state = DPN_STRIPE_SENT;
    s->sent = s->len;
    tx->eager_sends[slot].qp = s->qp;
    return true;
}

/* ---- all eager messages ---------------------------------------------------------------------- */

/* Inline messages are copied and polled for by the CPU, so their memory is the host's. */
static bool is_inline(size_t size, const struct dpn_verbs_memory *memory)
{
    return size <= DPN_INLINE_MESSAGE_BYTES && (!size || memory->type == NCCL_PTR_HOST);
}

bool dpn_eager_may(const struct dpn_sender *tx, const struct dpn_piece *piece)
{
    const bool fits_inline = is_inline(piece->size, (const struct dpn_verbs_memory *)piece->memory);

    return tx->may_eager && tx->q.eager_bytes && piece->size <= tx->q.eager_bytes &&
           tx->eager_sent - tx->eager_taken < (fits_inline ? DPN_EAGER_SLOTS : DPN_LARGE_SLOTS);
}

/* CTS entries of an incomplete group are not cleared to send yet, so they count as unread. */
void dpn_eager_begin(struct dpn_sender *tx, struct dpn_send *send)
{
    const uint32_t number = tx->eager_sent++;
    const struct dpn_eager_head head = {.number = number,
                                        .size = (uint32_t)send->size,
                                        .tag = send->tag,
                                        .cts = tx->cts_read - tx->cts_of_group};

    send->is_eager = true;
    send->is_inline = is_inline(send->size, send->memory);
    dpn_stat_count(&tx->q.comm->stat, DPN_STAT_EAGER, 1);
    send->number = number;
    tx->eager_sends[number % DPN_EAGER_SLOTS] = (struct dpn_eager_send){
        .number = number, .waits = true, .tag = send->tag, .size = (uint32_t)send->size};
    if (send->is_inline)
        send->inline_len =
            dpn_inline_make(&tx->q.block->inlines[number % DPN_EAGER_SLOTS], &head, send->data);
    else
        tx->q.block->heads[number % DPN_LARGE_SLOTS] = head;
}

/* The oldest message with this tag that waits for its CTS entry. */
static struct dpn_eager_send *find_waiting(struct dpn_sender *tx, int tag)
{
    for (uint32_t n = tx->eager_taken; n != tx->eager_sent; n++) {
        struct dpn_eager_send *e = &tx->eager_sends[n % DPN_EAGER_SLOTS];
        if (e->waits && e->tag == tag)
            return e;
    }
    return NULL;
}

void dpn_verbs_refuse(struct dpn_sender *tx, size_t size, struct dpn_place place)
{
    tx->has_refused = true;
    tx->refused = (struct dpn_refused){.generation = tx->targets[place.slot][place.sub].generation,
                                       .slot = (uint8_t)place.slot,
                                       .sub = (uint8_t)place.sub,
                                       .size = size};
    dpn_cts_list_take(&tx->cts_list, place);
}

static void take_buffer(struct dpn_sender *tx, struct dpn_eager_send *e, struct dpn_place place)
{
    const size_t room = dpn_cts_list_room(&tx->cts_list, place);

    e->waits = false;
    if (e->size > room) {
        dpn_verbs_refuse(tx, e->size, place);
        dpn_verbs_fail(&tx->q, DP_EMISMATCH,
                       "send of %u bytes (tag %d): the peer's receive has %zu", e->size, e->tag,
                       room);
        return;
    }
    dpn_cts_list_take(&tx->cts_list, place);
}

void dpn_eager_match_cts(struct dpn_sender *tx, unsigned slot, unsigned count)
{
    for (unsigned sub = 0; sub < count && !tx->q.error; sub++) {
        const struct dpn_place place = {slot, sub};
        const bool is_taken = tx->taken_of_group >> sub & 1;
        struct dpn_eager_send *e =
            is_taken ? NULL : find_waiting(tx, tx->arriving.buffers[sub].tag);
        if (is_taken)
            dpn_cts_list_take(&tx->cts_list, place);
        else if (e)
            take_buffer(tx, e, place);
    }
}

void dpn_eager_take_credit(struct dpn_sender *tx, const struct dpn_cts_entry *entry)
{
    const uint32_t known = tx->eager_taken, sent = tx->eager_sent - known,
                   seen = entry->bytes - known;

    if (seen > sent) {
        dpn_verbs_fail(&tx->q, DP_EMISMATCH,
                       "the peer has given receives to more eager messages "
                       "than were sent");
        return;
    }
    for (uint32_t n = known; n != entry->bytes; n++)
        if (!(entry->address >> n % DPN_EAGER_SLOTS & 1))
            tx->eager_sends[n % DPN_EAGER_SLOTS].waits = false;
    dpn_eager_credit(tx, entry->taken);
}

/* A CTS entry reports the low 16 bits of the number of messages copied. */
void dpn_eager_credit(struct dpn_sender *tx, uint16_t taken)
{
    const uint32_t more = (uint16_t)(taken - (uint16_t)tx->eager_taken);

    if (more > tx->eager_sent - tx->eager_taken)
        dpn_verbs_fail(&tx->q, DP_EMISMATCH,
                       "the peer has copied more eager messages than were sent");
    else
        tx->eager_taken += more;
}

/* The slot may already be in use for a later message. */
void dpn_eager_done(struct dpn_sender *tx, const struct dpn_send *send)
{
    struct dpn_eager_send *e = &tx->eager_sends[send->number % DPN_EAGER_SLOTS];

    if (e->number == send->number)
        e->is_done = true;
}

bool dpn_eager_has_arrived(const struct dpn_closed_receiver *report, uint32_t number)
{
    if ((int32_t)(number - report->eager_seen) < 0)
        return true;
    return number - report->eager_taken < DPN_EAGER_SLOTS &&
           report->eager_arrived >> number % DPN_EAGER_SLOTS & 1;
}

bool dpn_eager_is_lost(const struct dpn_sender *tx, unsigned qp,
                       const struct dpn_closed_receiver *report)
{
    for (uint32_t n = tx->eager_taken; n != tx->eager_sent; n++) {
        const struct dpn_eager_send *e = &tx->eager_sends[n % DPN_EAGER_SLOTS];
        if (e->is_done && e->qp == qp && !dpn_eager_has_arrived(report, n))
            return true;
    }
    return false;
}
