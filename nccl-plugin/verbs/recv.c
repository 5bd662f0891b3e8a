/* SPDX-License-Identifier: Apache-2.0
 *
 * recv.c - the receiver: CTS entries are written for the sender, and immediates say what has
 * arrived.
 *
 * A CTS entry costs a write, as a message does, and an eager message needs none. So where a short
 * one is expected, a receive gets its CTS entries only when nothing has come for a while and the
 * sender may want them, or when a receive for a long message comes behind it. One that was done by
 * then needs none: now and then a credit says so, for many of them, before the sender has no slots
 * left.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"

#include <string.h>

enum {
    SIGNAL_EVERY = 8, /* writes of CTS entries; a place in the send queue is free again with these */
    CREDIT_EVERY = DPN_EAGER_SLOTS / 2, /* so the sender hears of free slots before it has none */
    SHORT_BYTES = 512, /* of longer ones a CTS entry is the smaller part; see tests/rdma-vm/README.md */
    SHORT_ENOUGH = 4   /* eager messages in a row */
};

/* ---- what catches immediates ----------------------------------------------------------------- */

int dpn_qp_post_recvs(struct dpn_verbs *v, struct dpn_qp *qp, unsigned count)
{
    struct ibv_recv_wr *bad, wr = {
        .wr_id = dpn_work_pack((struct dpn_work){DPN_WORK_RECV, dpn_qp_index(v, qp),
                                                 qp->epoch, 0, 0, 0}),
    };

    for (qp->recvs_owed = count; qp->recvs_owed; qp->recvs_owed--) {
        int error = ibv_post_recv(qp->ibv, &wr, &bad);
        if (error)
            return dp_fail_quietly(DP_EIO, "%s takes no receive: %s",
                                   v->rails[qp->rail].port->name, strerror(error));
        qp->recvs_out++;
    }
    return 0;
}

/* ---- CTS entries ----------------------------------------------------------------------------- */

/* Those that went over this queue pair, which has ended there, and over no other one: a CTS entry
 * is on its way once at most. What the peer has said may be old by now: it has read on while its
 * message was under way. Of all that were made, only the last DPN_CTS_ENTRIES can be unread, and a
 * CTS entry that is written once more is the same. */
void dpn_cts_rewind(struct dpn_verbs *v, unsigned qp, uint32_t cts_read)
{
    const uint32_t said = v->cts_made - cts_read,
                   unread = said < DPN_CTS_ENTRIES ? said : DPN_CTS_ENTRIES;
    uint32_t first = v->cts_sent;

    if (said > INT32_MAX) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has read %u CTS entries of %u", cts_read,
                       v->cts_made);
        return;
    }
    for (uint32_t n = v->cts_made - unread; n != v->cts_made; n++) {
        if (v->cts_qps[n % DPN_CTS_ENTRIES] != qp)
            continue;
        v->cts_qps[n % DPN_CTS_ENTRIES] = DPN_MAX_QPS;
        if ((int32_t)(first - n) > 0)
            first = n;
    }
    v->cts_sent = first;
    v->rewrites_out -= v->qps[qp].rewrites_out;
    v->qps[qp].rewrites_out = 0;
}

/* What is written once more may have been read before. So it must have come before its place in the
 * ring is another CTS entry's, as that may go over another queue pair. */
static void note_rewrite(struct dpn_verbs *v, struct dpn_qp *qp)
{
    if (!v->rewrites_out || (int32_t)(v->rewritten - v->cts_sent) > 0)
        v->rewritten = v->cts_sent;
    v->rewrites_out++;
    qp->rewrites_out++;
}

void dpn_cts_write_done(struct dpn_verbs *v, struct dpn_qp *qp, struct dpn_work work)
{
    if (!work.stripe || !qp->rewrites_out)
        return;
    qp->rewrites_out--;
    v->rewrites_out--;
}

/* CTS entries [cts_sent, ...) that lie together, in one write. */
static bool write_cts(struct dpn_verbs *v, struct dpn_qp *qp, uint32_t count)
{
    const bool is_again = v->cts_sent != v->cts_new;
    const uint32_t at = v->cts_sent % DPN_CTS_ENTRIES;
    const size_t len = count * sizeof(struct dpn_cts_entry);
    struct ibv_sge sge = {(uintptr_t)&v->block->cts[at], (uint32_t)len,
                          v->rails[qp->rail].block_mr->lkey};
    const bool is_signaled = ++qp->unsignaled >= SIGNAL_EVERY || is_again;
    const struct dpn_work work = {is_signaled ? DPN_WORK_CTS : DPN_WORK_PART,
                                  dpn_qp_index(v, qp), qp->epoch, 0, is_again,
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
        memset(&v->cts_qps[at], (int)dpn_qp_index(v, qp), count);
        if (is_again)
            note_rewrite(v, qp);
        return true;
    }
    qp->sends_out -= is_signaled; /* it will not complete */
    dpn_qp_fence(v, qp, "clear-to-send", strerror(error), ": the send queue takes no more");
    return false;
}

/* How many CTS entries from cts_sent on one write may have; 0: the first went over another queue
 * pair. */
static uint32_t count_together(const struct dpn_verbs *v)
{
    const uint32_t end = v->cts_sent == v->cts_new ? v->cts_made : v->cts_new;
    const uint32_t rest = end - v->cts_sent, at = v->cts_sent % DPN_CTS_ENTRIES;
    uint32_t count = 0;

    while (count < rest && at + count < DPN_CTS_ENTRIES && v->cts_qps[at + count] == DPN_MAX_QPS)
        count++;
    return count;
}

/* Over the first queue pair there is, so that they arrive in order as a rule. */
void dpn_cts_push(struct dpn_verbs *v)
{
    while (v->cts_sent != v->cts_made && v->up) {
        struct dpn_qp *qp = &v->qps[__builtin_ctz(v->up)];
        const uint32_t count = count_together(v);
        const bool is_new = v->cts_sent == v->cts_new;
        if (is_new && v->rewrites_out && v->cts_sent + count - v->rewritten > DPN_CTS_ENTRIES)
            return;
        if (count && (qp->requests_out == DPN_SEND_QUEUE || !write_cts(v, qp, count)))
            return;
        v->cts_sent += count ? count : 1;
        if (is_new)
            v->cts_new = v->cts_sent;
    }
}

/* The next one; what was copied until now had CTS entries before it, or a credit. */
static void add_entry(struct dpn_verbs *v, struct dpn_cts_entry entry)
{
    const uint32_t at = v->cts_made % DPN_CTS_ENTRIES;

    entry.taken = (uint16_t)v->eager_taken;
    entry.number = v->cts_made++;
    v->block->cts[at] = entry;
    dpn_cts_entry_seal(&v->block->cts[at]);
    v->cts_qps[at] = DPN_MAX_QPS;
    v->credited = v->eager_taken;
}

/* As a rule all receives of a connection are into memory of one kind. */
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

    for (int r = 0; r < v->rail_count; r++)
        entry.keys[r] = memory ? memory->mrs[r]->rkey : 0;
    add_entry(v, entry);
}

static void make_credit(struct dpn_verbs *v)
{
    add_entry(v, (struct dpn_cts_entry){.address = v->eager_waits, .bytes = v->eager_seen});
    v->is_credit_due = false;
    v->credit_every = CREDIT_EVERY;
}

/* ---- which receives are held back ------------------------------------------------------------ */

static struct dpn_recv *oldest_delayed(struct dpn_verbs *v)
{
    struct dpn_recv *found = &v->recvs[__builtin_ctz(v->delayed)];

    for (uint32_t delayed = v->delayed & (v->delayed - 1); delayed; delayed &= delayed - 1) {
        struct dpn_recv *recv = &v->recvs[__builtin_ctz(delayed)];
        if ((int32_t)(recv->order - found->order) < 0)
            found = recv;
    }
    return found;
}

void dpn_cts_release(struct dpn_verbs *v)
{
    if (v->is_credit_due)
        make_credit(v);
    while (v->delayed) {
        struct dpn_recv *recv = oldest_delayed(v);
        v->delayed &= ~(1u << recv->base.index);
        recv->cts = v->cts_made;
        recv->uses_without_cts = 0;
        for (unsigned sub = 0; sub < recv->count; sub++)
            make_entry(v, recv, sub);
    }
    v->delayed_polls = 0;
}

void dpn_cts_release_late(struct dpn_verbs *v)
{
    const int64_t now_ns = dp_now_ns();

    if (v->delayed_polls == 1)
        v->delayed_ns = now_ns;
    else if (now_ns - v->delayed_ns >= DPN_DELAY_NS)
        dpn_cts_release(v);
}

static bool is_short(const struct dpn_verbs *v, size_t size)
{
    return size <= SHORT_BYTES && size <= v->eager_bytes;
}

/* Into a room that is no longer than an eager message nothing else can come. */
void dpn_verbs_note_size(struct dpn_verbs *v, size_t room, size_t size)
{
    if (is_short(v, room))
        return;
    if (!is_short(v, size) || room != v->short_buffer)
        v->shorts = 0;
    v->short_buffer = room;
    v->shorts += is_short(v, size) && v->shorts < SHORT_ENOUGH;
}

/* By the CPU's copy: a device would need a write for it, too. */
static bool expects_short(const struct dpn_verbs *v, const struct dpn_piece *piece)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)piece->memory;

    return v->eager_bytes && (!memory || memory->type == NCCL_PTR_HOST) &&
           (is_short(v, piece->size) ||
            (piece->size == v->short_buffer && v->shorts == SHORT_ENOUGH));
}

static bool may_delay(const struct dpn_verbs *v, int n, const struct dpn_piece *pieces)
{
    for (int i = 0; i < n; i++)
        if (!expects_short(v, &pieces[i]))
            return false;
    return true;
}

/* ---- what arrives ---------------------------------------------------------------------------- */

static void finish_buffer(struct dpn_verbs *v, struct dpn_recv *recv, struct dpn_mark mark)
{
    struct dpn_recv_buffer *buffer = &recv->buffers[mark.sub];
    const struct dpn_record *record =
        &v->block->records[mark.slot * DPN_MAX_RECEIVES + mark.sub];

    if (mark.has_record && record->generation != mark.generation) {
        dpn_verbs_fail(v, DP_EMISMATCH, "a message arrived without its length");
        return;
    }
    const size_t size = mark.has_record ? record->size : buffer->got;
    dpn_verbs_note_size(v, buffer->size, size);
    buffer->size = size;
    buffer->done = true;
    recv->base.left--;
    v->failures = 0;
}

/* What has come already, once more. A reliable connection must not do that. The same bytes are
 * written again, which does no harm as long as the memory is the receive's, until test has said
 * that it is done; after that something else may be spoiled. */
static bool is_doubled(const struct dpn_verbs *v, struct dpn_mark mark)
{
    const struct dpn_recv *recv = &v->recvs[mark.slot];
    const struct dpn_recv_buffer *buffer = &recv->buffers[mark.sub];

    return recv->generation == mark.generation && mark.sub < recv->count && buffer->done &&
           !buffer->is_copied && !(v->free >> mark.slot & 1);
}

static void refuse_mark(struct dpn_verbs *v, const struct dpn_qp *qp, struct dpn_mark mark,
                        uint32_t imm)
{
    const struct dpn_recv *recv = &v->recvs[mark.slot];

    dpn_verbs_fail(v, DP_EMISMATCH,
                   "what arrived by %s belongs to no receive (0x%08x): it is for use "
                   "%u of receive %u, which is in use %u%s",
                   v->rails[qp->rail].port->name, imm, mark.generation, mark.slot, recv->generation,
                   recv->buffers[mark.sub].done || recv->buffers[mark.sub].is_copied ? ", and done"
                                                                                     : "");
}

/* For a GPU it has to be flushed. */
static void note_written(struct dpn_verbs *v, const struct dpn_qp *qp,
                         const struct dpn_recv_buffer *buffer)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)buffer->memory;

    if (memory && memory->type == NCCL_PTR_CUDA)
        v->rails[qp->rail].loop.written++;
}

void dpn_verbs_take_mark(struct dpn_verbs *v, const struct dpn_qp *qp, uint32_t imm, uint32_t bytes)
{
    const struct dpn_mark mark = dpn_mark_unpack(imm);
    struct dpn_recv *recv = &v->recvs[mark.slot];
    struct dpn_recv_buffer *buffer = &recv->buffers[mark.sub];
    const uint16_t bit = (uint16_t)(1u << mark.stripe), all = (uint16_t)((1u << mark.count) - 1);

    if (is_doubled(v, mark))
        return;
    if (recv->generation != mark.generation || mark.sub >= recv->count || buffer->done ||
        buffer->is_copied || mark.stripe >= mark.count) {
        refuse_mark(v, qp, mark, imm);
        return;
    }
    note_written(v, qp, buffer);
    if (!(buffer->stripes & bit))
        buffer->got += bytes;
    buffer->stripes |= bit;
    if (buffer->stripes == all)
        finish_buffer(v, recv, mark);
}

void dpn_verbs_report(const struct dpn_verbs *v, struct dpn_fenced_receiver *report)
{
    dpn_eager_report(v, report);
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        const struct dpn_recv *recv = &v->recvs[i];
        struct dpn_arrived *a = &report->arrived[i];
        a->generation = (uint16_t)recv->generation;
        a->is_open = !(v->free >> i & 1) && recv->base.left;
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

int dpn_verbs_irecv(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                    struct dpn_request **out)
{
    struct dpn_verbs *v = comm->state;
    int err = check_pieces(n, pieces);

    if (err)
        return err;
    if (v->error)
        return dp_fail(v->error, "receive: %s", v->why);
    if (!v->free) {
        dpn_verbs_progress(v);
        return 0;
    }
    struct dpn_recv *recv = &v->recvs[__builtin_ctz(v->free)];
    v->free &= ~(1u << recv->base.index);
    recv->generation = (recv->generation + 1) % DPN_GENERATIONS;
    recv->count = recv->base.left = (unsigned)n;
    recv->order = v->buffers_made;
    v->buffer_recvs[recv->order % DPN_PLACES] = (uint8_t)recv->base.index;
    v->buffers_made += (uint32_t)n;
    for (int i = 0; i < n; i++)
        recv->buffers[i] = (struct dpn_recv_buffer){.size = pieces[i].size, .tag = pieces[i].tag,
                                           .data = pieces[i].data,
                                           .memory = pieces[i].memory};
    v->delayed |= 1u << recv->base.index;
    if (++recv->uses_without_cts > DPN_GENERATIONS / 4) /* the sender compares them: is_later */
        dpn_cts_release(v);
    dpn_eager_match_recv(v, recv);
    if (!may_delay(v, n, pieces))
        dpn_cts_release(v);
    else if (v->eager_taken - v->credited >= v->credit_every)
        make_credit(v);
    if (!v->error)
        dpn_cts_push(v);
    *out = &recv->base.base;
    return 0;
}
