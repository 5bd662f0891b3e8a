/* SPDX-License-Identifier: Apache-2.0
 *
 * eager_recv.c - short messages that do not wait for a receive. They are written to a ring of the
 * receiver, which copies them to their receive.
 *
 *      sender                                         receiver
 *      message n, for the first entry  -- RDMA write + immediate n -->  slot n % 16 of the ring
 *      of its tag from entry L on      or -- RDMA write -->             inline message n % 64
 *      its CTS entry arrives          <-- CTS entry --                  irecv; copies the message
 *      its slot is free again         <-- a later CTS entry --
 *
 * Both sides compute without communication which receive such a message is for: the first CTS entry
 * from L on that has its tag and that no earlier eager message has taken. L is the first entry that
 * the sender had not read when it sent; of the entries before L none of that tag was left. So it
 * does not matter which entries are in flight, nor in which order messages arrive.
 *
 * A receive whose CTS entries are delayed comes after all that have entries. If it completes before
 * they are written, it needs none. A credit tells the sender instead: an entry of the same ring
 * that reports which messages are matched with a receive and how many slots are free. It covers all
 * messages before it.
 *
 * A slot is free again only when a CTS entry has reported that, which proves that the message had
 * arrived. So a message that is sent again, over another queue pair, is written to a slot that is
 * still its own.
 */
#include "base/fail.h"
#include "nccl-plugin/net/ordered_copy.h"
#include "nccl-plugin/verbs/comm.h"

#include <string.h>

static uint64_t bit_of(uint32_t number)
{
    return UINT64_C(1) << number % DPN_EAGER_SLOTS;
}

static const struct dpn_inline_message *inline_of(const struct dpn_verbs *v, uint32_t number)
{
    return &v->queues.block->inlines[number % DPN_EAGER_SLOTS];
}

static const struct dpn_eager_head *head_of(const struct dpn_verbs *v, uint32_t number)
{
    if (!(v->recv.eager_large & bit_of(number)))
        return &inline_of(v, number)->head;
    return (const struct dpn_eager_head *)(uintptr_t)dpn_eager_slot((uintptr_t)v->queues.block,
                                                                    v->eager_bytes, number);
}

static const void *data_of(const struct dpn_verbs *v, uint32_t number)
{
    return v->recv.eager_large & bit_of(number) ? (const void *)(head_of(v, number) + 1)
                                                : inline_of(v, number)->data;
}

void dpn_eager_copied(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, uint32_t number)
{
    const uint64_t bit = bit_of(number);

    recv->buffers[sub].done = true;
    recv->base.left--;
    v->queues.failures = 0;
    if (v->recv.eager_large & bit)
        v->recv.credit_every = DPN_LARGE_SLOTS / 2;
    v->recv.eager_busy &= ~bit;
    v->recv.eager_large &= ~bit;
    while (v->eager_taken != v->recv.eager_seen && !(v->recv.eager_busy & bit_of(v->eager_taken)))
        v->eager_taken++;
}

static bool is_open(const struct dpn_recv_buffer *buffer)
{
    return !buffer->done && !buffer->is_copied;
}

static bool has_open_buffer(const struct dpn_recv *recv)
{
    for (unsigned sub = 0; sub < recv->count; sub++)
        if (is_open(&recv->buffers[sub]))
            return true;
    return false;
}

/* A receive without CTS entries: the sender learns from a credit that it is complete. */
static void note_delayed(struct dpn_verbs *v, const struct dpn_recv *recv)
{
    const uint32_t bit = 1u << recv->base.index;

    if (!(v->recv.delayed & bit))
        return;
    v->recv.is_credit_due = true;
    if (!has_open_buffer(recv))
        v->recv.delayed &= ~bit;
}

static void copy(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, uint32_t number)
{
    const uint32_t size = head_of(v, number)->size; /* read once: the peer can write there */
    const void *data = data_of(v, number);
    struct dpn_recv_buffer *buffer = &recv->buffers[sub];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)buffer->memory;

    if (size > buffer->size) {
        dpn_cts_release(v); /* so that the peer reports the error, too */
        dpn_cts_push(v);
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has %u bytes for a receive of %zu (tag %d)",
                       size, buffer->size, buffer->tag);
        return;
    }
    v->recv.eager_waits &= ~bit_of(number);
    dpn_verbs_note_size(v, buffer->size, size);
    buffer->size = size;
    buffer->is_copied = true;
    note_delayed(v, recv);
    dpn_stat_count(&v->comm->stat, DPN_STAT_EAGER, 1);
    if (size && memory->type != NCCL_PTR_HOST) {
        dpn_verbs_copy_to_gpu(v, recv, sub, data, number % DPN_EAGER_SLOTS);
        return;
    }
    if (size) /* another thread may poll this memory: see net/ordered_copy.h */
        dpn_ordered_copy(buffer->data, data, size);
    dpn_eager_copied(v, recv, sub, number);
}

/* Whether the sender had not read the CTS entry of this buffer when it sent, and the tag matches.
 */
static bool is_for(const struct dpn_verbs *v, const struct dpn_recv *recv, unsigned sub,
                   const struct dpn_eager_head *head)
{
    return recv->buffers[sub].tag == head->tag && is_open(&recv->buffers[sub]) &&
           (v->recv.delayed >> recv->base.index & 1 || (int32_t)(recv->cts + sub - head->cts) >= 0);
}

/* Fast path: most messages arrive in the order of the receives. Returns the receive of the oldest
 * open buffer if the message is for it, otherwise NULL. */
static struct dpn_recv *first_for(struct dpn_verbs *v, const struct dpn_eager_head *head)
{
    while (v->recv.buffers_closed != v->recv.buffers_made) {
        const uint8_t index = v->recv.buffer_recvs[v->recv.buffers_closed % DPN_PLACES];
        struct dpn_recv *recv = &v->recv.recvs[index];
        if (recv->order == v->recv.buffers_closed && !(v->recv.free >> index & 1) &&
            has_open_buffer(recv))
            return recv->count == 1 && is_for(v, recv, 0, head) ? recv : NULL;
        v->recv.buffers_closed++;
    }
    return NULL;
}

/* Match a message that has arrived with the oldest buffer that it is for. */
static void match_message(struct dpn_verbs *v, uint32_t number)
{
    const struct dpn_eager_head *head = head_of(v, number);
    struct dpn_recv *found = first_for(v, head);
    uint32_t best = 0;

    if (found) {
        copy(v, found, 0, number);
        return;
    }
    for (uint32_t used = ~v->recv.free; used; used &= used - 1) {
        struct dpn_recv *recv = &v->recv.recvs[__builtin_ctz(used)];
        if (!recv->base.left)
            continue;
        for (unsigned sub = 0; sub < recv->count; sub++)
            if ((!found || (int32_t)(recv->order + sub - best) < 0) && is_for(v, recv, sub, head)) {
                best = recv->order + sub;
                found = recv;
            }
    }
    if (found)
        copy(v, found, best - found->order, number);
}

void dpn_eager_match_recv(struct dpn_verbs *v, struct dpn_recv *recv)
{
    for (unsigned sub = 0; sub < recv->count && v->recv.eager_waits; sub++)
        for (uint32_t n = v->eager_taken; n != v->recv.eager_seen && !v->error; n++)
            if (v->recv.eager_waits & bit_of(n) && head_of(v, n)->tag == recv->buffers[sub].tag) {
                copy(v, recv, sub, n);
                break;
            }
}

static bool makes_sense(const struct dpn_verbs *v, uint32_t number, uint32_t bytes)
{
    const struct dpn_eager_head *head = head_of(v, number);

    return bytes >= sizeof(*head) && head->number == number &&
           head->size == bytes - sizeof(*head) && head->size <= v->eager_bytes &&
           (int32_t)(v->recv.cts_made - head->cts) >= 0;
}

/* Bit mask of the messages that share a slot of the ring with this one. */
static uint64_t same_ring_slot(uint32_t number)
{
    return UINT64_C(0x0001000100010001) << number % DPN_LARGE_SLOTS;
}
_Static_assert(DPN_LARGE_SLOTS == 16 && DPN_EAGER_SLOTS == 64, "as the bits above assume");

/* As in verbs/recv.c: a duplicate of a message that has arrived. It does no harm in its own slot,
 * unless a later message has arrived there. */
static bool is_duplicate(const struct dpn_verbs *v, uint16_t low)
{
    const uint16_t behind = (uint16_t)((uint16_t)v->recv.eager_seen - low);
    const uint32_t number = v->recv.eager_seen - behind,
                   ahead = v->recv.eager_seen + (uint16_t)-behind;

    if (behind && behind <= DPN_EAGER_SLOTS)
        return number - v->eager_taken < DPN_EAGER_SLOTS ||
               !(v->recv.eager_busy & v->recv.eager_large & same_ring_slot(number));
    return ahead - v->eager_taken < DPN_EAGER_SLOTS && v->recv.eager_arrived & bit_of(ahead);
}

/* Whether the next message in the order of sending has arrived. */
static bool has_next_arrived(struct dpn_verbs *v)
{
    const uint32_t next = v->recv.eager_seen;
    const struct dpn_inline_message *message = inline_of(v, next);
    const uint64_t bit = bit_of(next);

    if (v->recv.eager_arrived & bit) {
        v->recv.eager_arrived &= ~bit;
        return true;
    }
    if (next - v->eager_taken >= DPN_EAGER_SLOTS || !dpn_inline_has_arrived(message, next))
        return false;
    if (!makes_sense(v, next, message->head.size + (uint32_t)sizeof(message->head)))
        dpn_verbs_fail(v, DP_EMISMATCH, "what arrived is no eager message (%u)", next);
    v->recv.eager_busy |= bit;
    return !v->error;
}

/* Process messages in the order of sending, whatever the order of arrival. */
static bool take_all(struct dpn_verbs *v)
{
    const uint32_t seen = v->recv.eager_seen;

    while (!v->error && has_next_arrived(v)) {
        const uint32_t next = v->recv.eager_seen++;
        v->recv.eager_waits |= bit_of(next);
        match_message(v, next);
    }
    return v->recv.eager_seen != seen;
}

bool dpn_eager_take_inline(struct dpn_verbs *v)
{
    return take_all(v);
}

void dpn_eager_take(struct dpn_verbs *v, uint16_t low, uint32_t bytes)
{
    const uint32_t number = v->eager_taken + (uint16_t)(low - (uint16_t)v->eager_taken);
    const uint64_t bit = bit_of(number);

    if (v->eager_bytes && is_duplicate(v, low))
        return;
    const bool may_be = !v->queues.is_sender && v->eager_bytes &&
                        number - v->eager_taken < DPN_LARGE_SLOTS && !(v->recv.eager_busy & bit) &&
                        (int32_t)(number - v->recv.eager_seen) >= 0;
    v->recv.eager_large |= may_be ? bit : 0;
    if (!may_be || !makes_sense(v, number, bytes)) {
        dpn_verbs_fail(v, DP_EMISMATCH, "what arrived is no eager message (%u, %u bytes)", low,
                       bytes);
        return;
    }
    v->recv.eager_busy |= bit;
    v->recv.eager_arrived |= bit;
    take_all(v);
}

bool dpn_eager_has_unclaimed(const struct dpn_verbs *v)
{
    for (uint32_t used = ~v->recv.free; used; used &= used - 1)
        if (has_open_buffer(&v->recv.recvs[__builtin_ctz(used)]))
            return false;
    return v->recv.eager_busy;
}

void dpn_eager_report(const struct dpn_verbs *v, struct dpn_closed_receiver *report)
{
    report->eager_taken = v->eager_taken;
    report->eager_seen = v->recv.eager_seen;
    report->eager_arrived = v->recv.eager_arrived;
    for (uint32_t n = v->recv.eager_seen; n != v->eager_taken + DPN_EAGER_SLOTS; n++)
        if (dpn_inline_has_arrived(inline_of(v, n), n))
            report->eager_arrived |= bit_of(n);
}
