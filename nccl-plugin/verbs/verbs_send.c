/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_send.c - the sender: lines are read, messages are cut into stripes, stripes go over lanes.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_state.h"

#include <string.h>

/* ---- lines ----------------------------------------------------------------------------------- */

static bool is_next(const struct dpn_verbs *v, const struct dpn_line *line)
{
    const struct dpn_grant *g = &v->arriving;

    if (!line->count)
        return !v->lines_of_group;
    return line->slot < NCCL_NET_MAX_REQUESTS &&
           line->count <= DPN_MAX_RECEIVES && line->sub < line->count &&
           line->generation < DPN_GENERATIONS && line->bytes <= DPN_MAX_BYTES &&
           line->sub == v->lines_of_group &&
           (line->sub == 0 || (line->slot == g->slot && line->count == g->count));
}

/* Who grants a receive anew has had all of it. What it had in rooms that are no more would look like a
 * later one once generations have gone half round. */
static void forget_targets(struct dpn_verbs *v, const struct dpn_line *line)
{
    for (unsigned sub = line->count; sub < DPN_MAX_RECEIVES; sub++)
        v->targets[line->slot][sub] = (struct dpn_target){.generation = line->generation};
}

/* The lines of a group follow each other; with the last one it is granted. */
static void take_line(struct dpn_verbs *v, const struct dpn_line *line)
{
    struct dpn_target *target = &v->targets[line->slot][line->sub];

    if (!line->count) {
        dpn_eager_take_credit(v, line);
        return;
    }
    if (!line->sub)
        forget_targets(v, line);
    v->taken_of_group &= line->sub ? ~0u : 0;
    v->taken_of_group |= (unsigned)(line->is_taken != 0) << line->sub;
    v->arriving.slot = line->slot;
    v->arriving.count = line->count;
    v->arriving.rooms[line->sub].bytes = line->bytes;
    v->arriving.rooms[line->sub].tag = line->tag;
    v->lines_of_group = (line->sub + 1u) % line->count;
    *target = (struct dpn_target){.address = line->address, .generation = line->generation};
    memcpy(target->keys, line->keys, sizeof(target->keys));
    if (v->lines_of_group)
        return;
    if (dpn_grants_add(&v->grants, &v->arriving, dpn_grant_len(line->count)))
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer grants receive %u twice", line->slot);
    else
        dpn_eager_match_lines(v, line->slot, line->count);
    if (!v->error) /* what was copied is for lines up to this one */
        dpn_eager_credit(v, line->taken);
}

static void read_lines(struct dpn_verbs *v)
{
    struct dpn_line line;

    while (!v->error &&
           dpn_line_read(&v->block->lines[v->lines_read % DPN_LINES], v->lines_read, &line)) {
        if (!is_next(v, &line)) {
            dpn_verbs_fail(v, DP_EMISMATCH, "what the peer wrote is no receive");
            return;
        }
        take_line(v, &line);
        v->lines_read++;
    }
}

/* ---- which lanes ----------------------------------------------------------------------------- */

/* What a message may take: of those that work the ones that the placement names, else all. */
static unsigned usable_lanes(const struct dpn_verbs *v)
{
    const unsigned preferred = v->up & v->preferred;

    return preferred ? preferred : v->up;
}

/* One of each rail in turn, or all of them. */
static unsigned choose_lanes(struct dpn_verbs *v, size_t size, uint8_t lanes[DPN_MAX_LANES])
{
    const unsigned usable = usable_lanes(v);
    unsigned count = 0, rails = 0;
    const size_t stripe = (size_t)dpn_options.stripe_bytes; /* a second costs something, too */
    const size_t most = size < 2 * stripe ? 1 : size / stripe;

    if (v->lane_count == 1) {
        lanes[0] = 0;
        return v->up;
    }
    for (int i = 0; i < v->lane_count && (!count || count < most); i++) {
        const unsigned lane = (v->next_lane + (unsigned)i) % (unsigned)v->lane_count;
        const unsigned rail = 1u << v->lanes[lane].rail;
        if (!(usable >> lane & 1) || (rails & rail && !dpn_verbs_state.options.split))
            continue;
        rails |= rail;
        lanes[count++] = (uint8_t)lane;
    }
    if (count)
        v->next_lane = lanes[0] + 1u;
    return count;
}

/* Shares as the rails are fast, whole lines of LL128 each but the last. */
static void cut(struct dpn_verbs *v, struct dpn_send *send, const uint8_t *lanes)
{
    uint64_t speed = 0, before = 0;
    uint32_t at = 0;

    if (send->count == 1) {
        send->stripes[0] = (struct dpn_stripe){.len = (uint32_t)send->size,
                                               .state = DPN_STRIPE_WAITING, .lane = lanes[0]};
        return;
    }
    for (unsigned k = 0; k < send->count; k++)
        speed += (uint64_t)v->rails[v->lanes[lanes[k]].rail].speed_mbps;
    for (unsigned k = 0; k < send->count; k++) {
        before += (uint64_t)v->rails[v->lanes[lanes[k]].rail].speed_mbps;
        uint64_t end = send->size * before / speed / DPN_STRIPE_UNIT * DPN_STRIPE_UNIT;
        if (k + 1 == send->count)
            end = send->size;
        send->stripes[k] = (struct dpn_stripe){.offset = at, .len = (uint32_t)end - at,
                                               .state = DPN_STRIPE_WAITING, .lane = lanes[k]};
        at = (uint32_t)end;
    }
}

/* ---- work requests --------------------------------------------------------------------------- */

/* What a stripe asks of the send queue, at most three. */
struct chain {
    struct ibv_send_wr wrs[3];
    struct ibv_sge sges[3];
    unsigned count;
};

static struct ibv_send_wr *add(struct chain *c, const void *from, size_t len, uint32_t key,
                               uint64_t to)
{
    struct ibv_send_wr *wr = &c->wrs[c->count];

    c->sges[c->count] = (struct ibv_sge){(uintptr_t)from, (uint32_t)len, key};
    *wr = (struct ibv_send_wr){.sg_list = &c->sges[c->count], .num_sge = len > 0,
                               .opcode = IBV_WR_RDMA_WRITE};
    wr->wr.rdma.remote_addr = to;
    if (c->count)
        c->wrs[c->count - 1].next = wr;
    c->count++;
    return wr;
}

static struct dpn_mark mark_of(const struct dpn_send *send, unsigned k)
{
    return (struct dpn_mark){.slot = send->place.slot, .sub = send->place.sub, .stripe = k,
                             .count = send->count, .generation = send->generation,
                             .has_record = send->has_record};
}

/* Bytes, in pieces that one work request may carry. */
static void add_data(struct dpn_verbs *v, const struct dpn_send *send, unsigned k, uint32_t len,
                     struct chain *c)
{
    const struct dpn_stripe *s = &send->stripes[k];
    const struct dpn_lane *lane = &v->lanes[s->lane];
    const struct dpn_target *to = &v->targets[send->place.slot][send->place.sub];
    const uint32_t at = s->offset + s->sent;
    struct ibv_send_wr *wr = add(c, send->data + at, len,
                                 len ? send->memory->mrs[lane->rail]->lkey : 0, to->address + at);

    wr->wr.rdma.rkey = to->keys[lane->rail];
    if (len <= lane->inline_bytes && len && send->memory->type == NCCL_PTR_HOST)
        wr->send_flags |= IBV_SEND_INLINE;
}

/* A short message, behind its head. */
static void add_eager(struct dpn_verbs *v, const struct dpn_send *send, struct chain *c)
{
    const struct dpn_lane *lane = &v->lanes[send->stripes[0].lane];
    struct ibv_send_wr *wr = &c->wrs[c->count++];

    c->sges[0] = (struct ibv_sge){(uintptr_t)&v->block->heads[send->number % DPN_LARGE_SLOTS],
                                  sizeof(struct dpn_eager_head),
                                  v->rails[lane->rail].block_mr->lkey};
    c->sges[1] = (struct ibv_sge){(uintptr_t)send->data, (uint32_t)send->size,
                                  send->size ? send->memory->mrs[lane->rail]->lkey : 0};
    *wr = (struct ibv_send_wr){.sg_list = c->sges, .num_sge = 1 + (send->size > 0),
                               .opcode = IBV_WR_RDMA_WRITE};
    wr->wr.rdma.remote_addr = dpn_eager_slot(lane->peer_block, v->eager_bytes, send->number);
    wr->wr.rdma.rkey = lane->peer_key;
    if (sizeof(struct dpn_eager_head) + send->size <= lane->inline_bytes &&
        (!send->size || send->memory->type == NCCL_PTR_HOST))
        wr->send_flags = IBV_SEND_INLINE;
}

/* Where immediates cannot tell the length: packets of a message that ends in one keep their order, so
 * the bytes go before, and the length into the receiver's table. */
static void add_record(struct dpn_verbs *v, const struct dpn_send *send, unsigned k, struct chain *c)
{
    const unsigned at = send->place.slot * DPN_MAX_RECEIVES + send->place.sub;
    const struct dpn_lane *lane = &v->lanes[send->stripes[k].lane];
    struct dpn_record *record = &v->block->records[at];
    struct ibv_send_wr *wr =
        add(c, record, sizeof(*record), v->rails[lane->rail].block_mr->lkey,
            lane->peer_block + offsetof(struct dpn_block, records) + at * sizeof(*record));

    *record = (struct dpn_record){send->generation, (uint32_t)send->size};
    wr->wr.rdma.rkey = lane->peer_key;
    add(c, NULL, 0, 0, lane->peer_block)->wr.rdma.rkey = lane->peer_key;
}

static void finish_chain(const struct dpn_verbs *v, const struct dpn_send *send, unsigned k,
                         bool is_last, struct chain *c)
{
    const struct dpn_stripe *s = &send->stripes[k];
    const struct dpn_work work = {DPN_WORK_PART, s->lane, v->lanes[s->lane].epoch,
                                  send->base.index, k, c->count};
    struct ibv_send_wr *last = &c->wrs[c->count - 1];

    for (unsigned i = 0; i < c->count; i++)
        c->wrs[i].wr_id = dpn_work_pack(work);
    last->wr_id = dpn_work_pack((struct dpn_work){DPN_WORK_DATA, work.lane, work.epoch, work.slot,
                                                  work.stripe, work.requests});
    last->send_flags |= IBV_SEND_SIGNALED;
    if (is_last) {
        last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        last->imm_data = htobe32(send->is_eager ? send->number << 16 | DPN_EAGER_MARK
                                                : dpn_mark_pack(mark_of(send, k)));
    }
}

static bool post(struct dpn_verbs *v, struct dpn_lane *lane, struct dpn_stripe *s, struct chain *c)
{
    struct ibv_send_wr *bad;

    lane->requests_out += c->count;
    lane->sends_out++;
    s->chains++;
    int error = ibv_post_send(lane->qp, c->wrs, &bad);
    if (!error)
        return true;
    lane->sends_out--; /* its end was not taken, so that will not complete */
    s->chains--;
    dpn_lane_fence(v, lane, "send", strerror(error), ": the send queue takes no more");
    return false;
}

static void note_lane(struct dpn_verbs *v, const struct dpn_send *send, unsigned k)
{
    const uint8_t lane = send->stripes[k].lane;

    if (send->is_eager)
        v->eager_sends[send->number % DPN_EAGER_SLOTS].lane = lane;
    else
        v->targets[send->place.slot][send->place.sub].lanes[k] = lane;
}

/* As much of a stripe as there is room for. Returns whether all of it is on its way. */
static bool send_stripe(struct dpn_verbs *v, struct dpn_send *send, unsigned k)
{
    struct dpn_stripe *s = &send->stripes[k];
    struct dpn_lane *lane = &v->lanes[s->lane];

    if (send->is_quick)
        return dpn_quick_post(v, send);
    s->epoch = lane->epoch;
    while (lane->requests_out + 3 <= DPN_SEND_QUEUE) {
        struct chain c;
        c.count = 0;
        const uint32_t rest = s->len - s->sent;
        const uint32_t len = rest < v->max_message ? rest : v->max_message;
        if (send->is_eager)
            add_eager(v, send, &c);
        else
            add_data(v, send, k, len, &c);
        if (len == rest && send->has_record)
            add_record(v, send, k, &c);
        finish_chain(v, send, k, len == rest, &c);
        if (!post(v, lane, s, &c))
            return false;
        s->sent += len;
        if (len == rest) {
            s->state = DPN_STRIPE_SENT;
            note_lane(v, send, k);
            return true;
        }
    }
    return false;
}

/* A lane that went down has given its stripes back: another one takes them. */
static bool find_lane(struct dpn_verbs *v, struct dpn_stripe *s)
{
    uint8_t lanes[DPN_MAX_LANES];

    if (s->lane < DPN_MAX_LANES)
        return v->up >> s->lane & 1;
    if (!choose_lanes(v, 1, lanes))
        return false;
    s->lane = lanes[0];
    return true;
}

static void push_one(struct dpn_verbs *v, struct dpn_send *send)
{
    for (unsigned k = 0; k < send->count; k++) {
        struct dpn_stripe *s = &send->stripes[k];
        if (s->state == DPN_STRIPE_WAITING && find_lane(v, s) && send_stripe(v, send, k))
            v->waiting--;
    }
}

void dpn_verbs_push(struct dpn_verbs *v)
{
    for (unsigned i = 0; v->waiting && i < NCCL_NET_MAX_REQUESTS; i++)
        if (!(v->free >> i & 1) && v->sends[i].base.left)
            push_one(v, &v->sends[i]);
}

/* ---- completions ----------------------------------------------------------------------------- */

/* A receiver that has the message may have granted the place anew before its acknowledgement was seen
 * here: then the target is another one's. */
static void finish_stripe(struct dpn_verbs *v, struct dpn_send *send, struct dpn_stripe *s)
{
    struct dpn_target *target = &v->targets[send->place.slot][send->place.sub];

    s->state = DPN_STRIPE_DONE;
    if (--send->base.left)
        return;
    if (send->is_eager)
        dpn_eager_done(v, send);
    else if (target->generation == send->generation)
        target->is_done = true;
    v->failures = 0;
}

void dpn_verbs_sent(struct dpn_verbs *v, struct dpn_work work)
{
    struct dpn_send *send = &v->sends[work.slot];
    struct dpn_stripe *s = &send->stripes[work.stripe];

    v->lanes[work.lane].failures = 0;
    if (s->state == DPN_STRIPE_SENT && !--s->chains)
        finish_stripe(v, send, s);
    else if (s->state == DPN_STRIPE_WAITING)
        s->chains--;
}

/* ---- failover -------------------------------------------------------------------------------- */

/* Generations go round, and two of one slot are never far apart. */
static bool is_later(unsigned generation, unsigned than)
{
    const unsigned ahead = (generation + DPN_GENERATIONS - than) % DPN_GENERATIONS;

    return ahead && ahead < DPN_GENERATIONS / 2;
}

/* The receiver may have granted the receive after its report, over a lane that was up: what was then
 * sent over the lost one, before that was known here, has not arrived. */
static bool has_arrived(const struct dpn_fenced_receiver *report, unsigned slot, unsigned sub,
                        unsigned generation, unsigned stripe)
{
    const struct dpn_arrived *a = &report->arrived[slot];

    if (a->generation != generation)
        return !is_later(generation, a->generation);
    return !a->is_open || sub >= a->count || a->stripes[sub] >> stripe & 1;
}

static void resend_one(struct dpn_verbs *v, unsigned lane, struct dpn_send *send,
                       const struct dpn_fenced_receiver *report)
{
    for (unsigned k = 0; k < send->count; k++) {
        struct dpn_stripe *s = &send->stripes[k];
        if (s->lane != lane)
            continue;
        const bool was_waiting = s->state == DPN_STRIPE_WAITING;
        const bool has = send->is_eager ? dpn_eager_has_arrived(report, send->number)
                                        : has_arrived(report, send->place.slot, send->place.sub,
                                                      send->generation, k);
        if (has && s->state == DPN_STRIPE_DONE)
            continue;
        v->waiting -= has && was_waiting;
        v->waiting += !has && !was_waiting;
        dpn_stat_count(&v->comm->stat, DPN_STAT_RETRIES, !has && s->sent);
        send->base.left += !has && s->state == DPN_STRIPE_DONE;
        s->state = DPN_STRIPE_WAITING;
        s->lane = DPN_MAX_LANES; /* any */
        s->sent = s->chains = 0;
        if (has)
            finish_stripe(v, send, s);
    }
}

/* The device of the receiver said that it had it, and then lost it; the buffer is the user's again. */
static bool is_lost(const struct dpn_verbs *v, unsigned lane, unsigned slot, unsigned sub,
                    const struct dpn_fenced_receiver *report)
{
    const struct dpn_target *t = &v->targets[slot][sub];

    for (unsigned k = 0; t->is_done && k < t->count; k++)
        if (t->lanes[k] == lane && !has_arrived(report, slot, sub, t->generation, k))
            return true;
    return false;
}

static bool is_any_lost(const struct dpn_verbs *v, unsigned lane,
                        const struct dpn_fenced_receiver *report)
{
    for (unsigned slot = 0; slot < NCCL_NET_MAX_REQUESTS; slot++)
        for (unsigned sub = 0; sub < DPN_MAX_RECEIVES; sub++)
            if (is_lost(v, lane, slot, sub, report))
                return true;
    return dpn_eager_is_lost(v, lane, report);
}

void dpn_verbs_resend(struct dpn_verbs *v, unsigned lane, const struct dpn_fenced_receiver *report)
{
    if (is_any_lost(v, lane, report)) {
        dpn_verbs_fail(v, DP_ECOMM, "the peer's device lost a message that it had acknowledged: %s",
                       v->reason);
        return;
    }
    for (unsigned i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        if (!(v->free >> i & 1))
            resend_one(v, lane, &v->sends[i], report);
    dpn_verbs_push(v);
}

/* ---- isend ----------------------------------------------------------------------------------- */

static bool needs_record(const struct dpn_verbs *v, const struct dpn_send *send)
{
    for (unsigned k = 0; k < send->count; k++) {
        const struct dpn_rail *rail = &v->rails[v->lanes[send->stripes[k].lane].rail];
        if (send->stripes[k].len > v->max_message ||
            (rail->adaptive && !v->any_order &&
             send->size > (size_t)dpn_verbs_state.options.adaptive_bytes))
            return true;
    }
    return false;
}

void dpn_verbs_refuse(struct dpn_verbs *v, size_t size, struct dpn_place place)
{
    const union dpn_talk talk = {
        .refused = {.generation = v->targets[place.slot][place.sub].generation,
                    .slot = (uint8_t)place.slot, .sub = (uint8_t)place.sub, .size = size}};

    dpn_grants_take(&v->grants, place);
    dpn_verbs_say(v, DPN_REFUSED, &talk);
}

static int refuse(struct dpn_verbs *v, const struct dpn_piece *piece, struct dpn_place place)
{
    const size_t room = dpn_grants_room(&v->grants, place);

    dpn_verbs_refuse(v, piece->size, place);
    return dp_fail(DP_EMISMATCH, "send of %zu bytes (tag %d): the peer's receive has %zu",
                   piece->size, piece->tag, room);
}

/* To where it was granted. */
static void aim(struct dpn_verbs *v, struct dpn_send *send, struct dpn_place place)
{
    struct dpn_target *target = &v->targets[place.slot][place.sub];

    send->is_eager = send->is_quick = false;
    send->place = place;
    send->generation = target->generation;
    send->has_record = needs_record(v, send);
    target->count = (uint8_t)send->count;
    dpn_grants_take(&v->grants, place);
}

static struct dpn_send *new_send(struct dpn_verbs *v, const struct dpn_piece *piece, unsigned count,
                                 const uint8_t *lanes)
{
    struct dpn_send *send = &v->sends[__builtin_ctz(v->free)];

    v->free &= ~(1u << send->base.index);
    send->data = piece->data;
    send->size = piece->size;
    send->tag = piece->tag;
    send->memory = (const struct dpn_verbs_memory *)piece->memory;
    send->has_record = false;
    send->count = send->base.left = count;
    cut(v, send, lanes);
    v->waiting += count;
    return send;
}

static int try_later(struct dpn_verbs *v)
{
    dpn_verbs_progress(v);
    return v->error ? dp_fail(v->error, "send: %s", v->why) : 0;
}

int dpn_verbs_isend(struct dpn_comm *comm, const struct dpn_piece *piece, struct dpn_request **out)
{
    struct dpn_verbs *v = comm->state;
    uint8_t lanes[DPN_MAX_LANES];
    struct dpn_place place;

    if (!dpn_memory_holds((const struct dpn_verbs_memory *)piece->memory, piece->data, piece->size))
        return dp_fail(DP_EINVAL, "send of %zu bytes that are not in the memory registered for it",
                       piece->size);
    read_lines(v);
    if (v->error || !v->free)
        return try_later(v);
    const bool is_granted = v->grants.live && dpn_grants_find(&v->grants, piece->tag, &place);
    if (!is_granted && !dpn_eager_may(v, piece))
        return try_later(v);
    if (is_granted && piece->size > dpn_grants_room(&v->grants, place))
        return refuse(v, piece, place);
    const unsigned count = choose_lanes(v, is_granted ? piece->size : 1, lanes);
    if (!count)
        return try_later(v);
    struct dpn_send *send = new_send(v, piece, count, lanes);
    if (is_granted)
        aim(v, send, place);
    else
        dpn_eager_begin(v, send);
    if (send->is_quick)
        v->waiting -= dpn_quick_post(v, send);
    else
        push_one(v, send);
    *out = &send->base.base;
    return 0;
}
