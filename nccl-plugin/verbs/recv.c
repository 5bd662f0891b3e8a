/* SPDX-License-Identifier: Apache-2.0
 *
 * recv.c - receives, and what arrives for them: immediates of stripes, and eager messages.
 */
#include "base/fail.h"
#include "nccl-plugin/net/ordered_copy.h"
#include "nccl-plugin/verbs/receiver.h"

/* ---- eager messages -------------------------------------------------------------------------- */

/* Short messages that do not wait for a receive. They are written to a ring of the
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

static uint64_t bit_of(uint32_t number)
{
    return UINT64_C(1) << number % DPN_EAGER_SLOTS;
}

static const struct dpn_inline_message *inline_of(const struct dpn_receiver *rx, uint32_t number)
{
    return &rx->q.block->inlines[number % DPN_EAGER_SLOTS];
}

static const struct dpn_eager_head *head_of(const struct dpn_receiver *rx, uint32_t number)
{
    if (!(rx->eager_large & bit_of(number)))
        return &inline_of(rx, number)->head;
    return (const struct dpn_eager_head *)(uintptr_t)dpn_eager_slot((uintptr_t)rx->q.block,
                                                                    rx->q.eager_bytes, number);
}

static const void *data_of(const struct dpn_receiver *rx, uint32_t number)
{
    return rx->eager_large & bit_of(number) ? (const void *)(head_of(rx, number) + 1)
                                            : inline_of(rx, number)->data;
}

void dpn_eager_copied(struct dpn_receiver *rx, struct dpn_recv *recv, unsigned sub, uint32_t number)
{
    const uint64_t bit = bit_of(number);

    recv->buffers[sub].done = true;
    recv->base.left--;
    rx->q.failures = 0;
    if (rx->eager_large & bit)
        rx->credit_every = DPN_LARGE_SLOTS / 2;
    rx->eager_busy &= ~bit;
    rx->eager_large &= ~bit;
    while (rx->eager_taken != rx->eager_seen && !(rx->eager_busy & bit_of(rx->eager_taken)))
        rx->eager_taken++;
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
static void note_delayed(struct dpn_receiver *rx, const struct dpn_recv *recv)
{
    const uint32_t bit = 1u << recv->base.index;

    if (!(rx->delayed & bit))
        return;
    rx->is_credit_due = true;
    if (!has_open_buffer(recv))
        rx->delayed &= ~bit;
}

static void copy(struct dpn_receiver *rx, struct dpn_recv *recv, unsigned sub, uint32_t number)
{
    const uint32_t size = head_of(rx, number)->size; /* read once: the peer can write there */
    const void *data = data_of(rx, number);
    struct dpn_recv_buffer *buffer = &recv->buffers[sub];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)buffer->memory;

    if (size > buffer->size) {
        dpn_cts_release(rx); /* so that the peer reports the error, too */
        dpn_cts_push(rx);
        dpn_verbs_fail(&rx->q, DP_EMISMATCH, "the peer has %u bytes for a receive of %zu (tag %d)",
                       size, buffer->size, buffer->tag);
        return;
    }
    rx->eager_waits &= ~bit_of(number);
    dpn_verbs_note_size(rx, buffer->size, size);
    buffer->size = size;
    buffer->is_copied = true;
    note_delayed(rx, recv);
    dpn_stat_count(&rx->q.comm->stat, DPN_STAT_EAGER, 1);
    if (size && memory->type != NCCL_PTR_HOST) {
        dpn_verbs_copy_to_gpu(rx, recv, sub, data, number % DPN_EAGER_SLOTS);
        return;
    }
    if (size) /* another thread may poll this memory: see net/ordered_copy.h */
        dpn_ordered_copy(buffer->data, data, size);
    dpn_eager_copied(rx, recv, sub, number);
}

/* Whether the sender had not read the CTS entry of this buffer when it sent, and the tag matches.
 */
static bool is_for(const struct dpn_receiver *rx, const struct dpn_recv *recv, unsigned sub,
                   const struct dpn_eager_head *head)
{
    return recv->buffers[sub].tag == head->tag && is_open(&recv->buffers[sub]) &&
           (rx->delayed >> recv->base.index & 1 || (int32_t)(recv->cts + sub - head->cts) >= 0);
}

/* Fast path: most messages arrive in the order of the receives. Returns the receive of the oldest
 * open buffer if the message is for it, otherwise NULL. */
static struct dpn_recv *first_for(struct dpn_receiver *rx, const struct dpn_eager_head *head)
{
    while (rx->buffers_closed != rx->buffers_made) {
        const uint8_t index = rx->buffer_recvs[rx->buffers_closed % DPN_PLACES];
        struct dpn_recv *recv = &rx->recvs[index];
        if (recv->order == rx->buffers_closed && !(rx->free >> index & 1) && has_open_buffer(recv))
            return recv->count == 1 && is_for(rx, recv, 0, head) ? recv : NULL;
        rx->buffers_closed++;
    }
    return NULL;
}

/* Match a message that has arrived with the oldest buffer that it is for. */
static void match_message(struct dpn_receiver *rx, uint32_t number)
{
    const struct dpn_eager_head *head = head_of(rx, number);
    struct dpn_recv *found = first_for(rx, head);
    uint32_t best = 0;

    if (found) {
        copy(rx, found, 0, number);
        return;
    }
    for (uint32_t used = ~rx->free; used; used &= used - 1) {
        struct dpn_recv *recv = &rx->recvs[__builtin_ctz(used)];
        if (!recv->base.left)
            continue;
        for (unsigned sub = 0; sub < recv->count; sub++)
            if ((!found || (int32_t)(recv->order + sub - best) < 0) &&
                is_for(rx, recv, sub, head)) {
                best = recv->order + sub;
                found = recv;
            }
    }
    if (found)
        copy(rx, found, best - found->order, number);
}

static void match_recv(struct dpn_receiver *rx, struct dpn_recv *recv)
{
    for (unsigned sub = 0; sub < recv->count && rx->eager_waits; sub++)
        for (uint32_t n = rx->eager_taken; n != rx->eager_seen && !rx->q.error; n++)
            if (rx->eager_waits & bit_of(n) && head_of(rx, n)->tag == recv->buffers[sub].tag) {
                copy(rx, recv, sub, n);
                break;
            }
}

static bool makes_sense(const struct dpn_receiver *rx, uint32_t number, uint32_t bytes)
{
    const struct dpn_eager_head *head = head_of(rx, number);

    return bytes >= sizeof(*head) && head->number == number &&
           head->size == bytes - sizeof(*head) && head->size <= rx->q.eager_bytes &&
           (int32_t)(rx->cts_made - head->cts) >= 0;
}

/* Bit mask of the messages that share a slot of the ring with this one. */
static uint64_t same_ring_slot(uint32_t number)
{
    return UINT64_C(0x0001000100010001) << number % DPN_LARGE_SLOTS;
}
_Static_assert(DPN_LARGE_SLOTS == 16 && DPN_EAGER_SLOTS == 64, "as the bits above assume");

/* As below: a duplicate of a message that has arrived. It does no harm in its own slot,
 * unless a later message has arrived there. */
static bool is_duplicate_eager(const struct dpn_receiver *rx, uint16_t low)
{
    const uint16_t behind = (uint16_t)((uint16_t)rx->eager_seen - low);
    const uint32_t number = rx->eager_seen - behind, ahead = rx->eager_seen + (uint16_t)-behind;

    if (behind && behind <= DPN_EAGER_SLOTS)
        return number - rx->eager_taken < DPN_EAGER_SLOTS ||
               !(rx->eager_busy & rx->eager_large & same_ring_slot(number));
    return ahead - rx->eager_taken < DPN_EAGER_SLOTS && rx->eager_arrived & bit_of(ahead);
}

/* Whether the next message in the order of sending has arrived. */
static bool has_next_arrived(struct dpn_receiver *rx)
{
    const uint32_t next = rx->eager_seen;
    const struct dpn_inline_message *message = inline_of(rx, next);
    const uint64_t bit = bit_of(next);

    if (rx->eager_arrived & bit) {
        rx->eager_arrived &= ~bit;
        return true;
    }
    if (next - rx->eager_taken >= DPN_EAGER_SLOTS || !dpn_inline_has_arrived(message, next))
        return false;
    if (!makes_sense(rx, next, message->head.size + (uint32_t)sizeof(message->head)))
        dpn_verbs_fail(&rx->q, DP_EMISMATCH, "what arrived is no eager message (%u)", next);
    rx->eager_busy |= bit;
    return !rx->q.error;
}

/* Process messages in the order of sending, whatever the order of arrival. */
bool dpn_eager_take_inline(struct dpn_receiver *rx)
{
    const uint32_t seen = rx->eager_seen;

    while (!rx->q.error && has_next_arrived(rx)) {
        const uint32_t next = rx->eager_seen++;
        rx->eager_waits |= bit_of(next);
        match_message(rx, next);
    }
    return rx->eager_seen != seen;
}

void dpn_eager_take(struct dpn_receiver *rx, uint16_t low, uint32_t bytes)
{
    const uint32_t number = rx->eager_taken + (uint16_t)(low - (uint16_t)rx->eager_taken);
    const uint64_t bit = bit_of(number);

    if (rx->q.eager_bytes && is_duplicate_eager(rx, low))
        return;
    const bool may_be = rx->q.eager_bytes && number - rx->eager_taken < DPN_LARGE_SLOTS &&
                        !(rx->eager_busy & bit) && (int32_t)(number - rx->eager_seen) >= 0;
    rx->eager_large |= may_be ? bit : 0;
    if (!may_be || !makes_sense(rx, number, bytes)) {
        dpn_verbs_fail(&rx->q, DP_EMISMATCH, "what arrived is no eager message (%u, %u bytes)", low,
                       bytes);
        return;
    }
    rx->eager_busy |= bit;
    rx->eager_arrived |= bit;
    dpn_eager_take_inline(rx);
}

bool dpn_eager_has_unclaimed(const struct dpn_receiver *rx)
{
    for (uint32_t used = ~rx->free; used; used &= used - 1)
        if (has_open_buffer(&rx->recvs[__builtin_ctz(used)]))
            return false;
    return rx->eager_busy;
}

static void report_eager(const struct dpn_receiver *rx, struct dpn_closed_receiver *report)
{
    report->eager_taken = rx->eager_taken;
    report->eager_seen = rx->eager_seen;
    report->eager_arrived = rx->eager_arrived;
    for (uint32_t n = rx->eager_seen; n != rx->eager_taken + DPN_EAGER_SLOTS; n++)
        if (dpn_inline_has_arrived(inline_of(rx, n), n))
            report->eager_arrived |= bit_of(n);
}

/* ---- arrival --------------------------------------------------------------------------------- */

static void finish_buffer(struct dpn_receiver *rx, struct dpn_recv *recv, struct dpn_imm imm)
{
    struct dpn_recv_buffer *buffer = &recv->buffers[imm.sub];
    const struct dpn_record *record = &rx->q.block->records[imm.slot * DPN_MAX_RECEIVES + imm.sub];

    if (imm.has_record && record->generation != imm.generation) {
        dpn_verbs_fail(&rx->q, DP_EMISMATCH, "a message arrived without its length");
        return;
    }
    const size_t size = imm.has_record ? record->size : buffer->got;
    dpn_verbs_note_size(rx, buffer->size, size);
    buffer->size = size;
    buffer->done = true;
    recv->base.left--;
    rx->q.failures = 0;
}

/* A duplicate of a stripe that has arrived, which a reliable connection must not deliver. It writes
 * the same bytes again, which is harmless until test has reported the receive as done; after that
 * the memory may have been reused. */
static bool is_duplicate(const struct dpn_receiver *rx, struct dpn_imm imm)
{
    const struct dpn_recv *recv = &rx->recvs[imm.slot];
    const struct dpn_recv_buffer *buffer = &recv->buffers[imm.sub];

    return recv->generation == imm.generation && imm.sub < recv->count && buffer->done &&
           !buffer->is_copied && !(rx->free >> imm.slot & 1);
}

static void refuse_imm(struct dpn_receiver *rx, unsigned qp, struct dpn_imm imm, uint32_t raw)
{
    const struct dpn_recv *recv = &rx->recvs[imm.slot];
    const struct dpn_port *port = rx->q.rails[rx->q.qps[qp].rail].port;

    dpn_verbs_fail(
        &rx->q, DP_EMISMATCH,
        "what arrived by %s belongs to no receive (0x%08x): it is for use "
        "%u of receive %u, which is in use %u%s; stripe %u of %u, queue pair %u, epoch %u",
        port->name, raw, imm.generation, imm.slot, recv->generation,
        recv->buffers[imm.sub].done || recv->buffers[imm.sub].is_copied ? ", and done" : "",
        imm.stripe, imm.count, rx->q.qps[qp].ibv ? rx->q.qps[qp].ibv->qp_num : 0,
        rx->q.qps[qp].epoch);
}

/* Data for a GPU has to be flushed. */
static void note_written(struct dpn_receiver *rx, unsigned qp, const struct dpn_recv_buffer *buffer)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)buffer->memory;

    if (memory && memory->type == NCCL_PTR_CUDA)
        rx->q.rails[rx->q.qps[qp].rail].loop.written++;
}

void dpn_verbs_take_imm(struct dpn_receiver *rx, unsigned qp, uint32_t raw, uint32_t bytes)
{
    const struct dpn_imm imm = dpn_imm_unpack(raw);
    struct dpn_recv *recv = &rx->recvs[imm.slot];
    struct dpn_recv_buffer *buffer = &recv->buffers[imm.sub];
    const uint16_t bit = (uint16_t)(1u << imm.stripe), all = (uint16_t)((1u << imm.count) - 1);

    if (is_duplicate(rx, imm))
        return;
    if (recv->generation != imm.generation || imm.sub >= recv->count || buffer->done ||
        buffer->is_copied || imm.stripe >= imm.count) {
        refuse_imm(rx, qp, imm, raw);
        return;
    }
    note_written(rx, qp, buffer);
    if (!(buffer->stripes & bit))
        buffer->got += bytes;
    buffer->stripes |= bit;
    if (buffer->stripes == all)
        finish_buffer(rx, recv, imm);
}

void dpn_verbs_report(const struct dpn_receiver *rx, struct dpn_closed_receiver *report)
{
    report_eager(rx, report);
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        const struct dpn_recv *recv = &rx->recvs[i];
        struct dpn_arrived *a = &report->arrived[i];
        a->generation = (uint16_t)recv->generation;
        a->is_open = !(rx->free >> i & 1) && recv->base.left;
        a->count = (uint8_t)recv->count;
        for (unsigned sub = 0; sub < recv->count; sub++)
            a->stripes[sub] = recv->buffers[sub].done ? UINT16_MAX : recv->buffers[sub].stripes;
    }
}

/* ---- irecv ----------------------------------------------------------------------------------- */

static int check_pieces(int n, const struct dpn_piece *pieces)
{
    for (int i = 0; i < n; i++)
        if (!dpn_memory_holds((const struct dpn_verbs_memory *)pieces[i].memory, pieces[i].data,
                              pieces[i].size))
            return dp_fail(DP_EINVAL, "receive of %zu bytes into what is not in the memory "
                           "registered for it", pieces[i].size);
    return 0;
}

int dpn_verbs_irecv(struct dpn_receiver *rx, int n, const struct dpn_piece *pieces,
                    struct dpn_request **out)
{
    int err = check_pieces(n, pieces);

    if (err)
        return err;
    if (rx->q.error || !rx->free)
        return 0;
    struct dpn_recv *recv = &rx->recvs[__builtin_ctz(rx->free)];
    rx->free &= ~(1u << recv->base.index);
    rx->q.open_count++;
    recv->generation = (recv->generation + 1) % DPN_GENERATIONS;
    recv->count = recv->base.left = (unsigned)n;
    recv->order = rx->buffers_made;
    rx->buffer_recvs[recv->order % DPN_PLACES] = (uint8_t)recv->base.index;
    rx->buffers_made += (uint32_t)n;
    for (int i = 0; i < n; i++)
        recv->buffers[i] = (struct dpn_recv_buffer){.size = pieces[i].size, .tag = pieces[i].tag,
                                           .data = pieces[i].data,
                                           .memory = pieces[i].memory};
    rx->delayed |= 1u << recv->base.index;
    /* the sender compares generations: is_later in send.c */
    if (++recv->uses_without_cts > DPN_GENERATIONS / 4)
        dpn_cts_release(rx);
    match_recv(rx, recv);
    dpn_cts_make(rx, n, pieces);
    if (!rx->q.error)
        dpn_cts_push(rx);
    *out = &recv->base.base;
    return 0;
}
