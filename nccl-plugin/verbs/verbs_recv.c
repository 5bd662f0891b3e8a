/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_recv.c - the receiver: lines are written for the sender, and immediates say what has arrived.
 *
 * A line costs a write, as a message does, and an eager message needs none. So where a short one is
 * expected, a receive gets its lines only when nothing has come for a while and the sender may want
 * them, or when a receive for a long message comes behind it. One that was done by then needs none:
 * now and then a credit says so, for many of them, before the sender has no slots left.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"

#include <string.h>

enum {
    SIGNAL_EVERY = 8, /* writes of lines; a place in the send queue is free again with these */
    CREDIT_EVERY = DPN_EAGER_SLOTS / 2, /* so the sender hears of free slots before it has none */
    SHORT_BYTES = 512, /* of longer ones a line is the smaller part; see tests/rdma-vm/README.md */
    SHORT_ENOUGH = 4   /* short messages in a row */
};

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

/* Those that went over this lane, which has ended there, and over no other one: a line is on its way
 * once at most. What the peer has said may be old by now: it has read on while its word was under way.
 * Of all that were made, only the last DPN_LINES can be unread, and a line that is written once more is
 * the same. */
void dpn_verbs_rewind_lines(struct dpn_verbs *v, unsigned lane, uint32_t lines_read)
{
    const uint32_t said = v->lines_made - lines_read, unread = said < DPN_LINES ? said : DPN_LINES;
    uint32_t first = v->lines_sent;

    if (said > INT32_MAX) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer has read %u lines of %u", lines_read,
                       v->lines_made);
        return;
    }
    for (uint32_t n = v->lines_made - unread; n != v->lines_made; n++) {
        if (v->line_lanes[n % DPN_LINES] != lane)
            continue;
        v->line_lanes[n % DPN_LINES] = DPN_MAX_LANES;
        if ((int32_t)(first - n) > 0)
            first = n;
    }
    v->lines_sent = first;
    v->rewrites_out -= v->lanes[lane].rewrites_out;
    v->lanes[lane].rewrites_out = 0;
}

/* What is written once more may have been read before. So it must have come before its place in the
 * ring is another line's, as that may go over another lane. */
static void note_rewrite(struct dpn_verbs *v, struct dpn_lane *lane)
{
    if (!v->rewrites_out || (int32_t)(v->rewritten - v->lines_sent) > 0)
        v->rewritten = v->lines_sent;
    v->rewrites_out++;
    lane->rewrites_out++;
}

void dpn_verbs_lines_came(struct dpn_verbs *v, struct dpn_lane *lane, struct dpn_work work)
{
    if (!work.stripe || !lane->rewrites_out)
        return;
    lane->rewrites_out--;
    v->rewrites_out--;
}

/* Lines [lines_sent, ...) that lie together, in one write. */
static bool write_lines(struct dpn_verbs *v, struct dpn_lane *lane, uint32_t count)
{
    const bool is_again = v->lines_sent != v->lines_new;
    const uint32_t at = v->lines_sent % DPN_LINES;
    const size_t len = count * sizeof(struct dpn_line);
    struct ibv_sge sge = {(uintptr_t)&v->block->lines[at], (uint32_t)len,
                          v->rails[lane->rail].block_mr->lkey};
    const bool is_signaled = ++lane->unsignaled >= SIGNAL_EVERY || is_again;
    const struct dpn_work work = {is_signaled ? DPN_WORK_LINES : DPN_WORK_PART,
                                  dpn_lane_index(v, lane), lane->epoch, 0, is_again,
                                  lane->unsignaled};
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
    if (!error) {
        memset(&v->line_lanes[at], (int)dpn_lane_index(v, lane), count);
        if (is_again)
            note_rewrite(v, lane);
        return true;
    }
    lane->sends_out -= is_signaled; /* it will not complete */
    dpn_lane_fence(v, lane, "clear-to-send", strerror(error), ": the send queue takes no more");
    return false;
}

/* How many lines from lines_sent on one write may have; 0: the first went over another lane. */
static uint32_t count_together(const struct dpn_verbs *v)
{
    const uint32_t end = v->lines_sent == v->lines_new ? v->lines_made : v->lines_new;
    const uint32_t rest = end - v->lines_sent, at = v->lines_sent % DPN_LINES;
    uint32_t count = 0;

    while (count < rest && at + count < DPN_LINES && v->line_lanes[at + count] == DPN_MAX_LANES)
        count++;
    return count;
}

/* Over the first lane there is, so that they arrive in order as a rule. */
void dpn_verbs_push_lines(struct dpn_verbs *v)
{
    while (v->lines_sent != v->lines_made && v->up) {
        struct dpn_lane *lane = &v->lanes[__builtin_ctz(v->up)];
        const uint32_t count = count_together(v);
        const bool is_new = v->lines_sent == v->lines_new;
        if (is_new && v->rewrites_out && v->lines_sent + count - v->rewritten > DPN_LINES)
            return;
        if (count && (lane->requests_out == DPN_SEND_QUEUE || !write_lines(v, lane, count)))
            return;
        v->lines_sent += count ? count : 1;
        if (is_new)
            v->lines_new = v->lines_sent;
    }
}

/* The next one; what was copied until now had lines before it, or a credit. */
static void add_line(struct dpn_verbs *v, struct dpn_line line)
{
    const uint32_t at = v->lines_made % DPN_LINES;

    line.taken = (uint16_t)v->eager_taken;
    line.number = v->lines_made++;
    v->block->lines[at] = line;
    dpn_line_seal(&v->block->lines[at]);
    v->line_lanes[at] = DPN_MAX_LANES;
    v->credited = v->eager_taken;
}

static void make_line(struct dpn_verbs *v, const struct dpn_recv *recv, unsigned sub)
{
    const struct dpn_room *room = &recv->rooms[sub];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)room->memory;
    struct dpn_line line = {
        .address = (uintptr_t)room->data, .bytes = (uint32_t)room->size, .tag = room->tag,
        .slot = (uint8_t)recv->base.index, .sub = (uint8_t)sub, .count = (uint8_t)recv->count,
        .is_taken = room->is_copied, .generation = (uint16_t)recv->generation,
    };

    for (int r = 0; r < v->rail_count; r++)
        line.keys[r] = memory ? memory->mrs[r]->rkey : 0;
    add_line(v, line);
}

static void make_credit(struct dpn_verbs *v)
{
    add_line(v, (struct dpn_line){.address = v->eager_waits, .bytes = v->eager_seen});
    v->is_credit_due = false;
    v->credit_every = CREDIT_EVERY;
}

/* ---- which receives are held back ------------------------------------------------------------ */

static struct dpn_recv *eldest_held(struct dpn_verbs *v)
{
    struct dpn_recv *found = &v->recvs[__builtin_ctz(v->held)];

    for (uint32_t held = v->held & (v->held - 1); held; held &= held - 1) {
        struct dpn_recv *recv = &v->recvs[__builtin_ctz(held)];
        if ((int32_t)(recv->order - found->order) < 0)
            found = recv;
    }
    return found;
}

void dpn_verbs_release_lines(struct dpn_verbs *v)
{
    if (v->is_credit_due)
        make_credit(v);
    while (v->held) {
        struct dpn_recv *recv = eldest_held(v);
        v->held &= ~(1u << recv->base.index);
        recv->line = v->lines_made;
        recv->unlined = 0;
        for (unsigned sub = 0; sub < recv->count; sub++)
            make_line(v, recv, sub);
    }
    v->held_polls = 0;
}

static bool is_short(const struct dpn_verbs *v, size_t size)
{
    return size <= SHORT_BYTES && size <= v->eager_bytes;
}

/* Into a room that is no longer than a short message nothing else can come. */
void dpn_verbs_note_size(struct dpn_verbs *v, size_t room, size_t size)
{
    if (is_short(v, room))
        return;
    if (!is_short(v, size) || room != v->short_room)
        v->shorts = 0;
    v->short_room = room;
    v->shorts += is_short(v, size) && v->shorts < SHORT_ENOUGH;
}

/* By the CPU's copy: a device would need a write for it, too. */
static bool expects_short(const struct dpn_verbs *v, const struct dpn_piece *piece)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)piece->memory;

    return v->eager_bytes && (!memory || memory->type == NCCL_PTR_HOST) &&
           (is_short(v, piece->size) ||
            (piece->size == v->short_room && v->shorts == SHORT_ENOUGH));
}

static bool may_hold(const struct dpn_verbs *v, int n, const struct dpn_piece *pieces)
{
    for (int i = 0; i < n; i++)
        if (!expects_short(v, &pieces[i]))
            return false;
    return true;
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
    const size_t size = mark.has_record ? record->size : room->got;
    dpn_verbs_note_size(v, room->size, size);
    room->size = size;
    room->done = true;
    recv->base.left--;
    v->failures = 0;
}

/* What has come already, once more. A reliable connection must not do that. The same bytes are written
 * again, which does no harm as long as the memory is the receive's, until test has said that it is done;
 * after that something else may be spoiled. */
static bool is_doubled(const struct dpn_verbs *v, struct dpn_mark mark)
{
    const struct dpn_recv *recv = &v->recvs[mark.slot];
    const struct dpn_room *room = &recv->rooms[mark.sub];

    return recv->generation == mark.generation && mark.sub < recv->count && room->done &&
           !room->is_copied && !(v->free >> mark.slot & 1);
}

static void refuse_mark(struct dpn_verbs *v, const struct dpn_lane *lane, struct dpn_mark mark,
                        uint32_t imm)
{
    const struct dpn_recv *recv = &v->recvs[mark.slot];

    dpn_verbs_fail(v, DP_EMISMATCH, "what arrived by %s belongs to no receive (0x%08x): it is for use "
                   "%u of receive %u, which is in use %u%s", v->rails[lane->rail].port->name, imm,
                   mark.generation, mark.slot, recv->generation,
                   recv->rooms[mark.sub].done || recv->rooms[mark.sub].is_copied ? ", and done" : "");
}

/* For a GPU it has to be flushed. */
static void note_written(struct dpn_verbs *v, const struct dpn_lane *lane, const struct dpn_room *room)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)room->memory;

    if (memory && memory->type == NCCL_PTR_CUDA)
        v->rails[lane->rail].loop.written++;
}

void dpn_verbs_take_mark(struct dpn_verbs *v, const struct dpn_lane *lane, uint32_t imm, uint32_t bytes)
{
    const struct dpn_mark mark = dpn_mark_unpack(imm);
    struct dpn_recv *recv = &v->recvs[mark.slot];
    struct dpn_room *room = &recv->rooms[mark.sub];
    const uint16_t bit = (uint16_t)(1u << mark.stripe), all = (uint16_t)((1u << mark.count) - 1);

    if (is_doubled(v, mark))
        return;
    if (recv->generation != mark.generation || mark.sub >= recv->count || room->done ||
        room->is_copied || mark.stripe >= mark.count) {
        refuse_mark(v, lane, mark, imm);
        return;
    }
    note_written(v, lane, room);
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
    recv->order = v->rooms_made;
    v->room_recvs[recv->order % DPN_PLACES] = (uint8_t)recv->base.index;
    v->rooms_made += (uint32_t)n;
    for (int i = 0; i < n; i++)
        recv->rooms[i] = (struct dpn_room){.size = pieces[i].size, .tag = pieces[i].tag,
                                           .data = pieces[i].data,
                                           .memory = pieces[i].memory};
    v->held |= 1u << recv->base.index;
    if (++recv->unlined > DPN_GENERATIONS / 4) /* the sender compares them: is_later */
        dpn_verbs_release_lines(v);
    dpn_eager_match_recv(v, recv);
    if (!may_hold(v, n, pieces))
        dpn_verbs_release_lines(v);
    else if (v->eager_taken - v->credited >= v->credit_every)
        make_credit(v);
    if (!v->error)
        dpn_verbs_push_lines(v);
    *out = &recv->base.base;
    return 0;
}
