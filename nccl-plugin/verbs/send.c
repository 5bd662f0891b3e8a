/* SPDX-License-Identifier: Apache-2.0
 *
 * send.c - the sender: reads CTS entries, divides messages into stripes, and posts these to queue
 * pairs.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/sender.h"

#include <string.h>

/* ---- CTS entries ----------------------------------------------------------------------------- */

static bool is_next(const struct dpn_sender *tx, const struct dpn_cts_entry *entry)
{
    const struct dpn_cts *group = &tx->arriving;

    if (!entry->count)
        return !tx->cts_of_group;
    return entry->slot < NCCL_NET_MAX_REQUESTS && entry->count <= DPN_MAX_RECEIVES &&
           entry->sub < entry->count && entry->generation < DPN_GENERATIONS &&
           entry->bytes <= DPN_MAX_BYTES && entry->sub == tx->cts_of_group &&
           (entry->sub == 0 || (entry->slot == group->slot && entry->count == group->count));
}

/* A receiver that clears a receive again has all of its previous message. Targets of buffers that
 * the new receive does not have would look like later ones once the generation has wrapped half
 * way. */
static void forget_targets(struct dpn_sender *tx, const struct dpn_cts_entry *entry)
{
    for (unsigned sub = entry->count; sub < DPN_MAX_RECEIVES; sub++)
        tx->targets[entry->slot][sub] = (struct dpn_target){.generation = entry->generation};
}

/* The CTS entries of a group follow each other; the last one clears the group. */
static void take_entry(struct dpn_sender *tx, const struct dpn_cts_entry *entry)
{
    struct dpn_target *target = &tx->targets[entry->slot][entry->sub];

    if (!entry->count) {
        dpn_eager_take_credit(tx, entry);
        return;
    }
    if (!entry->sub)
        forget_targets(tx, entry);
    tx->taken_of_group &= entry->sub ? ~0u : 0;
    tx->taken_of_group |= (unsigned)((entry->flags & DPN_CTS_TAKEN) != 0) << entry->sub;
    tx->may_eager = !(entry->flags & DPN_CTS_NO_EAGER);
    tx->arriving.slot = entry->slot;
    tx->arriving.count = entry->count;
    tx->arriving.buffers[entry->sub].bytes = entry->bytes;
    tx->arriving.buffers[entry->sub].tag = entry->tag;
    tx->cts_of_group = (entry->sub + 1u) % entry->count;
    *target = (struct dpn_target){.address = entry->address, .generation = entry->generation};
    memcpy(target->keys, entry->keys, sizeof(target->keys));
    if (tx->cts_of_group)
        return;
    if (dpn_cts_list_add(&tx->cts_list, &tx->arriving, dpn_cts_len(entry->count)))
        dpn_verbs_fail(&tx->q, DP_EMISMATCH, "the peer clears receive %u twice", entry->slot);
    else
        dpn_eager_match_cts(tx, entry->slot, entry->count);
    if (!tx->q.error) /* messages reported as copied belong to entries up to this one */
        dpn_eager_credit(tx, entry->taken);
}

void dpn_verbs_read_cts(struct dpn_sender *tx)
{
    struct dpn_cts_entry entry;

    while (!tx->q.error && dpn_cts_entry_read(&tx->q.block->cts[tx->cts_read % DPN_CTS_ENTRIES],
                                              tx->cts_read, &entry)) {
        if (!is_next(tx, &entry)) {
            dpn_verbs_fail(&tx->q, DP_EMISMATCH, "what the peer wrote is no receive");
            return;
        }
        take_entry(tx, &entry);
        tx->cts_read++;
    }
}

/* ---- choosing queue pairs -------------------------------------------------------------------- */

/* Queue pairs that are up: those that the placement names, otherwise all. */
static unsigned usable_qps(const struct dpn_sender *tx)
{
    const unsigned preferred = tx->q.up & tx->q.preferred;

    return preferred ? preferred : tx->q.up;
}

/* One queue pair of each rail in turn, or all of them. */
static unsigned choose_qps(struct dpn_sender *tx, size_t size, uint8_t qps[DPN_MAX_QPS])
{
    const unsigned usable = usable_qps(tx);
    unsigned count = 0, rails = 0;
    const size_t stripe = (size_t)dpn_options.stripe_bytes; /* each additional stripe has a cost */
    const size_t most = size < 2 * stripe ? 1 : size / stripe;

    if (tx->q.qp_count == 1) {
        qps[0] = 0;
        return tx->q.up;
    }
    for (int i = 0; i < tx->q.qp_count && (!count || count < most); i++) {
        const unsigned qp = (tx->next_qp + (unsigned)i) % (unsigned)tx->q.qp_count;
        const unsigned rail = 1u << tx->q.qps[qp].rail;
        if (!(usable >> qp & 1) || (rails & rail && !dpn_verbs_state.options.split))
            continue;
        rails |= rail;
        qps[count++] = (uint8_t)qp;
    }
    if (count)
        tx->next_qp = qps[0] + 1u;
    return count;
}

/* Stripes in proportion to the speed of their rails; each but the last is a multiple of an LL128
 * line. */
static void cut(struct dpn_sender *tx, struct dpn_send *send, const uint8_t *qps)
{
    uint64_t speed = 0, before = 0;
    uint32_t at = 0;

    if (send->count == 1) {
        send->stripes[0] = (struct dpn_stripe){.len = (uint32_t)send->size,
                                               .state = DPN_STRIPE_WAITING, .qp = qps[0]};
        return;
    }
    for (unsigned k = 0; k < send->count; k++)
        speed += (uint64_t)tx->q.rails[tx->q.qps[qps[k]].rail].speed_mbps;
    for (unsigned k = 0; k < send->count; k++) {
        before += (uint64_t)tx->q.rails[tx->q.qps[qps[k]].rail].speed_mbps;
        uint64_t end = send->size * before / speed / DPN_STRIPE_UNIT * DPN_STRIPE_UNIT;
        if (k + 1 == send->count)
            end = send->size;
        send->stripes[k] = (struct dpn_stripe){.offset = at, .len = (uint32_t)end - at,
                                               .state = DPN_STRIPE_WAITING, .qp = qps[k]};
        at = (uint32_t)end;
    }
}

/* ---- work requests --------------------------------------------------------------------------- */

enum { CHAIN = 2 }; /* work requests of a stripe, at most: data, and a record */

struct chain {
    struct ibv_send_wr wrs[CHAIN];
    struct ibv_sge sges[CHAIN];
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

static struct dpn_imm imm_of(const struct dpn_send *send, unsigned k)
{
    return (struct dpn_imm){.slot = send->place.slot,
                            .sub = send->place.sub,
                            .stripe = k,
                            .count = send->count,
                            .generation = send->generation,
                            .has_record = send->has_record};
}

/* At most as many bytes as one work request carries. */
static void add_data(struct dpn_sender *tx, const struct dpn_send *send, unsigned k, uint32_t len,
                     struct chain *c)
{
    const struct dpn_stripe *s = &send->stripes[k];
    const struct dpn_qp *qp = &tx->q.qps[s->qp];
    const struct dpn_target *to = &tx->targets[send->place.slot][send->place.sub];
    const uint32_t at = s->offset + s->sent;
    struct ibv_send_wr *wr = add(c, send->data + at, len,
                                 len ? send->memory->mrs[qp->rail]->lkey : 0, to->address + at);

    wr->wr.rdma.rkey = to->keys[qp->rail];
    if (len <= qp->inline_bytes && len && send->memory->type == NCCL_PTR_HOST)
        wr->send_flags |= IBV_SEND_INLINE;
}

/* An eager message, after its header. */
static void add_eager(struct dpn_sender *tx, const struct dpn_send *send, struct chain *c)
{
    const struct dpn_qp *qp = &tx->q.qps[send->stripes[0].qp];
    struct ibv_send_wr *wr = &c->wrs[c->count++];

    c->sges[0] =
        (struct ibv_sge){(uintptr_t)&tx->q.block->heads[send->number % DPN_LARGE_SLOTS],
                         sizeof(struct dpn_eager_head), tx->q.rails[qp->rail].block_mr->lkey};
    c->sges[1] = (struct ibv_sge){(uintptr_t)send->data, (uint32_t)send->size,
                                  send->size ? send->memory->mrs[qp->rail]->lkey : 0};
    *wr = (struct ibv_send_wr){.sg_list = c->sges, .num_sge = 1 + (send->size > 0),
                               .opcode = IBV_WR_RDMA_WRITE};
    wr->wr.rdma.remote_addr = dpn_eager_slot(qp->peer_block, tx->q.eager_bytes, send->number);
    wr->wr.rdma.rkey = qp->peer_key;
    if (sizeof(struct dpn_eager_head) + send->size <= qp->inline_bytes &&
        (!send->size || send->memory->type == NCCL_PTR_HOST))
        wr->send_flags = IBV_SEND_INLINE;
}

/* For immediates that do not imply the length: only packets of a message that ends with an
 * immediate keep their order, so the data is written first, then the length into the receiver's
 * table, by the write that has the immediate. */
static void add_record(struct dpn_sender *tx, const struct dpn_send *send, unsigned k,
                       struct chain *c)
{
    const unsigned at = send->place.slot * DPN_MAX_RECEIVES + send->place.sub;
    const struct dpn_qp *qp = &tx->q.qps[send->stripes[k].qp];
    struct dpn_record *record = &tx->q.block->records[at];
    struct ibv_send_wr *wr =
        add(c, record, sizeof(*record), tx->q.rails[qp->rail].block_mr->lkey,
            qp->peer_block + offsetof(struct dpn_block, records) + at * sizeof(*record));

    *record = (struct dpn_record){send->generation, (uint32_t)send->size};
    wr->wr.rdma.rkey = qp->peer_key;
    if (sizeof(*record) <= qp->inline_bytes)
        wr->send_flags |= IBV_SEND_INLINE;
}

static void finish_chain(const struct dpn_sender *tx, const struct dpn_send *send, unsigned k,
                         bool is_last, struct chain *c)
{
    const struct dpn_stripe *s = &send->stripes[k];
    const struct dpn_work work = {DPN_WORK_UNSIGNALED, s->qp, tx->q.qps[s->qp].epoch,
                                  send->base.index,    k,     c->count};
    struct ibv_send_wr *last = &c->wrs[c->count - 1];

    for (unsigned i = 0; i < c->count; i++)
        c->wrs[i].wr_id = dpn_work_pack(work);
    last->wr_id = dpn_work_pack((struct dpn_work){DPN_WORK_DATA, work.qp, work.epoch, work.slot,
                                                  work.stripe, work.requests});
    last->send_flags |= IBV_SEND_SIGNALED;
    if (is_last) {
        last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        last->imm_data = htobe32(send->is_eager ? send->number << 16 | DPN_EAGER_IMM
                                                : dpn_imm_pack(imm_of(send, k)));
    }
}

static bool post(struct dpn_sender *tx, struct dpn_qp *qp, struct dpn_stripe *s, struct chain *c)
{
    struct ibv_send_wr *bad;

    qp->requests_out += c->count;
    qp->sends_out++;
    s->chains++;
    int error = ibv_post_send(qp->ibv, c->wrs, &bad);
    if (!error)
        return true;
    qp->sends_out--; /* its signaled end was not posted, so it does not complete */
    s->chains--;
    dpn_qp_fail(&tx->q, qp, "send", strerror(error), ": the send queue takes no more");
    return false;
}

static void note_qp(struct dpn_sender *tx, const struct dpn_send *send, unsigned k)
{
    const uint8_t qp = send->stripes[k].qp;

    if (send->is_eager)
        tx->eager_sends[send->number % DPN_EAGER_SLOTS].qp = qp;
    else
        tx->targets[send->place.slot][send->place.sub].qps[k] = qp;
}

/* Post as much of a stripe as the send queue takes. Returns whether all of it is posted. */
static bool send_stripe(struct dpn_sender *tx, struct dpn_send *send, unsigned k)
{
    struct dpn_stripe *s = &send->stripes[k];
    struct dpn_qp *qp = &tx->q.qps[s->qp];

    if (send->is_inline)
        return dpn_inline_post(tx, send);
    s->epoch = qp->epoch;
    while (qp->requests_out + CHAIN <= DPN_SEND_QUEUE) {
        struct chain c;
        c.count = 0;
        const uint32_t rest = s->len - s->sent;
        const uint32_t len = rest < tx->q.max_message ? rest : tx->q.max_message;
        if (send->is_eager)
            add_eager(tx, send, &c);
        else
            add_data(tx, send, k, len, &c);
        if (len == rest && send->has_record)
            add_record(tx, send, k, &c);
        finish_chain(tx, send, k, len == rest, &c);
        if (!post(tx, qp, s, &c))
            return false;
        s->sent += len;
        if (len == rest) {
            s->state = DPN_STRIPE_SENT;
            note_qp(tx, send, k);
            return true;
        }
    }
    return false;
}

/* A stripe whose queue pair went down is moved to another one. */
static bool find_qp(struct dpn_sender *tx, struct dpn_stripe *s)
{
    uint8_t qps[DPN_MAX_QPS];

    if (s->qp < DPN_MAX_QPS)
        return tx->q.up >> s->qp & 1;
    if (!choose_qps(tx, 1, qps))
        return false;
    s->qp = qps[0];
    return true;
}

static void push_one(struct dpn_sender *tx, struct dpn_send *send)
{
    for (unsigned k = 0; k < send->count; k++) {
        struct dpn_stripe *s = &send->stripes[k];
        if (s->state == DPN_STRIPE_WAITING && find_qp(tx, s) && send_stripe(tx, send, k))
            tx->waiting--;
    }
}

void dpn_verbs_push(struct dpn_sender *tx)
{
    for (unsigned i = dpn_verbs_next_send(tx, 0); tx->waiting && i < DPN_SENDS;
         i = dpn_verbs_next_send(tx, i + 1))
        if (tx->sends[i].base.left)
            push_one(tx, &tx->sends[i]);
}

/* ---- completions ----------------------------------------------------------------------------- */

/* The receiver may have cleared the slot again before the acknowledgement was seen here: then the
 * target belongs to a later message. */
static void finish_stripe(struct dpn_sender *tx, struct dpn_send *send, struct dpn_stripe *s)
{
    struct dpn_target *target = &tx->targets[send->place.slot][send->place.sub];

    s->state = DPN_STRIPE_DONE;
    if (--send->base.left)
        return;
    if (send->is_eager)
        dpn_eager_done(tx, send);
    else if (target->generation == send->generation)
        target->is_done = true;
    tx->q.failures = 0;
}

void dpn_verbs_sent(struct dpn_sender *tx, struct dpn_work work)
{
    struct dpn_send *send = &tx->sends[work.slot];
    struct dpn_stripe *s = &send->stripes[work.stripe];

    tx->q.qps[work.qp].failures = 0;
    if (s->state == DPN_STRIPE_SENT && !--s->chains)
        finish_stripe(tx, send, s);
    else if (s->state == DPN_STRIPE_WAITING)
        s->chains--;
}

/* ---- failover -------------------------------------------------------------------------------- */

/* Generations wrap; two generations of one slot in use are never far apart. */
static bool is_later(unsigned generation, unsigned than)
{
    const unsigned ahead = (generation + DPN_GENERATIONS - than) % DPN_GENERATIONS;

    return ahead && ahead < DPN_GENERATIONS / 2;
}

/* The receiver may have cleared the receive after it sent its report, over a queue pair that was
 * up: what was then sent over the failed one, before the failure was known here, has not arrived.
 */
static bool has_arrived(const struct dpn_closed_receiver *report, unsigned slot, unsigned sub,
                        unsigned generation, unsigned stripe)
{
    const struct dpn_arrived *a = &report->arrived[slot];

    if (a->generation != generation)
        return !is_later(generation, a->generation);
    return !a->is_open || sub >= a->count || a->stripes[sub] >> stripe & 1;
}

static void resend_one(struct dpn_sender *tx, unsigned qp, struct dpn_send *send,
                       const struct dpn_closed_receiver *report)
{
    for (unsigned k = 0; k < send->count; k++) {
        struct dpn_stripe *s = &send->stripes[k];
        if (s->qp != qp)
            continue;
        const bool was_waiting = s->state == DPN_STRIPE_WAITING;
        const bool has = send->is_eager ? dpn_eager_has_arrived(report, send->number)
                                        : has_arrived(report, send->place.slot, send->place.sub,
                                                      send->generation, k);
        if (has && s->state == DPN_STRIPE_DONE)
            continue;
        tx->waiting -= has && was_waiting;
        tx->waiting += !has && !was_waiting;
        dpn_stat_count(&tx->q.comm->stat, DPN_STAT_RETRIES, !has && s->sent);
        send->base.left += !has && s->state == DPN_STRIPE_DONE;
        s->state = DPN_STRIPE_WAITING;
        s->qp = DPN_MAX_QPS; /* any */
        s->sent = s->chains = 0;
        if (has)
            finish_stripe(tx, send, s);
    }
}

/* The receiver's device acknowledged the message and then lost it; the send buffer has been
 * returned to its owner. */
static bool is_lost(const struct dpn_sender *tx, unsigned qp, unsigned slot, unsigned sub,
                    const struct dpn_closed_receiver *report)
{
    const struct dpn_target *t = &tx->targets[slot][sub];

    for (unsigned k = 0; t->is_done && k < t->count; k++)
        if (t->qps[k] == qp && !has_arrived(report, slot, sub, t->generation, k))
            return true;
    return false;
}

static bool is_any_lost(const struct dpn_sender *tx, unsigned qp,
                        const struct dpn_closed_receiver *report)
{
    for (unsigned slot = 0; slot < NCCL_NET_MAX_REQUESTS; slot++)
        for (unsigned sub = 0; sub < DPN_MAX_RECEIVES; sub++)
            if (is_lost(tx, qp, slot, sub, report))
                return true;
    return dpn_eager_is_lost(tx, qp, report);
}

bool dpn_verbs_has_lost(const struct dpn_sender *tx, const struct dpn_closed_receiver *report)
{
    for (unsigned qp = 0; qp < (unsigned)tx->q.qp_count; qp++)
        if (is_any_lost(tx, qp, report))
            return true;
    return false;
}

void dpn_verbs_resend(struct dpn_sender *tx, unsigned qp, const struct dpn_closed_receiver *report)
{
    if (is_any_lost(tx, qp, report)) {
        dpn_verbs_fail(&tx->q, DP_ECOMM,
                       "the peer's device lost a message that it had acknowledged: %s",
                       tx->q.reason);
        return;
    }
    for (unsigned i = dpn_verbs_next_send(tx, 0); i < DPN_SENDS; i = dpn_verbs_next_send(tx, i + 1))
        resend_one(tx, qp, &tx->sends[i], report);
    dpn_verbs_push(tx);
}

/* ---- isend ----------------------------------------------------------------------------------- */

static bool needs_record(const struct dpn_sender *tx, const struct dpn_send *send)
{
    for (unsigned k = 0; k < send->count; k++) {
        const struct dpn_rail *rail = &tx->q.rails[tx->q.qps[send->stripes[k].qp].rail];
        if (send->stripes[k].len > tx->q.max_message ||
            (rail->adaptive && !tx->q.any_order &&
             send->size > (size_t)dpn_verbs_state.options.adaptive_bytes))
            return true;
    }
    return false;
}

static int refuse(struct dpn_sender *tx, const struct dpn_piece *piece, struct dpn_place place)
{
    const size_t room = dpn_cts_list_room(&tx->cts_list, place);

    dpn_verbs_refuse(tx, piece->size, place);
    return dp_fail(DP_EMISMATCH, "send of %zu bytes (tag %d): the peer's receive has %zu",
                   piece->size, piece->tag, room);
}

/* Direct a message to the buffer that was cleared. */
static void set_target(struct dpn_sender *tx, struct dpn_send *send, struct dpn_place place)
{
    struct dpn_target *target = &tx->targets[place.slot][place.sub];

    send->is_eager = send->is_inline = false;
    send->place = place;
    send->generation = target->generation;
    send->has_record = needs_record(tx, send);
    target->count = (uint8_t)send->count;
    dpn_cts_list_take(&tx->cts_list, place);
}

/* DPN_SENDS: all are in use. */
static unsigned find_free_send(const struct dpn_sender *tx)
{
    unsigned w = 0;

    while (w < DPN_SENDS / 64 && !~tx->sends_used[w])
        w++;
    return w < DPN_SENDS / 64 ? w * 64 + (unsigned)__builtin_ctzll(~tx->sends_used[w]) : DPN_SENDS;
}

static struct dpn_send *new_send(struct dpn_sender *tx, const struct dpn_piece *piece,
                                 unsigned count, const uint8_t *qps)
{
    const unsigned index = find_free_send(tx);
    struct dpn_send *send = &tx->sends[index];

    tx->sends_used[index / 64] |= UINT64_C(1) << index % 64;
    tx->q.open_count++;
    send->base = dpn_verbs_new_request(&tx->q, DPN_SEND, index);
    send->data = piece->data;
    send->size = piece->size;
    send->tag = piece->tag;
    send->memory = (const struct dpn_verbs_memory *)piece->memory;
    send->has_record = false;
    send->count = send->base.left = count;
    cut(tx, send, qps);
    tx->waiting += count;
    return send;
}

int dpn_verbs_isend(struct dpn_sender *tx, const struct dpn_piece *piece, struct dpn_request **out)
{
    uint8_t qps[DPN_MAX_QPS];
    struct dpn_place place;

    if (!dpn_memory_holds((const struct dpn_verbs_memory *)piece->memory, piece->data, piece->size))
        return dp_fail(DP_EINVAL, "send of %zu bytes that are not in the memory registered for it",
                       piece->size);
    dpn_verbs_read_cts(tx);
    if (tx->q.error || find_free_send(tx) == DPN_SENDS)
        return 0;
    const bool is_cleared =
        tx->cts_list.live && dpn_cts_list_find(&tx->cts_list, piece->tag, &place);
    if (!is_cleared && !dpn_eager_may(tx, piece))
        return 0;
    if (is_cleared && piece->size > dpn_cts_list_room(&tx->cts_list, place))
        return refuse(tx, piece, place);
    const unsigned count = choose_qps(tx, is_cleared ? piece->size : 1, qps);
    if (!count)
        return 0;
    struct dpn_send *send = new_send(tx, piece, count, qps);
    if (is_cleared)
        set_target(tx, send, place);
    else
        dpn_eager_begin(tx, send);
    if (send->is_inline)
        tx->waiting -= dpn_inline_post(tx, send);
    else
        push_one(tx, send);
    *out = &send->base.base;
    return 0;
}
