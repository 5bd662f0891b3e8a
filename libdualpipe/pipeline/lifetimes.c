/* SPDX-License-Identifier: Apache-2.0
 *
 * lifetimes.c - from which op of a rank's list to which each buffer lives; and in fixed order, when each
 * weight part has its turn.
 */
#include "pipeline/plan.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

static const struct dp_op *ops_of(const struct dp_plan_source *source, uint32_t *count)
{
    *count = (uint32_t)dp_schedule_count(source->schedule, source->rank);
    return dp_schedule_ops(source->schedule, source->rank);
}

static const struct dp_slot *slot_of(const struct dp_plan_source *source, uint32_t slot)
{
    return dp_schedule_slot(source->schedule, source->rank, (int)slot);
}

bool dp_lifetimes_is_pair(const struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                          uint32_t i)
{
    uint32_t count;
    const struct dp_op *op = ops_of(source, &count) + i;

    if (op->kind != DP_OP_F || !(op->flags & DP_OP_OVERLAP) || i + 1 >= count || op[1].kind != DP_OP_B)
        return false;
    const struct dp_stage_ops *ops = source->stages[op->slot].ops;
    bool waits = dp_order_part(&lifetimes->order, op[1].slot, op[1].mb)->turn > i + 1;
    return ops == source->stages[op[1].slot].ops && ops->fwd_bwd && !waits;
}

static bool has_mb(const struct dp_op *op)
{
    return op->kind != DP_OP_COMMIT && op->kind != DP_OP_REDUCE && op->kind != DP_OP_REDUCE_WAIT;
}

/* ---- when ---------------------------------------------------------------------------------- */

static uint32_t next_commit(const struct dp_op *ops, uint32_t count, uint32_t i)
{
    for (i++; i < count; i++)
        if (ops[i].kind == DP_OP_COMMIT)
            return i;
    return count;
}

/* Until when a message posted at i needs its buffer. */
static uint32_t end_of_send(const struct dp_op *ops, uint32_t count, uint32_t i)
{
    return next_commit(ops, count, next_commit(ops, count, i));
}

static void note_backward(const struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                          struct dp_lifetime_steps *m, uint32_t i)
{
    bool paired = i && dp_lifetimes_is_pair(lifetimes, source, i - 1);
    m->b_first = paired ? i - 1 : i;
    m->b = i;
}

static void note_step(const struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                      struct dp_lifetime_steps *m, uint32_t i)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);

    switch ((enum dp_op_kind)ops[i].kind) {
    case DP_OP_F:
        m->f = i;
        m->done = source->schedule->forward_only
                      ? i
                      : dp_order_part(&lifetimes->order, ops[i].slot, ops[i].mb)->turn;
        break;
    case DP_OP_B:
    case DP_OP_I:
        note_backward(lifetimes, source, m, i);
        break;
    case DP_OP_RECOMPUTE:
        m->again = i;
        break;
    case DP_OP_EVICT:
        m->evict = i;
        break;
    case DP_OP_FETCH:
        m->fetch = i;
        break;
    case DP_OP_RECV_F:
        m->recv_f = i;
        break;
    case DP_OP_RECV_B:
        m->recv_b = i;
        break;
    case DP_OP_SEND_F:
        m->sent_f = end_of_send(ops, count, i);
        break;
    case DP_OP_SEND_B:
        m->sent_b = end_of_send(ops, count, i);
        break;
    default:
        break;
    }
}

static struct dp_lifetime_steps *steps_of(const struct dp_lifetimes *lifetimes,
                                          const struct dp_op *op)
{
    return &lifetimes->steps[dp_lifetimes_index(lifetimes, op->slot, op->mb)];
}

static void note_skip_step(const struct dp_lifetimes *lifetimes,
                           const struct dp_plan_source *source, uint32_t i)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);
    struct dp_skip_steps *m = &lifetimes->skip_steps[dp_lifetimes_skip(
        lifetimes, slot_of(source, ops[i].slot)->stream, dp_op_argument(ops[i]), ops[i].mb)];

    switch ((enum dp_op_kind)ops[i].kind) {
    case DP_OP_RECV_SKIP_F:
        m->recv_f = i;
        break;
    case DP_OP_RECV_SKIP_B:
        m->recv_b = i;
        break;
    case DP_OP_SEND_SKIP_F:
        m->sent_f = end_of_send(ops, count, i);
        break;
    default:
        m->sent_b = end_of_send(ops, count, i);
        break;
    }
}

static void find_steps(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                       size_t n)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);

    memset(lifetimes->steps, 0xFF, n * sizeof(*lifetimes->steps));
    for (uint32_t i = 0; i < count; i++)
        if (dp_op_is_skip((enum dp_op_kind)ops[i].kind))
            note_skip_step(lifetimes, source, i);
        else if (has_mb(&ops[i]))
            note_step(lifetimes, source, steps_of(lifetimes, &ops[i]), i);
}

/* How many micro-batches of the op's slot are done at it: its own, and those that waited for it. */
static int32_t done_at(const struct dp_lifetimes *lifetimes, const struct dp_op *op, uint32_t i)
{
    int32_t done = 0;

    for (uint32_t mb = op->mb; mb < lifetimes->mb_count; mb++) {
        if (lifetimes->steps[dp_lifetimes_index(lifetimes, op->slot, mb)].done != i)
            break;
        done++;
    }
    return done;
}

static void find_peak(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);
    int32_t now = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (!has_mb(&ops[i]))
            continue;
        now += (ops[i].kind == DP_OP_F && !(ops[i].flags & DP_OP_RECOMPUTED)) ||
               ops[i].kind == DP_OP_RECOMPUTE || ops[i].kind == DP_OP_FETCH;
        if (now > lifetimes->peak_activations)
            lifetimes->peak_activations = now;
        now -= ops[i].kind == DP_OP_EVICT ? 1 : done_at(lifetimes, &ops[i], i);
    }
}

/* What the executor carries out of all that the checker allows: all that a forward saved, once, before
 * its backward. */
static int check_evictions(const struct dp_lifetimes *lifetimes, const struct dp_plan_source *source)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);
    char text[DP_OP_TEXT_LEN];

    for (uint32_t i = 0; i < count; i++) {
        if (ops[i].kind != DP_OP_EVICT)
            continue;
        if (source->driven)
            return dp_fail(DP_EUNSUPPORTED,
                           "schedule: rank %d, op %u: %s: execution by messages has no time at which "
                           "it could be evicted",
                           source->rank, i, dp_op_text(ops[i], text));
        const struct dp_lifetime_steps *m = steps_of(lifetimes, &ops[i]);
        bool once = m->evict == i && m->fetch != DP_NO_LIFETIME && m->fetch > i;
        if (!once || m->fetch > m->b_first)
            return dp_fail(DP_EUNSUPPORTED,
                           "schedule: rank %d, op %u: %s: a pipeline evicts all that a forward saved, "
                           "once, and fetches it before its backward",
                           source->rank, i, dp_op_text(ops[i], text));
    }
    return 0;
}

/* ---- what and how long --------------------------------------------------------------------- */

/* Driven by messages: what is used within one forward or backward lives during that, together with
 * the message that starts it. Everything else lives for the whole step. */
static void widen(const struct dp_lifetime_steps *m, uint32_t *first, uint32_t *last)
{
    if (*last == m->f && (*first == m->f || *first == m->recv_f)) {
        *first = m->f;
    } else if (*last == m->b && *first != m->f && *first != m->recv_f) {
        *first = m->again == DP_NO_LIFETIME ? m->b : m->again;
    } else {
        *first = 0;
        *last = DP_NO_LIFETIME - 1;
    }
}

/* Of a micro-batch whose ops are m. */
static struct dp_buffer_id add_lifetime(struct dp_lifetimes *lifetimes,
                                        const struct dp_lifetime_steps *m, enum dp_memory_part part,
                                        size_t bytes, uint32_t first, uint32_t last)
{
    struct dp_part *p = &lifetimes->parts[part];

    if (lifetimes->driven)
        widen(m, &first, &last);
    p->lifetimes[p->count] = (struct dp_lifetime){.bytes = bytes, .first = first, .last = last};
    return (struct dp_buffer_id){part, p->count++};
}

/* The forward's way: input and output. */
static void add_activations(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                            uint32_t slot, uint32_t mb)
{
    const struct dp_schedule *s = source->schedule;
    const struct dp_slot *where = slot_of(source, slot);
    const struct dp_lifetime_steps *m = &lifetimes->steps[dp_lifetimes_index(lifetimes, slot, mb)];
    struct dp_buffer_ids *at = &lifetimes->buffers[dp_lifetimes_index(lifetimes, slot, mb)];
    size_t in_bytes = source->layouts[where->stage].activation.bytes;
    size_t out_bytes = source->layouts[where->stage + 1].activation.bytes;

    if (!dp_slot_is_first(where) && where->prev != source->rank)
        at->in = add_lifetime(lifetimes, m, DP_PART_IN, in_bytes, m->recv_f, m->done);
    else if (dp_slot_is_first(where) && source->copy_strided)
        at->in = add_lifetime(lifetimes, m, DP_PART_IN, in_bytes, m->f, m->done);

    if (where->next == source->rank) {
        size_t next = dp_lifetimes_index(lifetimes, (uint32_t)where->next_slot, mb);
        at->out =
            add_lifetime(lifetimes, m, DP_PART_IN, out_bytes, m->f, lifetimes->steps[next].done);
        lifetimes->buffers[next].in = at->out;
    } else if (!dp_slot_is_last(where)) {
        at->out = add_lifetime(lifetimes, m, DP_PART_OUT, out_bytes, m->f, m->sent_f);
    } else {
        bool kept = !s->forward_only && m->again == DP_NO_LIFETIME; /* for the loss's gradient */
        at->out = add_lifetime(lifetimes, m, DP_PART_OUT, out_bytes, m->f, kept ? m->b : m->f);
    }
    if (m->again != DP_NO_LIFETIME)
        at->again_out = add_lifetime(lifetimes, m, DP_PART_OUT, out_bytes, m->again,
                                     dp_slot_is_last(where) ? m->b : m->again);
}

/* The way back: output gradient and input gradient. */
static void add_gradients(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                          uint32_t slot, uint32_t mb)
{
    const struct dp_slot *where = slot_of(source, slot);
    const struct dp_lifetime_steps *m = &lifetimes->steps[dp_lifetimes_index(lifetimes, slot, mb)];
    struct dp_buffer_ids *at = &lifetimes->buffers[dp_lifetimes_index(lifetimes, slot, mb)];
    size_t in_bytes = source->layouts[where->stage].gradient.bytes;
    size_t out_bytes = source->layouts[where->stage + 1].gradient.bytes;

    if (dp_slot_is_last(where))
        at->gout = add_lifetime(lifetimes, m, DP_PART_GOUT, out_bytes, m->b_first, m->done);
    else if (where->next != source->rank)
        at->gout = add_lifetime(lifetimes, m, DP_PART_GOUT, out_bytes, m->recv_b, m->done);

    if (where->prev == source->rank) {
        size_t prev = dp_lifetimes_index(lifetimes, (uint32_t)where->prev_slot, mb);
        at->gin = add_lifetime(lifetimes, m, DP_PART_GOUT, in_bytes, m->b_first,
                               lifetimes->steps[prev].done);
        lifetimes->buffers[prev].gout = at->gin;
    } else if (!dp_slot_is_first(where)) {
        at->gin = add_lifetime(lifetimes, m, DP_PART_GIN, in_bytes, m->b_first, m->sent_b);
    }
}

/* A save area that may be evicted: before that, after it, and on the host. */
static void add_save(struct dp_lifetimes *lifetimes, const struct dp_lifetime_steps *m, size_t bytes,
                     uint32_t first, uint32_t last, struct dp_buffer_id *const to[3])
{
    struct dp_part *host = &lifetimes->host;

    if (m->evict == DP_NO_LIFETIME) {
        *to[0] = add_lifetime(lifetimes, m, DP_PART_SAVE, bytes, first, last);
        return;
    }
    *to[0] = add_lifetime(lifetimes, m, DP_PART_SAVE, bytes, first, m->evict);
    *to[1] = add_lifetime(lifetimes, m, DP_PART_SAVE, bytes, m->fetch, last);
    host->lifetimes[host->count] =
        (struct dp_lifetime){.bytes = bytes, .first = m->evict, .last = m->b_first};
    *to[2] = (struct dp_buffer_id){DP_PARTS, host->count++};
}

/* Its save areas. */
static void add_saves(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                      uint32_t slot, uint32_t mb)
{
    const struct dp_stage *stage = &source->stages[slot];
    const struct dp_lifetime_steps *m = &lifetimes->steps[dp_lifetimes_index(lifetimes, slot, mb)];
    struct dp_buffer_ids *at = &lifetimes->buffers[dp_lifetimes_index(lifetimes, slot, mb)];
    struct dp_save_bytes bytes = {stage->save_bytes, stage->save_input_bytes,
                                  stage->save_weight_bytes};
    bool trains = !source->schedule->forward_only, twice = m->again != DP_NO_LIFETIME;
    uint32_t first = twice ? m->again : m->f;

    if (stage->save_of)
        stage->save_of(
            stage->user,
            slot_of(source, slot)->stream * source->schedule->mb_per_stream + (int32_t)mb, &bytes);
    if (bytes.whole)
        add_save(lifetimes, m, bytes.whole, first, m->done,
                 (struct dp_buffer_id *[]){&at->save, &at->back_save, &at->host_save});
    if (bytes.input)
        add_save(lifetimes, m, bytes.input, first, trains ? m->b : m->f,
                 (struct dp_buffer_id *[]){&at->save_input, &at->back_save_input,
                                           &at->host_save_input});
    if (bytes.whole && twice)
        at->first_save = add_lifetime(lifetimes, m, DP_PART_SAVE, bytes.whole, m->f, m->f);
    if (bytes.input && twice)
        at->first_save_input = add_lifetime(lifetimes, m, DP_PART_SAVE, bytes.input, m->f, m->f);
    if (bytes.weight && trains)
        at->save_weight =
            add_lifetime(lifetimes, m, DP_PART_SAVE, bytes.weight, m->b_first, m->done);
}

/* Driven by messages, a skip's come at any time. */
static struct dp_buffer_id add_skip_lifetime(struct dp_lifetimes *lifetimes, enum dp_memory_part part,
                                             size_t bytes, uint32_t first, uint32_t last)
{
    struct dp_part *p = &lifetimes->parts[part];
    const bool driven = lifetimes->driven;

    p->lifetimes[p->count] = (struct dp_lifetime){.bytes = bytes,
                                                  .first = driven ? 0 : first,
                                                  .last = driven ? DP_NO_LIFETIME - 1 : last};
    return (struct dp_buffer_id){part, p->count++};
}

/* One micro-batch of a skip that begins (makes) or ends (takes) on this rank, or both. */
struct skip_here {
    bool makes, takes;
    const struct dp_lifetime_steps *from, *to;
    const struct dp_skip_steps *steps;
    struct dp_skip_buffers *at;
};

static void add_skip_value(struct dp_lifetimes *lifetimes, const struct skip_here *h, size_t bytes)
{
    if (h->makes && h->takes)
        h->at->out = h->at->in =
            add_skip_lifetime(lifetimes, DP_PART_IN, bytes, h->from->f, h->to->done);
    else if (h->makes)
        h->at->out =
            add_skip_lifetime(lifetimes, DP_PART_OUT, bytes, h->from->f, h->steps->sent_f);
    else
        h->at->in =
            add_skip_lifetime(lifetimes, DP_PART_IN, bytes, h->steps->recv_f, h->to->done);
    if (h->makes && h->from->again != DP_NO_LIFETIME)
        h->at->again = add_skip_lifetime(lifetimes, DP_PART_OUT, bytes, h->from->again,
                                         h->from->again);
}

static void add_skip_gradient(struct dp_lifetimes *lifetimes, const struct skip_here *h,
                              size_t bytes)
{
    if (h->makes && h->takes)
        h->at->gout = h->at->gin =
            add_skip_lifetime(lifetimes, DP_PART_GOUT, bytes, h->to->b_first, h->from->done);
    else if (h->makes)
        h->at->gout =
            add_skip_lifetime(lifetimes, DP_PART_GOUT, bytes, h->steps->recv_b, h->from->done);
    else
        h->at->gin =
            add_skip_lifetime(lifetimes, DP_PART_GIN, bytes, h->to->b_first, h->steps->sent_b);
}

static void add_skip(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source, int stream,
                     int skip, uint32_t mb)
{
    const struct dp_skip_ends *ends = dp_skip_ends_of(source->schedule, stream, skip);
    const size_t index = dp_lifetimes_skip(lifetimes, stream, (uint32_t)skip, mb);
    const struct skip_here h = {
        .makes = ends->from == source->rank,
        .takes = ends->to == source->rank,
        .from = &lifetimes->steps[dp_lifetimes_index(lifetimes, (uint32_t)ends->from_slot, mb)],
        .to = &lifetimes->steps[dp_lifetimes_index(lifetimes, (uint32_t)ends->to_slot, mb)],
        .steps = &lifetimes->skip_steps[index],
        .at = &lifetimes->skip_buffers[index],
    };

    add_skip_value(lifetimes, &h, source->skip_bytes[skip]);
    if (!source->schedule->forward_only && source->skip_gradient_bytes[skip])
        add_skip_gradient(lifetimes, &h, source->skip_gradient_bytes[skip]);
}

static void add_skips(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source)
{
    for (int stream = 0; stream < source->schedule->streams; stream++)
        for (int skip = 0; skip < lifetimes->skips; skip++) {
            const struct dp_skip_ends *ends = dp_skip_ends_of(source->schedule, stream, skip);
            const bool here = ends->from == source->rank || ends->to == source->rank;
            for (uint32_t mb = 0; mb < lifetimes->mb_count && here; mb++)
                add_skip(lifetimes, source, stream, skip, mb);
        }
}

static void add_lifetimes(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source)
{
    uint32_t slots = (uint32_t)dp_schedule_slot_count(source->schedule, source->rank);

    for (uint32_t slot = 0; slot < slots; slot++)
        for (uint32_t mb = 0; mb < lifetimes->mb_count; mb++) {
            add_saves(lifetimes, source, slot, mb);
            add_activations(lifetimes, source, slot, mb);
            if (!source->schedule->forward_only)
                add_gradients(lifetimes, source, slot, mb);
        }
    add_skips(lifetimes, source);
}

/* ---- where --------------------------------------------------------------------------------- */

static int pack_parts(struct dp_lifetimes *lifetimes)
{
    for (int i = 0; i < DP_PARTS; i++) {
        struct dp_part *part = &lifetimes->parts[i];
        int err = dp_offsets_plan(part->lifetimes, part->count, &part->bytes, &part->before);
        if (err)
            return err;
        part->base = lifetimes->bytes;
        lifetimes->bytes += part->bytes;
    }
    struct dp_part *host = &lifetimes->host;
    return dp_offsets_plan(host->lifetimes, host->count, &host->bytes, &host->before);
}

int dp_lifetimes_init(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source)
{
    size_t slots = (size_t)dp_schedule_slot_count(source->schedule, source->rank);
    size_t n = slots * (size_t)source->schedule->mb_per_stream;
    size_t skips = (size_t)source->schedule->streams * (size_t)source->schedule->skip_count *
                   (size_t)source->schedule->mb_per_stream;
    bool failed = false;
    int err;

    *lifetimes = (struct dp_lifetimes){.mb_count = (uint32_t)source->schedule->mb_per_stream,
                                       .skips = source->schedule->skip_count,
                                       .driven = source->driven};
    lifetimes->steps = malloc(n * sizeof(*lifetimes->steps) + 1);
    lifetimes->buffers = malloc(n * sizeof(*lifetimes->buffers) + 1);
    for (int i = 0; i < DP_PARTS; i++) {
        lifetimes->parts[i].lifetimes = malloc((7 * n + 2 * skips + 1) * sizeof(struct dp_lifetime));
        failed |= !lifetimes->parts[i].lifetimes;
    }
    lifetimes->host.lifetimes = malloc((2 * n + 1) * sizeof(struct dp_lifetime));
    lifetimes->skip_steps = malloc(skips * sizeof(*lifetimes->skip_steps) + 1);
    lifetimes->skip_buffers = malloc(skips * sizeof(*lifetimes->skip_buffers) + 1);
    failed |= !lifetimes->host.lifetimes || !lifetimes->skip_steps || !lifetimes->skip_buffers;
    err = dp_order_init(&lifetimes->order, source->schedule, source->rank, source->stages,
                        source->order_blocks, source->driven);
    if (failed || !lifetimes->steps || !lifetimes->buffers) {
        err = dp_fail(DP_ENOMEM, "no memory to plan %zu micro-batches", n);
    } else if (!err) {
        memset(lifetimes->buffers, 0xFF, n * sizeof(*lifetimes->buffers));
        memset(lifetimes->skip_buffers, 0xFF, skips * sizeof(*lifetimes->skip_buffers));
        memset(lifetimes->skip_steps, 0xFF, skips * sizeof(*lifetimes->skip_steps));
        find_steps(lifetimes, source, n);
        err = check_evictions(lifetimes, source);
    }
    if (!err) {
        find_peak(lifetimes, source);
        add_lifetimes(lifetimes, source);
        err = pack_parts(lifetimes);
    }
    if (err)
        dp_lifetimes_fini(lifetimes);
    return err;
}

void dp_lifetimes_fini(struct dp_lifetimes *lifetimes)
{
    for (int i = 0; i < DP_PARTS; i++) {
        free(lifetimes->parts[i].lifetimes);
        dp_offset_owners_fini(&lifetimes->parts[i].before);
    }
    free(lifetimes->host.lifetimes);
    dp_offset_owners_fini(&lifetimes->host.before);
    dp_order_fini(&lifetimes->order);
    free(lifetimes->skip_steps);
    free(lifetimes->skip_buffers);
    free(lifetimes->steps);
    free(lifetimes->buffers);
    *lifetimes = (struct dp_lifetimes){0};
}

/* ---- fixed order ----------------------------------------------------------------------------- */

/* Block b begins at micro-batch b * M / blocks, rounded down. */
static int block_of(const struct dp_schedule *s, int blocks, int stream, int mb)
{
    int64_t global = (int64_t)stream * s->mb_per_stream + mb;
    return (int)(((global + 1) * blocks - 1) / s->microbatches);
}

static int first_block(const struct dp_schedule *s, int blocks, int stream)
{
    return block_of(s, blocks, stream, 0);
}

bool dp_order_is_shared(const struct dp_schedule *s, int rank, int slot)
{
    for (int later = slot + 1; later < dp_schedule_slot_count(s, rank); later++)
        if (dp_schedule_slot(s, rank, later)->location == dp_schedule_slot(s, rank, slot)->location)
            return true;
    return false;
}

/* ---- turns ---------------------------------------------------------------------------------- */

static bool has_weight_part(const struct dp_op *op, const struct dp_stage *stage)
{
    if (op->kind == DP_OP_I || op->kind == DP_OP_W)
        return (op->kind == DP_OP_W) == dp_stage_splits(stage);
    return op->kind == DP_OP_B;
}

static void find_ready(struct dp_order *order, const struct dp_schedule *s, int rank,
                       const struct dp_stage *stages)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t count = dp_schedule_count(s, rank);

    for (uint32_t i = 0; i < count; i++)
        if (has_weight_part(&ops[i], &stages[ops[i].slot]))
            dp_order_part(order, ops[i].slot, ops[i].mb)->ready = i;
}

/* In the order of micro-batches: a part's turn is not before that of the part before it. */
static void find_turns(struct dp_order *order, const struct dp_schedule *s, int rank, uint32_t slot,
                       int blocks)
{
    const int stream = dp_schedule_slot(s, rank, (int)slot)->stream;
    const int base = blocks && dp_order_is_shared(s, rank, (int)slot);
    uint32_t turn = 0;
    int set = -1;

    for (uint32_t mb = 0; mb < order->mb_count; mb++) {
        struct dp_order_part *part = dp_order_part(order, slot, mb);
        int its_set =
            blocks ? base + block_of(s, blocks, stream, (int)mb) - first_block(s, blocks, stream)
                   : 0;
        bool goes_on = blocks && its_set == set;
        turn = goes_on && turn > part->ready ? turn : part->ready;
        part->turn = turn;
        part->set = (uint8_t)its_set;
        set = its_set;
        if (turn > order->last_turn[slot])
            order->last_turn[slot] = turn;
    }
    order->block_sets[slot] = (uint8_t)(set + 1);
}

/* ---- parts kept apart ------------------------------------------------------------------------ */

static bool can_wait(const struct dp_stage *stage)
{
    return dp_stage_splits(stage) && stage->ops->weight;
}

/* A set is free again after the turn of the part that was kept in it; never if `now` is 0. */
static int take_set(const struct dp_order *order, uint32_t slot, uint32_t now)
{
    for (int set = order->block_sets[slot]; set <= DP_ORDER_MAX_SETS; set++) {
        bool taken = false;
        for (uint32_t mb = 0; mb < order->mb_count && !taken; mb++) {
            const struct dp_order_part *part = dp_order_part(order, slot, mb);
            taken = part->apart == set && part->turn >= now;
        }
        if (!taken)
            return set;
    }
    return -1;
}

static int find_apart(struct dp_order *order, const struct dp_schedule *s, int rank,
                      const struct dp_stage *stages, bool driven)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t count = dp_schedule_count(s, rank);

    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = ops[i].slot;
        if (!has_weight_part(&ops[i], &stages[slot]) || can_wait(&stages[slot]))
            continue;
        struct dp_order_part *part = dp_order_part(order, slot, ops[i].mb);
        int set = part->turn > i ? take_set(order, slot, driven ? 0 : i) : 0;
        if (set < 0 || set >= DP_ORDER_MAX_SETS)
            return dp_fail(DP_EUNSUPPORTED,
                           "fixed order: slot %u of rank %d has more than %d weight parts out of "
                           "order at once, which its stage cannot leave for later (no_split)",
                           slot, rank, DP_ORDER_MAX_SETS);
        part->apart = (uint8_t)set;
        if (set >= order->sets[slot])
            order->sets[slot] = (uint8_t)(set + 1);
    }
    return 0;
}

/* ---- together ------------------------------------------------------------------------------- */

int dp_order_init(struct dp_order *order, const struct dp_schedule *s, int rank,
                  const struct dp_stage *stages, int blocks, bool driven)
{
    int slots = dp_schedule_slot_count(s, rank);
    size_t n = (size_t)slots * (size_t)s->mb_per_stream;

    *order = (struct dp_order){.mb_count = (uint32_t)s->mb_per_stream};
    order->parts = calloc(n + 1, sizeof(*order->parts));
    if (!order->parts)
        return dp_fail(DP_ENOMEM, "no memory to order %zu micro-batches", n);
    memset(order->sets, 1, sizeof(order->sets));
    if (s->forward_only)
        return 0;
    find_ready(order, s, rank, stages);
    for (int slot = 0; slot < slots; slot++) {
        find_turns(order, s, rank, (uint32_t)slot, blocks);
        order->sets[slot] = order->block_sets[slot];
    }
    return find_apart(order, s, rank, stages, driven);
}

void dp_order_fini(struct dp_order *order)
{
    free(order->parts);
    *order = (struct dp_order){0};
}

int dp_order_sums(const struct dp_schedule *s, int rank, int slot, int blocks,
                  struct dp_order_sum *sums)
{
    const int stream = dp_schedule_slot(s, rank, slot)->stream;
    const int base = blocks && dp_order_is_shared(s, rank, slot);
    int set[DP_ORDER_MAX_BLOCKS], count = 0, first = blocks ? first_block(s, blocks, stream) : 0;

    for (int b = 0; b < blocks; b++)
        set[b] = -1;
    for (int mb = 0; mb < s->mb_per_stream && blocks; mb++) {
        int b = block_of(s, blocks, stream, mb);
        set[b] = base + b - first;
    }
    for (int step = 1; step < blocks; step *= 2)
        for (int b = 0; b + step < blocks; b += 2 * step) {
            if (set[b] >= 0 && set[b + step] >= 0)
                sums[count++] = (struct dp_order_sum){(uint8_t)set[b], (uint8_t)set[b + step]};
            else if (set[b] < 0)
                set[b] = set[b + step];
        }
    if (base)
        sums[count++] = (struct dp_order_sum){0, (uint8_t)base};
    return count;
}
