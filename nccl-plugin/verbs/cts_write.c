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
#include "nccl-plugin/verbs/comm.h"

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
void dpn_cts_rewind(struct dpn_verbs *v, unsigned qp, uint32_t cts_read)
{
    const uint32_t claimed = v->recv.cts_made - cts_read,
                   unread = claimed < DPN_CTS_ENTRIES ? claimed : DPN_CTS_ENTRIES;
    uint32_t first = v->recv.cts_sent;

    if (claimed > INT32_MAX) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has read %u CTS entries of %u", cts_read,
                       v->recv.cts_made);
        return;
    }
    for (uint32_t n = v->recv.cts_made - unread; n != v->recv.cts_made; n++) {
        if (v->recv.cts_qps[n % DPN_CTS_ENTRIES] != qp)
            continue;
        v->recv.cts_qps[n % DPN_CTS_ENTRIES] = DPN_MAX_QPS;
        if ((int32_t)(first - n) > 0)
            first = n;
    }
    v->recv.cts_sent = first;
    v->recv.rewrites_out -= v->queues.qps[qp].rewrites_out;
    v->queues.qps[qp].rewrites_out = 0;
}

/* A repeated entry may have been read before. Its write must complete before its place in the ring
 * is reused, as the entry that reuses it may go over another queue pair. */
static void note_rewrite(struct dpn_verbs *v, struct dpn_qp *qp)
{
    if (!v->recv.rewrites_out || (int32_t)(v->recv.rewritten - v->recv.cts_sent) > 0)
        v->recv.rewritten = v->recv.cts_sent;
    v->recv.rewrites_out++;
    qp->rewrites_out++;
}

void dpn_cts_write_done(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_work work)
{
    if (!work.stripe || !qp->rewrites_out)
        return;
    qp->rewrites_out--;
    v->recv.rewrites_out--;
}

/* Write CTS entries [cts_sent, cts_sent + count), which are contiguous, at once. */
static bool write_cts(struct dpn_verbs *v, struct dpn_qp *qp, uint32_t count)
{
    const bool is_again = v->recv.cts_sent != v->recv.cts_new;
    const uint32_t at = v->recv.cts_sent % DPN_CTS_ENTRIES;
    const size_t len = count * sizeof(struct dpn_cts_entry);
    struct ibv_sge sge = {(uintptr_t)&v->queues.block->cts[at], (uint32_t)len,
                          v->queues.rails[qp->rail].block_mr->lkey};
    const bool is_signaled = ++qp->unsignaled >= SIGNAL_EVERY || is_again;
    const struct dpn_work work = {is_signaled ? DPN_WORK_CTS : DPN_WORK_UNSIGNALED,
                                  dpn_qp_index(&v->queues, qp),
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
        memset(&v->recv.cts_qps[at], (int)dpn_qp_index(&v->queues, qp), count);
        if (is_again)
            note_rewrite(v, qp);
        return true;
    }
    qp->sends_out -= is_signaled; /* it will not complete */
    dpn_qp_fail(v, qp, "clear-to-send", strerror(error), ": the send queue takes no more");
    return false;
}

/* How many CTS entries from cts_sent on fit into one write; 0: the first one went over another
 * queue pair. */
static uint32_t count_together(const struct dpn_verbs *v)
{
    const uint32_t end = v->recv.cts_sent == v->recv.cts_new ? v->recv.cts_made : v->recv.cts_new;
    const uint32_t rest = end - v->recv.cts_sent, at = v->recv.cts_sent % DPN_CTS_ENTRIES;
    uint32_t count = 0;

    while (count < rest && at + count < DPN_CTS_ENTRIES &&
           v->recv.cts_qps[at + count] == DPN_MAX_QPS)
        count++;
    return count;
}

/* All go over the first queue pair that is up, so that they mostly arrive in order. */
void dpn_cts_push(struct dpn_verbs *v)
{
    while (v->recv.cts_sent != v->recv.cts_made && v->queues.up) {
        struct dpn_qp *qp = &v->queues.qps[__builtin_ctz(v->queues.up)];
        const uint32_t count = count_together(v);
        const bool is_new = v->recv.cts_sent == v->recv.cts_new;
        if (is_new && v->recv.rewrites_out &&
            v->recv.cts_sent + count - v->recv.rewritten > DPN_CTS_ENTRIES)
            return;
        if (count && (qp->requests_out == DPN_SEND_QUEUE || !write_cts(v, qp, count)))
            return;
        v->recv.cts_sent += count ? count : 1;
        if (is_new)
            v->recv.cts_new = v->recv.cts_sent;
    }
}

/* ---- entries --------------------------------------------------------------------------------- */

/* The entry also reports all messages copied so far. */
static void add_entry(struct dpn_verbs *v, struct dpn_cts_entry entry)
{
    const uint32_t at = v->recv.cts_made % DPN_CTS_ENTRIES;

    entry.taken = (uint16_t)v->eager_taken;
    entry.number = v->recv.cts_made++;
    v->queues.block->cts[at] = entry;
    dpn_cts_entry_seal(&v->queues.block->cts[at]);
    v->recv.cts_qps[at] = DPN_MAX_QPS;
    v->recv.credited = v->eager_taken;
}

/* Mostly all receives of a connection use memory of one kind. */
static bool refuses_eager(const struct dpn_verbs_memory *memory)
{
    return memory && memory->type != NCCL_PTR_HOST && !dpn_options.eager_gpu;
}

static void make_entry(struct dpn_verbs *v, const struct dpn_recv *recv, unsigned sub)
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

    for (int r = 0; r < v->queues.rail_count; r++)
        entry.keys[r] = memory ? memory->mrs[r]->rkey : 0;
    add_entry(v, entry);
}

static void make_credit(struct dpn_verbs *v)
{
    add_entry(v,
              (struct dpn_cts_entry){.address = v->recv.eager_waits, .bytes = v->recv.eager_seen});
    v->recv.is_credit_due = false;
    v->recv.credit_every = CREDIT_EVERY;
}

/* ---- delayed entries ------------------------------------------------------------------------- */

static struct dpn_recv *oldest_delayed(struct dpn_verbs *v)
{
    struct dpn_recv *found = &v->recv.recvs[__builtin_ctz(v->recv.delayed)];

    for (uint32_t delayed = v->recv.delayed & (v->recv.delayed - 1); delayed;
         delayed &= delayed - 1) {
        struct dpn_recv *recv = &v->recv.recvs[__builtin_ctz(delayed)];
        if ((int32_t)(recv->order - found->order) < 0)
            found = recv;
    }
    return found;
}

void dpn_cts_release(struct dpn_verbs *v)
{
    if (v->recv.is_credit_due)
        make_credit(v);
    while (v->recv.delayed) {
        struct dpn_recv *recv = oldest_delayed(v);
        v->recv.delayed &= ~(1u << recv->base.index);
        recv->cts = v->recv.cts_made;
        recv->uses_without_cts = 0;
        for (unsigned sub = 0; sub < recv->count; sub++)
            make_entry(v, recv, sub);
    }
    v->recv.delayed_polls = 0;
}

void dpn_cts_release_late(struct dpn_verbs *v)
{
    const int64_t now_ns = dp_now_ns();

    if (v->recv.delayed_polls == 1)
        v->recv.delayed_ns = now_ns;
    else if (now_ns - v->recv.delayed_ns >= DPN_DELAY_NS)
        dpn_cts_release(v);
}

static bool is_short(const struct dpn_verbs *v, size_t size)
{
    return size <= SHORT_BYTES && size <= v->eager_bytes;
}

/* A buffer that is not larger than an eager message tells nothing about the next message. */
void dpn_verbs_note_size(struct dpn_verbs *v, size_t room, size_t size)
{
    if (is_short(v, room))
        return;
    if (!is_short(v, size) || room != v->recv.short_buffer)
        v->recv.shorts = 0;
    v->recv.short_buffer = room;
    v->recv.shorts += is_short(v, size) && v->recv.shorts < SHORT_ENOUGH;
}

/* Host memory only: for other memory the device would have to write a copy, which costs as much. */
static bool expects_short(const struct dpn_verbs *v, const struct dpn_piece *piece)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)piece->memory;

    return v->eager_bytes && (!memory || memory->type == NCCL_PTR_HOST) &&
           (is_short(v, piece->size) ||
            (piece->size == v->recv.short_buffer && v->recv.shorts == SHORT_ENOUGH));
}

static bool may_delay(const struct dpn_verbs *v, int n, const struct dpn_piece *pieces)
{
    for (int i = 0; i < n; i++)
        if (!expects_short(v, &pieces[i]))
            return false;
    return true;
}

void dpn_cts_make(struct dpn_verbs *v, int n, const struct dpn_piece *pieces)
{
    if (!may_delay(v, n, pieces))
        dpn_cts_release(v);
    else if (v->eager_taken - v->recv.credited >= v->recv.credit_every)
        make_credit(v);
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
