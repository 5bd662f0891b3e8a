/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_recv.c - the receiver: lines are written for the sender, and immediates say what has arrived.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"

#include <string.h>

enum { SIGNAL_EVERY = 8 }; /* writes of lines; a place in the send queue is free again with these */

/* ---- what catches immediates ----------------------------------------------------------------- */

int dpn_lane_post_recvs(struct dpn_verbs *v, struct dpn_lane *lane, unsigned count)
{
    struct ibv_recv_wr *bad, wr = {
        .wr_id = dpn_work_pack((struct dpn_work){DPN_WORK_RECV, dpn_lane_index(v, lane),
                                                 lane->epoch, 0, 0, 0}),
    };

    for (lane->recvs_owed = count; lane->recvs_owed; lane->recvs_owed--) {
        int error = ibv_post_recv(lane->qp, &wr, &bad);
        if (error)
            return dp_fail_quietly(DP_EIO, "%s takes no receive: %s",
                                   v->rails[lane->rail].port->name, strerror(error));
        lane->recvs_out++;
    }
    return 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

void dpn_verbs_rewind_lines(struct dpn_verbs *v, uint32_t lines_read)
{
    const uint32_t unread = v->lines_made - lines_read;

    if (unread > DPN_LINES)
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has read %u lines of %u", lines_read,
                       v->lines_made);
    else if (unread > v->lines_made - v->lines_sent)
        v->lines_sent = lines_read;
}

/* Lines [lines_sent, ...) that lie together, in one write. */
static bool write_lines(struct dpn_verbs *v, struct dpn_lane *lane, uint32_t count)
{
    const uint32_t at = v->lines_sent % DPN_LINES;
    const size_t len = count * sizeof(struct dpn_line);
    struct ibv_sge sge = {(uintptr_t)&v->block->lines[at], (uint32_t)len,
                          v->rails[lane->rail].block_mr->lkey};
    const bool is_signaled = ++lane->unsignaled >= SIGNAL_EVERY;
    const struct dpn_work work = {is_signaled ? DPN_WORK_LINES : DPN_WORK_PART,
                                  dpn_lane_index(v, lane), lane->epoch, 0, 0, lane->unsignaled};
    struct ibv_send_wr *bad, wr = {
        .wr_id = dpn_work_pack(work), .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = (is_signaled ? IBV_SEND_SIGNALED : 0u) |
                      (len <= lane->inline_bytes ? IBV_SEND_INLINE : 0u),
        .wr.rdma = {lane->peer_block + at * sizeof(struct dpn_line), lane->peer_key},
    };

    lane->requests_out++;
    if (is_signaled) {
        lane->sends_out++;
        lane->unsignaled = 0;
    }
    int error = ibv_post_send(lane->qp, &wr, &bad);
    if (!error)
        return true;
    lane->sends_out -= is_signaled; /* it will not complete */
    dpn_lane_fence(v, lane, "clear-to-send", strerror(error), ": the send queue takes no more");
    return false;
}

/* Over the first lane there is, so that they arrive in order as a rule. */
void dpn_verbs_push_lines(struct dpn_verbs *v)
{
    while (v->lines_sent != v->lines_made && v->up) {
        struct dpn_lane *lane = &v->lanes[__builtin_ctz(v->up)];
        const uint32_t rest = v->lines_made - v->lines_sent;
        const uint32_t to_end = DPN_LINES - v->lines_sent % DPN_LINES;
        const uint32_t count = rest < to_end ? rest : to_end;
        if (lane->requests_out == DPN_SEND_QUEUE || !write_lines(v, lane, count))
            return;
        v->lines_sent += count;
    }
}

static void make_line(struct dpn_verbs *v, const struct dpn_recv *recv, unsigned sub,
                      const struct dpn_piece *piece)
{
    struct dpn_line *line = &v->block->lines[v->lines_made % DPN_LINES];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)piece->memory;

    *line = (struct dpn_line){
        .address = (uintptr_t)piece->data, .bytes = (uint32_t)piece->size, .tag = piece->tag,
        .slot = (uint8_t)recv->base.index, .sub = (uint8_t)sub, .count = (uint8_t)recv->count,
        .generation = (uint16_t)recv->generation, .taken = (uint16_t)v->eager_taken,
        .number = v->lines_made,
    };
    for (int r = 0; r < v->rail_count; r++)
        line->keys[r] = memory ? memory->mrs[r]->rkey : 0;
    dpn_line_seal(line);
    v->lines_made++;
}

/* ---- what arrives ---------------------------------------------------------------------------- */

static void finish_room(struct dpn_verbs *v, struct dpn_recv *recv, struct dpn_mark mark)
{
    struct dpn_room *room = &recv->rooms[mark.sub];
    const struct dpn_record *record =
        &v->block->records[mark.slot * DPN_MAX_RECEIVES + mark.sub];

    if (mark.has_record && record->generation != mark.generation) {
        dpn_verbs_fail(v, DP_EMISMATCH, "a message arrived without its length");
        return;
    }
    room->size = mark.has_record ? record->size : room->got;
    room->done = true;
    recv->base.left--;
    v->failures = 0;
}

void dpn_verbs_take_mark(struct dpn_verbs *v, uint32_t imm, uint32_t bytes)
{
    const struct dpn_mark mark = dpn_mark_unpack(imm);
    struct dpn_recv *recv = &v->recvs[mark.slot];
    struct dpn_room *room = &recv->rooms[mark.sub];
    const uint16_t bit = (uint16_t)(1u << mark.stripe), all = (uint16_t)((1u << mark.count) - 1);

    if (recv->generation != mark.generation || mark.sub >= recv->count || room->done ||
        room->is_copied ||
        mark.stripe >= mark.count) {
        dpn_verbs_fail(v, DP_EMISMATCH, "what arrived belongs to no receive (0x%08x)", imm);
        return;
    }
    if (!(room->stripes & bit))
        room->got += bytes;
    room->stripes |= bit;
    if (room->stripes == all)
        finish_room(v, recv, mark);
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
            a->stripes[sub] = recv->rooms[sub].done ? UINT16_MAX : recv->rooms[sub].stripes;
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
    recv->line = v->lines_made;
    for (int i = 0; i < n; i++) {
        recv->rooms[i] = (struct dpn_room){.size = pieces[i].size, .tag = pieces[i].tag,
                                           .data = pieces[i].data,
                                           .memory = pieces[i].memory};
        make_line(v, recv, (unsigned)i, &pieces[i]);
    }
    dpn_verbs_push_lines(v);
    dpn_eager_match_recv(v, recv);
    *out = &recv->base.base;
    return 0;
}
