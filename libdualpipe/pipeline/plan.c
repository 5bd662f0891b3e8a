/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - from a rank's list and the lifetimes of its buffers to the entries of the plan.
 */
#include "pipeline/plan.h"

#include "base/array.h"
#include "base/fail.h"
#include "pipeline/reduce.h"
#include "schedule/build.h"
#include <dualpipe/comm.h>

#include <stdlib.h>
#include <string.h>

/* A receive, and the first op before which it may be posted. */
struct posting {
    uint32_t due, index;
};

/* The message that a buffer is for. */
struct flight {
    struct dp_plan_wait wait;
    bool open; /* posted, and nothing has waited for it yet */
    bool was;  /* its memory is, or was, that of a message */
};

/* A plan in the making. */
struct planner {
    const struct dp_plan_source *source;
    const struct dp_op *ops;
    uint32_t count;
    struct dp_lifetimes lifetimes;
    struct dp_plan *plan;
    size_t op_capacity, wait_capacity;
    struct posting *postings; /* [posting_count], by due, then index */
    size_t posting_count, posted;
    struct flight *flight[DP_PARTS];       /* by lifetime */
    uint32_t *evicted; /* by lifetime of DP_PART_SAVE: number + 1 of the eviction at its end */
    uint32_t *spare;                       /* requests that are free again */
    uint32_t spare_count;
    bool failed;                           /* out of memory on the way */
};

static const struct dp_slot *slot_of(const struct planner *p, const struct dp_op *op)
{
    return dp_schedule_slot(p->source->schedule, p->source->rank, (int)op->slot);
}

static struct dp_buffer_ids *buffers_of(const struct planner *p, const struct dp_op *op)
{
    return &p->lifetimes.buffers[dp_lifetimes_index(&p->lifetimes, op->slot, op->mb)];
}

/* ---- lists that grow ----------------------------------------------------------------------- */

static bool grow(void **list, size_t *capacity, size_t count, size_t size)
{
    void *larger = dp_array_grow(*list, capacity, count + 1, size);

    if (larger)
        *list = larger;
    return larger;
}

static void add_op(struct planner *p, struct dp_plan_op op)
{
    struct dp_plan *plan = p->plan;
    void *list = plan->ops;

    if (grow(&list, &p->op_capacity, plan->count, sizeof(op)))
        ((struct dp_plan_op *)list)[plan->count++] = op;
    else
        p->failed = true;
    plan->ops = list;
}

static void add_wait(struct planner *p, struct dp_plan_wait wait)
{
    struct dp_plan *plan = p->plan;
    void *list = plan->waits;

    if (grow(&list, &p->wait_capacity, plan->wait_count, sizeof(wait)))
        ((struct dp_plan_wait *)list)[plan->wait_count++] = wait;
    else
        p->failed = true;
    plan->waits = list;
}

/* ---- requests: each from its post to the op that waits for it ------------------------------- */

static uint32_t take_request(struct planner *p)
{
    return p->spare_count ? p->spare[--p->spare_count] : p->plan->requests++;
}

static void wait_for(struct planner *p, uint32_t part, uint32_t lifetime)
{
    struct flight *flight = &p->flight[part][lifetime];

    if (!flight->open)
        return;
    add_wait(p, flight->wait);
    if (!p->source->ordered)
        p->spare[p->spare_count++] = flight->wait.request;
    flight->open = false;
}

static void wait_for_message(struct planner *p, struct dp_buffer_id id)
{
    if (id.lifetime != DP_NO_LIFETIME)
        wait_for(p, id.part, id.lifetime);
}

/* Those that had the memory of `id` last must be done with sending from it. */
static void wait_for_memory(struct planner *p, struct dp_buffer_id id)
{
    if (id.lifetime == DP_NO_LIFETIME)
        return;
    const struct dp_offset_owners *before = &p->lifetimes.parts[id.part].before;
    for (size_t i = before->first[id.lifetime]; i < before->first[id.lifetime + 1]; i++)
        wait_for(p, id.part, before->ids[i]);
}

/* Staged: those that had the memory of `id` last must have been copied out of it. Where a compute
 * alone had it in between, which the host does not wait for, the copy may be that of an earlier one;
 * what was sent from it was behind all of them. */
static void wait_for_copies(struct planner *p, struct dp_buffer_id id)
{
    const struct dp_offset_owners *before = &p->lifetimes.parts[id.part].before;
    for (size_t i = before->first[id.lifetime]; i < before->first[id.lifetime + 1]; i++) {
        const struct flight *flight = &p->flight[id.part][before->ids[i]];
        if (flight->wait.received)
            add_wait(p, flight->wait);
        else if (!flight->was)
            wait_for_copies(p, (struct dp_buffer_id){.part = id.part, .lifetime = before->ids[i]});
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

static struct dp_skip_buffers *skip_of(const struct planner *p, int stream, uint32_t skip,
                                       uint32_t mb)
{
    return &p->lifetimes.skip_buffers[dp_lifetimes_skip(&p->lifetimes, stream, skip, mb)];
}

static struct dp_buffer_id skip_message_buffer(const struct planner *p, const struct dp_op *op)
{
    const struct dp_skip_buffers *at = skip_of(p, slot_of(p, op)->stream, dp_op_argument(*op), op->mb);

    switch ((enum dp_op_kind)op->kind) {
    case DP_OP_RECV_SKIP_F:
        return at->in;
    case DP_OP_SEND_SKIP_F:
        return at->out;
    case DP_OP_RECV_SKIP_B:
        return at->gout;
    default:
        return at->gin;
    }
}

static struct dp_plan_message describe_skip(const struct planner *p, const struct dp_op *op)
{
    const bool forward = op->kind == DP_OP_RECV_SKIP_F || op->kind == DP_OP_SEND_SKIP_F;

    return (struct dp_plan_message){
        .offset = dp_lifetimes_offset(&p->lifetimes, skip_message_buffer(p, op)),
        .len = (forward ? p->source->skip_bytes : p->source->skip_gradient_bytes)[dp_op_argument(*op)],
        .peer = dp_op_peer(p->source->schedule, slot_of(p, op), *op),
        .channel = forward ? DP_CHANNEL_ACTIVATION : DP_CHANNEL_GRADIENT,
        .stage = (uint16_t)dp_op_argument(*op),
        .skip = true,
    };
}

/* The buffer of a message. An activation is input here or output; a gradient likewise. */
static struct dp_buffer_id message_buffer(const struct planner *p, const struct dp_op *op)
{
    const struct dp_buffer_ids *at = buffers_of(p, op);

    if (dp_op_is_skip((enum dp_op_kind)op->kind))
        return skip_message_buffer(p, op);
    switch ((enum dp_op_kind)op->kind) {
    case DP_OP_RECV_F:
        return at->in;
    case DP_OP_SEND_F:
        return at->out;
    case DP_OP_RECV_B:
        return at->gout;
    default:
        return at->gin;
    }
}

static struct dp_plan_message describe_message(const struct planner *p, const struct dp_op *op)
{
    const struct dp_slot *slot = slot_of(p, op);
    bool before = op->kind == DP_OP_RECV_F || op->kind == DP_OP_SEND_B;
    bool forward = op->kind == DP_OP_RECV_F || op->kind == DP_OP_SEND_F;
    const struct dp_border_layout *layout =
        &p->source->layouts[before ? slot->stage : slot->stage + 1];
    int owner = slot->stage;

    if (dp_op_is_skip((enum dp_op_kind)op->kind))
        return describe_skip(p, op);
    if (op->kind == DP_OP_RECV_F)
        owner--;
    else if (op->kind == DP_OP_RECV_B)
        owner++;
    return (struct dp_plan_message){
        .offset = dp_lifetimes_offset(&p->lifetimes, message_buffer(p, op)),
        .len = forward ? layout->activation.bytes : layout->gradient.bytes,
        .peer = before ? slot->prev : slot->next,
        .channel = forward ? DP_CHANNEL_ACTIVATION : DP_CHANNEL_GRADIENT,
        .stage = (uint16_t)owner,
    };
}

/* A border without bytes needs no message, unless it is what tells the rank to begin; both sides
 * see that in the same declaration. */
static bool is_needed(const struct planner *p, const struct dp_plan_message *message)
{
    return (message->len || (p->source->driven && !message->skip)) && message->peer >= 0 &&
           message->peer != p->source->rank;
}

static void add_message(struct planner *p, uint32_t i, enum dp_plan_kind kind)
{
    const struct dp_op *op = &p->ops[i];
    struct dp_buffer_id id = message_buffer(p, op);
    struct dp_plan_op entry = {.kind = (uint8_t)kind,
                               .slot = (uint8_t)op->slot,
                               .first_wait = (uint32_t)p->plan->wait_count,
                               .mb = op->mb,
                               .index = i,
                               .message = describe_message(p, op)};
    struct dp_plan_message *m = &entry.message;

    if (!is_needed(p, m))
        return;
    if (kind == DP_PLAN_RECV && p->source->staged)
        wait_for_copies(p, id);
    m->request = take_request(p);
    p->flight[id.part][id.lifetime] = (struct flight){
        .wait = {m->request, m->peer, m->offset, kind == DP_PLAN_RECV ? m->len : 0},
        .open = true,
        .was = true};
    entry.waits = (uint16_t)(p->plan->wait_count - entry.first_wait);
    add_op(p, entry);
}

/* ---- receives, as early as may be ------------------------------------------------------------ */

static bool is_recv(const struct dp_op *op)
{
    return op->kind == DP_OP_RECV_F || op->kind == DP_OP_RECV_B ||
           op->kind == DP_OP_RECV_SKIP_F || op->kind == DP_OP_RECV_SKIP_B;
}

static uint32_t memory_free_at(const struct planner *p, struct dp_buffer_id id)
{
    const struct dp_part *part = &p->lifetimes.parts[id.part];
    uint32_t due = 0;

    for (size_t i = part->before.first[id.lifetime]; i < part->before.first[id.lifetime + 1]; i++) {
        uint32_t last = part->lifetimes[part->before.ids[i]].last;
        if (last + 1 > due)
            due = last + 1;
    }
    return due;
}

static int by_due(const void *pa, const void *pb)
{
    const struct posting *a = pa, *b = pb;
    if (a->due != b->due)
        return a->due < b->due ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* When each receive is due: not before its memory is free, and not before the receive that comes
 * before it from the same peer on the same channel. */
static void find_postings(struct planner *p)
{
    const struct dp_schedule *s = p->source->schedule;
    uint32_t *latest = calloc(2 * (size_t)s->ranks, sizeof(*latest));

    p->postings = malloc(p->count * sizeof(*p->postings) + 1);
    p->failed |= !latest || !p->postings;
    for (uint32_t i = 0; i < p->count && !p->failed; i++) {
        const struct dp_op *op = &p->ops[i];
        if (!is_recv(op))
            continue;
        struct dp_plan_message message = describe_message(p, op);
        if (!is_needed(p, &message))
            continue;
        uint32_t *link = &latest[2 * message.peer + (message.channel == DP_CHANNEL_GRADIENT)];
        uint32_t due = memory_free_at(p, message_buffer(p, op));
        *link = due > *link ? due : *link;
        p->postings[p->posting_count++] = (struct posting){*link, i};
    }
    if (!p->failed)
        qsort(p->postings, p->posting_count, sizeof(*p->postings), by_due);
    free(latest);
}

static void post_receives(struct planner *p, uint32_t now)
{
    while (p->posted < p->posting_count && p->postings[p->posted].due <= now)
        add_message(p, p->postings[p->posted++].index, DP_PLAN_RECV);
}

/* ---- computes ------------------------------------------------------------------------------- */

static const struct dp_order_part *part_of(const struct planner *p, const struct dp_op *op)
{
    return dp_order_part(&p->lifetimes.order, op->slot, op->mb);
}

static bool is_evicted(const struct dp_buffer_ids *at)
{
    return at->back_save.lifetime != DP_NO_LIFETIME || at->back_save_input.lifetime != DP_NO_LIFETIME;
}

static struct dp_plan_op describe_compute(const struct planner *p, uint32_t i,
                                          enum dp_plan_kind kind)
{
    const struct dp_op *op = &p->ops[i];
    const struct dp_buffer_ids *at = buffers_of(p, op);
    const struct dp_order_part *part = part_of(p, op);
    bool first = kind == DP_PLAN_FORWARD && op->flags & DP_OP_RECOMPUTED; /* and a RECOMPUTE follows */
    bool forward = kind == DP_PLAN_FORWARD || kind == DP_PLAN_RECOMPUTE;
    bool back = !forward && is_evicted(at);
    struct dp_buffer_id save = first ? at->first_save : back ? at->back_save : at->save;
    struct dp_buffer_id save_input = first  ? at->first_save_input
                                     : back ? at->back_save_input
                                            : at->save_input;
    struct dp_buffer_id out = kind == DP_PLAN_FORWARD || at->again_out.lifetime == DP_NO_LIFETIME
                                  ? at->out
                                  : at->again_out;

    return (struct dp_plan_op){
        .kind = (uint8_t)kind,
        .slot = (uint8_t)op->slot,
        .pair = dp_lifetimes_is_pair(&p->lifetimes, p->source, i),
        .recomputed = first,
        .set = part->apart ? part->apart : part->set,
        .first_wait = (uint32_t)p->plan->wait_count,
        .mb = op->mb,
        .index = i,
        .at = {.in = dp_lifetimes_offset(&p->lifetimes, at->in),
               .out = dp_lifetimes_offset(&p->lifetimes, out),
               .gout = dp_lifetimes_offset(&p->lifetimes, at->gout),
               .gin = dp_lifetimes_offset(&p->lifetimes, at->gin),
               .save = dp_lifetimes_offset(&p->lifetimes, save),
               .save_input = dp_lifetimes_offset(&p->lifetimes, save_input),
               .save_weight = dp_lifetimes_offset(&p->lifetimes, at->save_weight)},
    };
}

static void finish_compute(struct planner *p, struct dp_plan_op op)
{
    op.waits = (uint16_t)(p->plan->wait_count - op.first_wait);
    add_op(p, op);
}

/* Those that had the memory of a save area last must have left it. */
static void wait_for_evicted(const struct planner *p, struct dp_buffer_id id, struct dp_plan_op *op)
{
    const struct dp_offset_owners *before = &p->lifetimes.parts[DP_PART_SAVE].before;

    if (id.lifetime == DP_NO_LIFETIME)
        return;
    for (size_t i = before->first[id.lifetime]; i < before->first[id.lifetime + 1]; i++)
        if (p->evicted[before->ids[i]] > op->evicted)
            op->evicted = p->evicted[before->ids[i]];
}

static void add_copy(struct planner *p, uint32_t i, enum dp_plan_kind kind)
{
    const struct dp_buffer_ids *at = buffers_of(p, &p->ops[i]);
    bool evicts = kind == DP_PLAN_EVICT;
    const struct dp_buffer_id left[] = {at->save, at->save_input};
    const struct dp_buffer_id device[] = {evicts ? at->save : at->back_save,
                                          evicts ? at->save_input : at->back_save_input};
    const struct dp_buffer_id host[] = {at->host_save, at->host_save_input};
    struct dp_plan_op op = {.kind = (uint8_t)kind,
                            .slot = (uint8_t)p->ops[i].slot,
                            .first_wait = (uint32_t)p->plan->wait_count,
                            .mb = p->ops[i].mb,
                            .index = i};

    if (!is_evicted(at)) /* nothing is saved */
        return;
    for (int k = 0; k < DP_PLAN_COPY_PARTS; k++) {
        if (device[k].lifetime == DP_NO_LIFETIME)
            continue;
        const struct dp_lifetime *to = &p->lifetimes.host.lifetimes[host[k].lifetime];
        op.copy.device[k] = dp_lifetimes_offset(&p->lifetimes, device[k]);
        op.copy.host[k] = to->offset;
        op.copy.bytes[k] = to->bytes;
        if (evicts)
            p->evicted[left[k].lifetime] = p->plan->evictions + 1;
        op.copy.number = p->evicted[left[k].lifetime] - 1;
        if (!evicts)
            wait_for_evicted(p, device[k], &op);
    }
    if (evicts)
        p->plan->evictions++;
    else if (op.evicted <= op.copy.number)
        op.evicted = op.copy.number + 1;
    add_op(p, op);
}

/* What a compute reads of skips, and writes: values in a forward, else gradients. */
static void wait_for_skips(struct planner *p, const struct dp_op *op)
{
    const struct dp_schedule *s = p->source->schedule;
    const struct dp_slot *slot = slot_of(p, op);

    for (int k = 0; k < s->skip_count; k++) {
        const bool makes = s->skips[k].from == slot->stage, takes = s->skips[k].to == slot->stage;
        if (!makes && !takes)
            continue;
        const struct dp_skip_buffers *at = skip_of(p, slot->stream, (uint32_t)k, op->mb);
        if (op->kind == DP_OP_RECOMPUTE && makes)
            wait_for_memory(p, at->again);
        else if (op->kind == DP_OP_F && makes)
            wait_for_memory(p, at->out);
        else if (op->kind == DP_OP_F)
            wait_for_message(p, at->in);
        else if (op->kind != DP_OP_RECOMPUTE && makes)
            wait_for_message(p, at->gout);
        else if (op->kind != DP_OP_RECOMPUTE)
            wait_for_memory(p, at->gin);
    }
}

static void add_forward(struct planner *p, uint32_t i)
{
    struct dp_plan_op op = describe_compute(p, i, DP_PLAN_FORWARD);
    const struct dp_buffer_ids *at = buffers_of(p, &p->ops[i]);

    wait_for_evicted(p, op.recomputed ? at->first_save : at->save, &op);
    wait_for_evicted(p, op.recomputed ? at->first_save_input : at->save_input, &op);
    wait_for_message(p, at->in);
    wait_for_memory(p, at->out);
    wait_for_skips(p, &p->ops[i]);
    finish_compute(p, op);
}

/* Into save areas and an output of its own. */
static void add_recompute(struct planner *p, uint32_t i)
{
    const struct dp_buffer_ids *at = buffers_of(p, &p->ops[i]);
    struct dp_plan_op op = describe_compute(p, i, DP_PLAN_RECOMPUTE);

    wait_for_evicted(p, at->save, &op);
    wait_for_evicted(p, at->save_input, &op);
    wait_for_memory(p, at->again_out);
    wait_for_skips(p, &p->ops[i]);
    finish_compute(p, op);
}

static void add_backward(struct planner *p, uint32_t i)
{
    const struct dp_order_part *part = part_of(p, &p->ops[i]);
    bool split = part->ready != i || (part->turn != i && !part->apart);
    struct dp_plan_op op = describe_compute(p, i, split ? DP_PLAN_INPUT : DP_PLAN_BACKWARD);
    const struct dp_buffer_ids *at = buffers_of(p, &p->ops[i]);

    wait_for_evicted(p, at->save_weight, &op);
    if (is_evicted(at))
        op.fetched = p->evicted[at->save.lifetime != DP_NO_LIFETIME ? at->save.lifetime
                                                                    : at->save_input.lifetime];
    wait_for_message(p, at->gout);
    wait_for_memory(p, at->gin);
    wait_for_skips(p, &p->ops[i]);
    finish_compute(p, op);
}

static void add_slot_op(struct planner *p, uint32_t i, struct dp_plan_op op)
{
    op.slot = (uint8_t)p->ops[i].slot;
    op.first_wait = (uint32_t)p->plan->wait_count;
    op.index = i;
    add_op(p, op);
}

/* Weight parts that had to wait for the one of op i, which is the last before them. */
static void add_turns(struct planner *p, uint32_t i)
{
    const struct dp_op *op = &p->ops[i];

    for (uint32_t mb = op->mb; mb < p->lifetimes.mb_count; mb++) {
        const struct dp_order_part *part = dp_order_part(&p->lifetimes.order, op->slot, mb);
        if (part->turn != i)
            break;
        if (part->apart)
            add_slot_op(p, i,
                        (struct dp_plan_op){
                            .kind = DP_PLAN_ADD, .set = part->set, .from = part->apart, .mb = mb});
        else if (part->ready != i || p->ops[i].kind == DP_OP_W)
            finish_compute(p, describe_compute(p, part->ready, DP_PLAN_WEIGHT));
    }
}

/* After the last weight part of a slot: its blocks become one. */
static void add_sums(struct planner *p, uint32_t i)
{
    struct dp_order_sum sums[DP_ORDER_MAX_BLOCKS];
    int count = dp_order_sums(p->source->schedule, p->source->rank, (int)p->ops[i].slot,
                              p->source->order_blocks, sums);

    for (int k = 0; k < count; k++)
        add_slot_op(
            p, i,
            (struct dp_plan_op){.kind = DP_PLAN_SUM, .set = sums[k].to, .from = sums[k].from});
}

/* Beyond the schedule's list. */
static bool is_summed(const struct planner *p, uint32_t slot)
{
    return p->source->adds_sums &&
           dp_slot_has_remote_mirror(
               dp_schedule_slot(p->source->schedule, p->source->rank, (int)slot), p->source->rank);
}

static bool is_reduced(const struct planner *p, uint32_t slot)
{
    if (is_summed(p, slot))
        return true;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].kind == DP_OP_REDUCE && p->ops[i].slot == slot)
            return true;
    return false;
}

static void add_round(struct planner *p, uint32_t i)
{
    const struct dp_stage *stage = &p->source->stages[p->ops[i].slot];
    bool narrow = false;

    for (int32_t k = 0; k < stage->parameter_count; k++)
        narrow |= stage->parameters[k].grad && dp_gradient_is_narrow(stage->parameters[k].grad);
    if (narrow)
        add_slot_op(p, i, (struct dp_plan_op){.kind = DP_PLAN_ROUND});
}

/* What the end of a slot's weight part at op i brings with it. */
static void add_weights_end(struct planner *p, uint32_t i)
{
    const struct dp_op *op = &p->ops[i];

    add_turns(p, i);
    if (p->lifetimes.order.last_turn[op->slot] != i)
        return;
    add_sums(p, i);
    if (p->source->reduced_outside || !is_reduced(p, op->slot))
        add_round(p, i);
}

static bool is_backward(const struct dp_op *op)
{
    return op->kind == DP_OP_B || op->kind == DP_OP_I || op->kind == DP_OP_W;
}

static void add_one(struct planner *p, uint32_t i)
{
    const struct dp_op *op = &p->ops[i];

    switch ((enum dp_op_kind)op->kind) {
    case DP_OP_F:
        add_forward(p, i);
        break;
    case DP_OP_B:
    case DP_OP_I:
        add_backward(p, i);
        break;
    case DP_OP_SEND_F:
    case DP_OP_SEND_B:
    case DP_OP_SEND_SKIP_F:
    case DP_OP_SEND_SKIP_B:
        add_message(p, i, DP_PLAN_SEND);
        break;
    case DP_OP_REDUCE:
        add_slot_op(p, i, (struct dp_plan_op){.kind = DP_PLAN_REDUCE});
        break;
    case DP_OP_REDUCE_WAIT:
        add_slot_op(p, i, (struct dp_plan_op){.kind = DP_PLAN_REDUCE_WAIT});
        if (!p->source->reduced_outside)
            add_round(p, i);
        break;
    case DP_OP_RECOMPUTE:
        add_recompute(p, i);
        break;
    case DP_OP_EVICT:
        add_copy(p, i, DP_PLAN_EVICT);
        break;
    case DP_OP_FETCH:
        add_copy(p, i, DP_PLAN_FETCH);
        break;
    default: /* a RECV has been posted already; W: add_turns; COMMIT, FREE: in the lifetimes */
        break;
    }
}

static void add_all(struct planner *p)
{
    for (uint32_t i = 0; i < p->count && !p->failed; i++) {
        if (!i || !dp_lifetimes_is_pair(&p->lifetimes, p->source,
                                        i - 1)) /* nothing comes between a pair */
            post_receives(p, i);
        add_one(p, i);
        if (is_backward(&p->ops[i]))
            add_weights_end(p, i);
    }
}

static void add_sum(struct planner *p, int slot, enum dp_plan_kind kind)
{
    add_op(p, (struct dp_plan_op){.kind = (uint8_t)kind,
                                  .slot = (uint8_t)slot,
                                  .first_wait = (uint32_t)p->plan->wait_count,
                                  .index = p->lifetimes.order.last_turn[slot]});
}

/* By stages, so that no ranks wait for each other in a circle, whatever the order of their lists. */
static void add_added_sums(struct planner *p)
{
    const struct dp_schedule *s = p->source->schedule;
    const int slots = dp_schedule_slot_count(s, p->source->rank);

    for (int stage = 0; stage < s->stages && p->source->adds_sums; stage++)
        for (int slot = 0; slot < slots; slot++)
            if (dp_schedule_slot(s, p->source->rank, slot)->stage == stage &&
                is_summed(p, (uint32_t)slot))
                add_sum(p, slot, DP_PLAN_REDUCE);
    for (int slot = 0; slot < slots; slot++) {
        if (!is_summed(p, (uint32_t)slot))
            continue;
        add_sum(p, slot, DP_PLAN_REDUCE_WAIT);
        if (!p->source->reduced_outside)
            add_round(p, p->lifetimes.order.last_turn[slot]);
    }
}

static void add_last_waits(struct planner *p)
{
    p->plan->last_wait = p->plan->wait_count;
    for (uint32_t part = 0; part < DP_PARTS; part++)
        for (uint32_t lifetime = 0; lifetime < p->lifetimes.parts[part].count; lifetime++)
            wait_for(p, part, lifetime);
}

/* ---- together ------------------------------------------------------------------------------- */

static int planner_init(struct planner *p)
{
    int err = dp_lifetimes_init(&p->lifetimes, p->source);
    size_t lifetimes = 0;

    for (int part = 0; part < DP_PARTS && !err; part++) {
        p->flight[part] = calloc(p->lifetimes.parts[part].count + 1, sizeof(struct flight));
        p->failed |= !p->flight[part];
        lifetimes += p->lifetimes.parts[part].count;
    }
    p->spare = malloc(lifetimes * sizeof(*p->spare) + 1);
    p->evicted = calloc(lifetimes + 1, sizeof(*p->evicted));
    p->failed |= !p->spare || !p->evicted;
    return err;
}

static void planner_fini(struct planner *p)
{
    for (int part = 0; part < DP_PARTS; part++)
        free(p->flight[part]);
    free(p->spare);
    free(p->evicted);
    free(p->postings);
    dp_lifetimes_fini(&p->lifetimes);
}

/* Where a step can be taken in two calls. */
static void find_backwards(struct dp_plan *plan)
{
    plan->first_backward = plan->count;
    plan->in_two = true;
    for (size_t i = 0; i < plan->count; i++) {
        bool backward = plan->ops[i].kind == DP_PLAN_BACKWARD || plan->ops[i].kind == DP_PLAN_INPUT;
        if (backward && i < plan->first_backward)
            plan->first_backward = i;
        plan->in_two &= plan->ops[i].kind != DP_PLAN_FORWARD || i < plan->first_backward;
    }
}

static void describe_skips(struct planner *p)
{
    const struct dp_schedule *s = p->source->schedule;
    const struct dp_lifetimes *l = &p->lifetimes;
    const size_t n = (size_t)s->streams * (size_t)s->skip_count * (size_t)s->mb_per_stream;

    p->plan->skips = n ? malloc(n * sizeof(*p->plan->skips)) : NULL;
    p->failed |= n && !p->plan->skips;
    for (size_t i = 0; i < n && !p->failed; i++) {
        const struct dp_skip_buffers *at = &l->skip_buffers[i];
        p->plan->skips[i] = (struct dp_plan_skip){
            .out = dp_lifetimes_offset(l, at->out),
            .again = dp_lifetimes_offset(l, at->again),
            .in = dp_lifetimes_offset(l, at->in),
            .gout = dp_lifetimes_offset(l, at->gout),
            .gin = dp_lifetimes_offset(l, at->gin),
        };
    }
}

static void describe_memory(struct planner *p)
{
    p->plan->bytes = p->lifetimes.bytes;
    p->plan->host_bytes = p->lifetimes.host.bytes;
    p->plan->peak_activations = p->lifetimes.peak_activations;
    for (int part = 0; part < DP_PARTS; part++)
        p->plan->part_bytes[part] = p->lifetimes.parts[part].bytes;
    memcpy(p->plan->sets, p->lifetimes.order.sets, sizeof(p->plan->sets));
}

int dp_plan_init(struct dp_plan *plan, const struct dp_plan_source *source)
{
    struct planner p = {.source = source, .plan = plan};

    *plan = (struct dp_plan){0};
    p.ops = dp_schedule_ops(source->schedule, source->rank);
    p.count = (uint32_t)dp_schedule_count(source->schedule, source->rank);
    int err = planner_init(&p);
    if (!err && !p.failed)
        find_postings(&p);
    if (!err && !p.failed) {
        add_all(&p);
        add_added_sums(&p);
        add_last_waits(&p);
        find_backwards(plan);
        describe_memory(&p);
        describe_skips(&p);
    }
    if (!err && p.failed)
        err = dp_fail(DP_ENOMEM, "no memory for a plan of %u ops", p.count);
    planner_fini(&p);
    if (err)
        dp_plan_fini(plan);
    return err;
}

void dp_plan_fini(struct dp_plan *plan)
{
    free(plan->ops);
    free(plan->skips);
    free(plan->waits);
    *plan = (struct dp_plan){0};
}
