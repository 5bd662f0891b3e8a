/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/plan.h"

#include "base/fail.h"
#include <dualpipe/comm.h>

#include <stdlib.h>

/* A receive, and the first op before which it may be posted. */
struct early {
    uint32_t due, index;
};

/* The message that a buffer is for. */
struct flight {
    struct dp_plan_wait wait;
    bool open; /* posted, and nobody has waited for it yet */
};

/* A plan in the making. */
struct planner {
    const struct dp_plan_source *source;
    const struct dp_op *ops;
    uint32_t count;
    struct dp_lives lives;
    struct dp_plan *plan;
    size_t op_capacity, wait_capacity;
    struct early *early; /* [early_count], by due, then index */
    size_t early_count, posted;
    struct flight *flight[DP_PARTS];       /* by life */
    uint32_t *spare;                       /* requests that are free again */
    uint32_t spare_count;
    uint32_t last_weight[DP_MAX_SLOTS];    /* the op with the slot's last weight part */
    bool failed;                           /* out of memory on the way */
};

static const struct dp_slot *slot_of(const struct planner *p, const struct dp_op *op)
{
    return dp_schedule_slot(p->source->schedule, p->source->rank, (int)op->slot);
}

static struct dp_places *places_of(const struct planner *p, const struct dp_op *op)
{
    return &p->lives.places[dp_lives_at(&p->lives, op->slot, op->mb)];
}

static bool has_mb(const struct dp_op *op)
{
    return op->kind != DP_OP_COMMIT && op->kind != DP_OP_REDUCE && op->kind != DP_OP_NONE;
}

/* ---- lists that grow ----------------------------------------------------------------------- */

static bool grow(void **list, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity)
        return true;
    size_t more = *capacity ? 2 * *capacity : 256;
    void *bigger = realloc(*list, more * size);
    if (!bigger)
        return false;
    *list = bigger;
    *capacity = more;
    return true;
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

static void wait_for(struct planner *p, uint32_t part, uint32_t life)
{
    struct flight *flight = &p->flight[part][life];

    if (!flight->open)
        return;
    add_wait(p, flight->wait);
    p->spare[p->spare_count++] = flight->wait.request;
    flight->open = false;
}

static void wait_for_message(struct planner *p, struct dp_place place)
{
    if (place.life != DP_NEVER)
        wait_for(p, place.part, place.life);
}

/* Those that had the memory of `place` last must be done with sending from it. */
static void wait_for_memory(struct planner *p, struct dp_place place)
{
    if (place.life == DP_NEVER)
        return;
    const struct dp_arena_before *before = &p->lives.parts[place.part].before;
    for (size_t i = before->first[place.life]; i < before->first[place.life + 1]; i++)
        wait_for(p, place.part, before->ids[i]);
}

/* Staged: those that had the memory of `place` last must have been copied out of it. */
static void wait_for_copies(struct planner *p, struct dp_place place)
{
    const struct dp_arena_before *before = &p->lives.parts[place.part].before;
    for (size_t i = before->first[place.life]; i < before->first[place.life + 1]; i++) {
        const struct flight *flight = &p->flight[place.part][before->ids[i]];
        if (flight->wait.received)
            add_wait(p, flight->wait);
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

/* The buffer of a message. An activation is input here or output; a gradient likewise. */
static struct dp_place message_place(const struct planner *p, const struct dp_op *op)
{
    const struct dp_places *at = places_of(p, op);
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

    if (op->kind == DP_OP_RECV_F)
        owner--;
    else if (op->kind == DP_OP_RECV_B)
        owner++;
    return (struct dp_plan_message){
        .offset = dp_lives_offset(&p->lives, message_place(p, op)),
        .len = forward ? layout->activation.bytes : layout->gradient.bytes,
        .peer = before ? slot->prev : slot->next,
        .channel = forward ? DP_CHANNEL_ACTIVATION : DP_CHANNEL_GRADIENT,
        .stage = (uint16_t)owner,
    };
}

/* A border without bytes needs no message; both sides see that in the same declaration. */
static bool is_needed(const struct planner *p, const struct dp_plan_message *message)
{
    return message->len && message->peer >= 0 && message->peer != p->source->rank;
}

static void add_message(struct planner *p, uint32_t i, enum dp_plan_kind kind)
{
    const struct dp_op *op = &p->ops[i];
    struct dp_place place = message_place(p, op);
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
        wait_for_copies(p, place);
    m->request = take_request(p);
    p->flight[place.part][place.life] = (struct flight){
        .wait = {m->request, m->peer, m->offset, kind == DP_PLAN_RECV ? m->len : 0}, .open = true};
    entry.waits = (uint16_t)(p->plan->wait_count - entry.first_wait);
    add_op(p, entry);
}

/* ---- receives, as early as may be ------------------------------------------------------------ */

static bool is_recv(const struct dp_op *op)
{
    return op->kind == DP_OP_RECV_F || op->kind == DP_OP_RECV_B;
}

static uint32_t memory_free_at(const struct planner *p, struct dp_place place)
{
    const struct dp_part *part = &p->lives.parts[place.part];
    uint32_t due = 0;

    for (size_t i = part->before.first[place.life]; i < part->before.first[place.life + 1]; i++) {
        uint32_t last = part->lives[part->before.ids[i]].last;
        if (last + 1 > due)
            due = last + 1;
    }
    return due;
}

static int by_due(const void *pa, const void *pb)
{
    const struct early *a = pa, *b = pb;
    if (a->due != b->due)
        return a->due < b->due ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* When each receive is due: not before its memory is free, and not before the receive that comes
 * before it from the same peer on the same channel. */
static void find_early(struct planner *p)
{
    const struct dp_schedule *s = p->source->schedule;
    uint32_t *latest = calloc(2 * (size_t)s->ranks, sizeof(*latest));

    p->early = malloc(p->count * sizeof(*p->early) + 1);
    p->failed |= !latest || !p->early;
    for (uint32_t i = 0; i < p->count && !p->failed; i++) {
        const struct dp_op *op = &p->ops[i];
        if (!is_recv(op))
            continue;
        struct dp_plan_message message = describe_message(p, op);
        if (!is_needed(p, &message))
            continue;
        uint32_t *link = &latest[2 * message.peer + (message.channel == DP_CHANNEL_GRADIENT)];
        uint32_t due = memory_free_at(p, message_place(p, op));
        *link = due > *link ? due : *link;
        p->early[p->early_count++] = (struct early){*link, i};
    }
    if (!p->failed)
        qsort(p->early, p->early_count, sizeof(*p->early), by_due);
    free(latest);
}

static void post_early(struct planner *p, uint32_t now)
{
    while (p->posted < p->early_count && p->early[p->posted].due <= now)
        add_message(p, p->early[p->posted++].index, DP_PLAN_RECV);
}

/* ---- computes ------------------------------------------------------------------------------- */

static struct dp_plan_op describe_compute(const struct planner *p, uint32_t i,
                                          enum dp_plan_kind kind)
{
    const struct dp_op *op = &p->ops[i];
    const struct dp_places *at = places_of(p, op);

    return (struct dp_plan_op){
        .kind = (uint8_t)kind,
        .slot = (uint8_t)op->slot,
        .pair = dp_plan_is_pair(p->source, i),
        .first_wait = (uint32_t)p->plan->wait_count,
        .mb = op->mb,
        .index = i,
        .at = {.in = dp_lives_offset(&p->lives, at->in),
               .out = dp_lives_offset(&p->lives, at->out),
               .gout = dp_lives_offset(&p->lives, at->gout),
               .gin = dp_lives_offset(&p->lives, at->gin),
               .save = dp_lives_offset(&p->lives, at->save)},
    };
}

static void finish_compute(struct planner *p, struct dp_plan_op op)
{
    op.waits = (uint16_t)(p->plan->wait_count - op.first_wait);
    add_op(p, op);
}

static void add_forward(struct planner *p, uint32_t i)
{
    struct dp_plan_op op = describe_compute(p, i, DP_PLAN_FORWARD);
    const struct dp_places *at = places_of(p, &p->ops[i]);

    wait_for_message(p, at->in);
    wait_for_memory(p, at->out);
    finish_compute(p, op);
}

static void add_backward(struct planner *p, uint32_t i)
{
    bool split = p->ops[i].kind == DP_OP_I && dp_plan_splits(p->source, (int)p->ops[i].slot);
    struct dp_plan_op op = describe_compute(p, i, split ? DP_PLAN_INPUT : DP_PLAN_BACKWARD);
    const struct dp_places *at = places_of(p, &p->ops[i]);

    wait_for_message(p, at->gout);
    wait_for_memory(p, at->gin);
    finish_compute(p, op);
}

static void add_slot_op(struct planner *p, uint32_t i, enum dp_plan_kind kind)
{
    add_op(p, (struct dp_plan_op){.kind = (uint8_t)kind,
                                  .slot = (uint8_t)p->ops[i].slot,
                                  .first_wait = (uint32_t)p->plan->wait_count,
                                  .index = i});
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
    case DP_OP_W:
        if (dp_plan_splits(p->source, (int)op->slot))
            finish_compute(p, describe_compute(p, i, DP_PLAN_WEIGHT));
        break;
    case DP_OP_SEND_F:
    case DP_OP_SEND_B:
        add_message(p, i, DP_PLAN_SEND);
        break;
    case DP_OP_REDUCE:
        add_slot_op(p, i, DP_PLAN_REDUCE);
        break;
    default: /* a RECV has been posted already; COMMIT and FREE are in the lives */
        break;
    }
}

static void add_all(struct planner *p)
{
    for (uint32_t i = 0; i < p->count && !p->failed; i++) {
        if (!i || !dp_plan_is_pair(p->source, i - 1)) /* nothing comes between a pair */
            post_early(p, i);
        add_one(p, i);
        if (has_mb(&p->ops[i]) && p->plan->second_half[p->ops[i].slot] &&
            p->last_weight[p->ops[i].slot] == i)
            add_slot_op(p, i, DP_PLAN_MERGE);
    }
}

static void add_last_waits(struct planner *p)
{
    p->plan->last_wait = p->plan->wait_count;
    for (uint32_t part = 0; part < DP_PARTS; part++)
        for (uint32_t life = 0; life < p->lives.parts[part].count; life++)
            wait_for(p, part, life);
}

/* ---- fixed order ---------------------------------------------------------------------------- */

static bool adds_weights(const struct planner *p, const struct dp_op *op)
{
    bool splits = dp_plan_splits(p->source, (int)op->slot);
    return op->kind == DP_OP_B || (op->kind == DP_OP_I && !splits) ||
           (op->kind == DP_OP_W && splits);
}

/* Weight parts must come in the order of micro-batches; then who needs a second half is known. */
static int find_order(struct planner *p)
{
    const struct dp_schedule *s = p->source->schedule;
    int32_t next[DP_MAX_SLOTS] = {0};

    for (uint32_t i = 0; i < p->count; i++) {
        const struct dp_op *op = &p->ops[i];
        if (!has_mb(op) || !adds_weights(p, op))
            continue;
        if ((int32_t)op->mb != next[op->slot]++)
            return dp_fail(DP_EUNSUPPORTED,
                           "fixed_order: op %u of rank %d adds the weights of micro-batch %u of "
                           "slot %u, expected %d: the schedule does not keep their order",
                           i, p->source->rank, op->mb, op->slot, next[op->slot] - 1);
        p->last_weight[op->slot] = i;
        p->plan->second_half[op->slot] =
            slot_of(p, op)->stream * s->mb_per_stream < dp_plan_half(s) &&
            slot_of(p, op)->stream * s->mb_per_stream + (int32_t)op->mb >= dp_plan_half(s);
    }
    return 0;
}

/* ---- together ------------------------------------------------------------------------------- */

static int planner_init(struct planner *p)
{
    int err = dp_lives_init(&p->lives, p->source);
    size_t lives = 0;

    for (int part = 0; part < DP_PARTS && !err; part++) {
        p->flight[part] = calloc(p->lives.parts[part].count + 1, sizeof(struct flight));
        p->failed |= !p->flight[part];
        lives += p->lives.parts[part].count;
    }
    p->spare = malloc(lives * sizeof(*p->spare) + 1);
    p->failed |= !p->spare;
    return err;
}

static void planner_fini(struct planner *p)
{
    for (int part = 0; part < DP_PARTS; part++)
        free(p->flight[part]);
    free(p->spare);
    free(p->early);
    dp_lives_fini(&p->lives);
}

static void describe_memory(struct planner *p)
{
    p->plan->bytes = p->lives.bytes;
    p->plan->peak_activations = p->lives.peak_activations;
    for (int part = 0; part < DP_PARTS; part++)
        p->plan->part_bytes[part] = p->lives.parts[part].bytes;
}

int dp_plan_init(struct dp_plan *plan, const struct dp_plan_source *source)
{
    struct planner p = {.source = source, .plan = plan};

    *plan = (struct dp_plan){0};
    p.ops = dp_schedule_ops(source->schedule, source->rank);
    p.count = (uint32_t)dp_schedule_count(source->schedule, source->rank);
    int err = planner_init(&p);
    if (!err && source->fixed_order && !source->schedule->forward_only)
        err = find_order(&p);
    if (!err && !p.failed)
        find_early(&p);
    if (!err && !p.failed) {
        add_all(&p);
        add_last_waits(&p);
        describe_memory(&p);
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
    free(plan->waits);
    *plan = (struct dp_plan){0};
}
