/* SPDX-License-Identifier: Apache-2.0
 *
 * recv.c - receives: immediates tell what has arrived for them.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/device.h"

#include <string.h>

/* ---- arrival --------------------------------------------------------------------------------- */

static void finish_buffer(struct dpn_verbs *v, struct dpn_recv *recv, struct dpn_imm imm)
{
    struct dpn_recv_buffer *buffer = &recv->buffers[imm.sub];
    const struct dpn_record *record =
        &v->queues.block->records[imm.slot * DPN_MAX_RECEIVES + imm.sub];

    if (imm.has_record && record->generation != imm.generation) {
        dpn_verbs_fail(v, DP_EMISMATCH, "a message arrived without its length");
        return;
    }
    const size_t size = imm.has_record ? record->size : buffer->got;
    dpn_verbs_note_size(v, buffer->size, size);
    buffer->size = size;
    buffer->done = true;
    recv->base.left--;
    v->queues.failures = 0;
}

/* A duplicate of a stripe that has arrived, which a reliable connection must not deliver. It writes
 * the same bytes again, which is harmless until test has reported the receive as done; after that
 * the memory may have been reused. */
static bool is_duplicate(const struct dpn_verbs *v, struct dpn_imm imm)
{
    const struct dpn_recv *recv = &v->recv.recvs[imm.slot];
    const struct dpn_recv_buffer *buffer = &recv->buffers[imm.sub];

    return recv->generation == imm.generation && imm.sub < recv->count && buffer->done &&
           !buffer->is_copied && !(v->recv.free >> imm.slot & 1);
}

static void refuse_imm(struct dpn_verbs *v, unsigned qp, struct dpn_imm imm, uint32_t raw)
{
    const struct dpn_recv *recv = &v->recv.recvs[imm.slot];
    const struct dpn_port *port = v->queues.rails[v->queues.qps[qp].rail].port;

    if (v->error)
        return;
    dpn_verbs_fail(
        v, DP_EMISMATCH,
        "what arrived by %s belongs to no receive (0x%08x): it is for use "
        "%u of receive %u, which is in use %u%s; stripe %u of %u, queue pair %u, epoch %u",
        port->name, raw, imm.generation, imm.slot, recv->generation,
        recv->buffers[imm.sub].done || recv->buffers[imm.sub].is_copied ? ", and done" : "",
        imm.stripe, imm.count, v->queues.qps[qp].ibv ? v->queues.qps[qp].ibv->qp_num : 0,
        v->queues.qps[qp].epoch);
    dpn_port_log_counters(port);
}

/* Data for a GPU has to be flushed. */
static void note_written(struct dpn_verbs *v, unsigned qp, const struct dpn_recv_buffer *buffer)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)buffer->memory;

    if (memory && memory->type == NCCL_PTR_CUDA)
        v->queues.rails[v->queues.qps[qp].rail].loop.written++;
}

void dpn_verbs_take_imm(struct dpn_verbs *v, unsigned qp, uint32_t raw, uint32_t bytes)
{
    const struct dpn_imm imm = dpn_imm_unpack(raw);
    struct dpn_recv *recv = &v->recv.recvs[imm.slot];
    struct dpn_recv_buffer *buffer = &recv->buffers[imm.sub];
    const uint16_t bit = (uint16_t)(1u << imm.stripe), all = (uint16_t)((1u << imm.count) - 1);

    if (is_duplicate(v, imm))
        return;
    if (recv->generation != imm.generation || imm.sub >= recv->count || buffer->done ||
        buffer->is_copied || imm.stripe >= imm.count) {
        refuse_imm(v, qp, imm, raw);
        return;
    }
    note_written(v, qp, buffer);
    if (!(buffer->stripes & bit))
        buffer->got += bytes;
    buffer->stripes |= bit;
    if (buffer->stripes == all)
        finish_buffer(v, recv, imm);
}

void dpn_verbs_report(const struct dpn_verbs *v, struct dpn_closed_receiver *report)
{
    dpn_eager_report(v, report);
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        const struct dpn_recv *recv = &v->recv.recvs[i];
        struct dpn_arrived *a = &report->arrived[i];
        a->generation = (uint16_t)recv->generation;
        a->is_open = !(v->recv.free >> i & 1) && recv->base.left;
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
    if (v->error || !v->recv.free)
        return 0;
    struct dpn_recv *recv = &v->recv.recvs[__builtin_ctz(v->recv.free)];
    v->recv.free &= ~(1u << recv->base.index);
    recv->generation = (recv->generation + 1) % DPN_GENERATIONS;
    recv->count = recv->base.left = (unsigned)n;
    recv->order = v->recv.buffers_made;
    v->recv.buffer_recvs[recv->order % DPN_PLACES] = (uint8_t)recv->base.index;
    v->recv.buffers_made += (uint32_t)n;
    for (int i = 0; i < n; i++)
        recv->buffers[i] = (struct dpn_recv_buffer){.size = pieces[i].size, .tag = pieces[i].tag,
                                           .data = pieces[i].data,
                                           .memory = pieces[i].memory};
    v->recv.delayed |= 1u << recv->base.index;
    /* the sender compares generations: is_later in send.c */
    if (++recv->uses_without_cts > DPN_GENERATIONS / 4)
        dpn_cts_release(v);
    dpn_eager_match_recv(v, recv);
    dpn_cts_make(v, n, pieces);
    if (!v->error)
        dpn_cts_push(v);
    *out = &recv->base.base;
    return 0;
}
