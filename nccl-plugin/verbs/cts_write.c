/* SPDX-License-Identifier: Apache-2.0
 *
 * cts_write.c - the receiver writes CTS entries for the sender.
 *
 * A CTS entry costs a write, as a message does, and an eager message needs none. So a receive for
 * which a short message is expected gets its CTS entries only when nothing has arrived for a while
 * and the sender may wait for them, or when a receive for a long message follows. A receive that is
 * done by then needs none: a credit covers many of them, before the sender runs out of slots.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/receiver.h"

#include <string.h>

enum {
    /* writes of CTS entries; the completion of a signaled one frees entries of the send queue */
    SIGNAL_EVERY = 8,
    /* so that the sender learns of free slots before it runs out */
    CREDIT_EVERY = DPN_EAGER_SLOTS / 2,
    /* for longer messages a CTS entry costs little; see tests/rdma-vm/README.md */
    SHORT_BYTES = 512,
    SHORT_ENOUGH = 4 /* consecutive eager messages */
};

/* ---- writing --------------------------------------------------------------------------------- */

/* Write again the entries that went over this queue pair, which the sender has closed, and over no
 * other one: each entry is in flight once at most. cts_read may be outdated, as the sender has read
 * on while its message was in flight. Only the last DPN_CTS_ENTRIES entries can be unread, and a
 * repeated entry has the same bytes. */
void dpn_cts_rewind(struct dpn_receiver *rx, unsigned qp, uint32_t cts_read)
{
    const uint32_t claimed = rx->cts_made - cts_read,
                   unread = claimed < DPN_CTS_ENTRIES ? claimed : DPN_CTS_ENTRIES;
    uint32_t first = rx->cts_sent;

    if (claimed > INT32_MAX) {
        dpn_verbs_fail(&rx->q, DP_EMISMATCH, "the peer has read %u CTS entries of %u", cts_read,
                       rx->cts_made);
        return;
    }
    for (uint32_t n = rx->cts_made - unread; n != rx->cts_made; n++) {
        if (rx->cts_qps[n % DPN_CTS_ENTRIES] != qp)
            continue;
        rx->cts_qps[n % DPN_CTS_ENTRIES] = DPN_MAX_QPS;
        if ((int32_t)(first - n) > 0)
            first = n;
    }
    rx->cts_sent = first;
    rx->rewrites_out -= rx->q.qps[qp].rewrites_out;
    rx->q.qps[qp].rewrites_out = 0;
}

/* A repeated entry may have been read before. Its write must complete before its place in the ring
 * is reused, as the entry that reuses it may go over another queue pair. */
static void note_rewrite(struct dpn_receiver *rx, struct dpn_qp *qp)
{
    if (!rx->rewrites_out || (int32_t)(rx->rewritten - rx->cts_sent) > 0)
        rx->rewritten = rx->cts_sent;
    rx->rewrites_out++;
    qp->rewrites_out++;
}

void dpn_cts_write_done(struct dpn_receiver *rx, struct dpn_qp *qp, struct dpn_work work)
{
    if (!work.stripe || !qp->rewrites_out)
        return;
    qp->rewrites_out--;
    rx->rewrites_out--;
}

/* Write CTS entries [cts_sent, cts_sent + count), which are contiguous, at once. */
static bool write_cts(struct dpn_receiver *rx, struct dpn_qp *qp, uint32_t count)
{
    const bool is_again = rx->cts_sent != rx->cts_new;
    const uint32_t at = rx->cts_sent % DPN_CTS_ENTRIES;
    const size_t len = count * sizeof(struct dpn_cts_entry);
    struct ibv_sge sge = {(uintptr_t)&rx->q.block->cts[at], (uint32_t)len,
                          rx->q.rails[qp->rail].block_mr->lkey};
    const bool is_signaled = ++qp->unsignaled >= SIGNAL_EVERY || is_again;
    const struct dpn_work work = {is_signaled ? DPN_WORK_CTS : DPN_WORK_UNSIGNALED,
                                  dpn_qp_index(&rx->q, qp),
                                  qp->epoch,
                                  0,
                                  is_again,
                                  qp->unsignaled};
    struct ibv_send_wr *bad, wr = {
        .wr_id = dpn_work_pack(work), .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = (is_signaled ? IBV_SEND_SIGNALED : 0u) |
                      (len <= qp->inline_bytes ? IBV_SEND_INLINE : 0u),
        .wr.rdma = {qp->peer_block + at * sizeof(struct dpn_cts_entry), qp->peer_key},
    };

    qp->requests_out++;
    if (is_signaled) {
        qp->sends_out++;
        qp->unsignaled = 0;
    }
    int error = ibv_post_send(qp->ibv, &wr, &bad);
    if (!error) {
        memset(&rx->cts_qps[at], (int)dpn_qp_index(&rx->q, qp), count);
        if (is_again)
            note_rewrite(rx, qp);
        return true;
    }
    qp->sends_out -= is_signaled; /* it will not complete */
    dpn_qp_fail(&rx->q, qp, "clear-to-send", strerror(error), ": the send queue takes no more");
    return false;
}

/* How many CTS entries from cts_sent on fit into one write; 0: the first one went over another
 * queue pair. */
static uint32_t count_together(const struct dpn_receiver *rx)
{
    const uint32_t end = rx->cts_sent == rx->cts_new ? rx->cts_made : rx->cts_new;
    const uint32_t rest = end - rx->cts_sent, at = rx->cts_sent % DPN_CTS_ENTRIES;
    uint32_t count = 0;

    while (count < rest && at + count < DPN_CTS_ENTRIES && rx->cts_qps[at + count] == DPN_MAX_QPS)
        count++;
    return count;
}

/* All go over the first queue pair that is up, so that they mostly arrive in order. */
void dpn_cts_push(struct dpn_receiver *rx)
{
    while (rx->cts_sent != rx->cts_made && rx->q.up) {
        struct dpn_qp *qp = &rx->q.qps[__builtin_ctz(rx->q.up)];
        const uint32_t count = count_together(rx);
        const bool is_new = rx->cts_sent == rx->cts_new;
        if (is_new && rx->rewrites_out && rx->cts_sent + count - rx->rewritten > DPN_CTS_ENTRIES)
            return;
        if (count && (qp->requests_out == DPN_SEND_QUEUE || !write_cts(rx, qp, count)))
            return;
        rx->cts_sent += count ? count : 1;
        if (is_new)
            rx->cts_new = rx->cts_sent;
    }
}

/* ---- entries --------------------------------------------------------------------------------- */

/* The entry also reports all messages copied so far. */
static void add_entry(struct dpn_receiver *rx, struct dpn_cts_entry entry)
{
    const uint32_t at = rx->cts_made % DPN_CTS_ENTRIES;

    entry.taken = (uint16_t)rx->eager_taken;
    entry.number = rx->cts_made++;
    rx->q.block->cts[at] = entry;
    dpn_cts_entry_seal(&rx->q.block->cts[at]);
    rx->cts_qps[at] = DPN_MAX_QPS;
    rx->credited = rx->eager_taken;
}

/* Mostly all receives of a connection use memory of one kind. */
static bool refuses_eager(const struct dpn_verbs_memory *memory)
{
    return memory && memory->type != NCCL_PTR_HOST && !dpn_options.eager_gpu;
}

static void make_entry(struct dpn_receiver *rx, const struct dpn_recv *recv, unsigned sub)
{
    const struct dpn_recv_buffer *buffer = &recv->buffers[sub];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)buffer->memory;
    struct dpn_cts_entry entry = {
        .address = (uintptr_t)buffer->data,
        .bytes = (uint32_t)buffer->size,
        .tag = buffer->tag,
        .slot = (uint8_t)recv->base.index,
        .sub = (uint8_t)sub,
        .count = (uint8_t)recv->count,
        .flags = (uint8_t)((buffer->is_copied ? DPN_CTS_TAKEN : 0) |
                           (refuses_eager(memory) ? DPN_CTS_NO_EAGER : 0)),
        .generation = (uint16_t)recv->generation,
    };

    for (int r = 0; r < rx->q.rail_count; r++)
        entry.keys[r] = memory ? memory->mrs[r]->rkey : 0;
    add_entry(rx, entry);
}

static void make_credit(struct dpn_receiver *rx)
{
    add_entry(rx, (struct dpn_cts_entry){.address = rx->eager_waits, .bytes = rx->eager_seen});
    rx->is_credit_due = false;
    rx->credit_every = CREDIT_EVERY;
}

/* ---- delayed entries ------------------------------------------------------------------------- */

static struct dpn_recv *oldest_delayed(struct dpn_receiver *rx)
{
    struct dpn_recv *found = &rx->recvs[__builtin_ctz(rx->delayed)];

    for (uint32_t delayed = rx->delayed & (rx->delayed - 1); delayed; delayed &= delayed - 1) {
        struct dpn_recv *recv = &rx->recvs[__builtin_ctz(delayed)];
        if ((int32_t)(recv->order - found->order) < 0)
            found = recv;
    }
    return found;
}

void dpn_cts_release(struct dpn_receiver *rx)
{
    if (rx->is_credit_due)
        make_credit(rx);
    while (rx->delayed) {
        struct dpn_recv *recv = oldest_delayed(rx);
        rx->delayed &= ~(1u << recv->base.index);
        recv->cts = rx->cts_made;
        recv->uses_without_cts = 0;
        for (unsigned sub = 0; sub < recv->count; sub++)
            make_entry(rx, recv, sub);
    }
    rx->delayed_polls = 0;
}

void dpn_cts_release_late(struct dpn_receiver *rx)
{
    const int64_t now_ns = dp_now_ns();

    if (rx->delayed_polls == 1)
        rx->delayed_ns = now_ns;
    else if (now_ns - rx->delayed_ns >= DPN_DELAY_NS)
        dpn_cts_release(rx);
}

static bool is_short(const struct dpn_receiver *rx, size_t size)
{
    return size <= SHORT_BYTES && size <= rx->q.eager_bytes;
}

/* A buffer that is not larger than an eager message tells nothing about the next message. */
void dpn_verbs_note_size(struct dpn_receiver *rx, size_t room, size_t size)
{
    if (is_short(rx, room))
        return;
    if (!is_short(rx, size) || room != rx->short_buffer)
        rx->shorts = 0;
    rx->short_buffer = room;
    rx->shorts += is_short(rx, size) && rx->shorts < SHORT_ENOUGH;
}

/* Host memory only: for other memory the device would have to write a copy, which costs as much. */
static bool expects_short(const struct dpn_receiver *rx, const struct dpn_piece *piece)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)piece->memory;

    return rx->q.eager_bytes && (!memory || memory->type == NCCL_PTR_HOST) &&
           (is_short(rx, piece->size) ||
            (piece->size == rx->short_buffer && rx->shorts == SHORT_ENOUGH));
}

static bool may_delay(const struct dpn_receiver *rx, int n, const struct dpn_piece *pieces)
{
    for (int i = 0; i < n; i++)
        if (!expects_short(rx, &pieces[i]))
            return false;
    return true;
}

void dpn_cts_make(struct dpn_receiver *rx, int n, const struct dpn_piece *pieces)
{
    if (!may_delay(rx, n, pieces))
        dpn_cts_release(rx);
    else if (rx->eager_taken - rx->credited >= rx->credit_every)
        make_credit(rx);
}

/* ---- checksums of CTS entries ---------------------------------------------------------------- */

/* Checksum of the whole entry except `check`. */
static uint32_t sum_of(const struct dpn_cts_entry *entry)
{
    uint64_t words[sizeof(*entry) / sizeof(uint64_t)], sum = UINT64_C(0x9e3779b97f4a7c15);
    struct dpn_cts_entry copy = *entry;

    copy.check = 0;
    memcpy(words, &copy, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        sum = (sum ^ words[i]) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(sum >> 32);
}

void dpn_cts_entry_seal(struct dpn_cts_entry *entry)
{
    entry->check = sum_of(entry);
}

bool dpn_cts_entry_read(const struct dpn_cts_entry *from, uint32_t number,
                        struct dpn_cts_entry *out)
{
    if (__atomic_load_n(&from->number, __ATOMIC_ACQUIRE) != number)
        return false;
    memcpy(out, from, sizeof(*out));
    return out->number == number && out->check == sum_of(out);
}
