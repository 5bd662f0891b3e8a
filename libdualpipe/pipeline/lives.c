/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/lives.h"

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

bool dp_plan_is_pair(const struct dp_plan_source *source, uint32_t i)
{
    uint32_t count;
    const struct dp_op *op = ops_of(source, &count) + i;

    if (op->kind != DP_OP_F || !op->overlap || i + 1 >= count || op[1].kind != DP_OP_B)
        return false;
    const struct dp_stage_ops *ops = source->stages[op->slot].ops;
    return ops == source->stages[op[1].slot].ops && ops->fwd_bwd;
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

static void note_backward(const struct dp_plan_source *source, struct dp_moments *m,
                          const struct dp_op *op, uint32_t i)
{
    bool paired = i && dp_plan_is_pair(source, i - 1);
    m->b_first = paired ? i - 1 : i;
    m->b = i;
    if (op->kind == DP_OP_B || !dp_plan_splits(source, (int)op->slot))
        m->done = i;
}

static void note_moment(const struct dp_plan_source *source, struct dp_moments *m, uint32_t i)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);

    switch ((enum dp_op_kind)ops[i].kind) {
    case DP_OP_F:
        m->f = i;
        if (source->schedule->forward_only)
            m->done = i;
        break;
    case DP_OP_B:
    case DP_OP_I:
        note_backward(source, m, &ops[i], i);
        break;
    case DP_OP_W:
        if (dp_plan_splits(source, (int)ops[i].slot))
            m->done = i;
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

static void find_moments(struct dp_lives *lives, const struct dp_plan_source *source, size_t n)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);

    memset(lives->moments, 0xFF, n * sizeof(*lives->moments));
    for (uint32_t i = 0; i < count; i++)
        if (ops[i].kind != DP_OP_COMMIT && ops[i].kind != DP_OP_REDUCE)
            note_moment(source, &lives->moments[dp_lives_at(lives, ops[i].slot, ops[i].mb)], i);
}

static void find_peak(struct dp_lives *lives, const struct dp_plan_source *source)
{
    uint32_t count;
    const struct dp_op *ops = ops_of(source, &count);
    int32_t now = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (ops[i].kind == DP_OP_COMMIT || ops[i].kind == DP_OP_REDUCE)
            continue;
        now += ops[i].kind == DP_OP_F;
        if (now > lives->peak_activations)
            lives->peak_activations = now;
        now -= lives->moments[dp_lives_at(lives, ops[i].slot, ops[i].mb)].done == i;
    }
}

/* ---- what and how long --------------------------------------------------------------------- */

static struct dp_place add_life(struct dp_lives *lives, enum dp_memory_part part, size_t bytes,
                                uint32_t first, uint32_t last)
{
    struct dp_part *p = &lives->parts[part];
    p->lives[p->count] = (struct dp_life){.bytes = bytes, .first = first, .last = last};
    return (struct dp_place){part, p->count++};
}

/* The forward's way: input and output. */
static void add_activations(struct dp_lives *lives, const struct dp_plan_source *source,
                            uint32_t slot, uint32_t mb)
{
    const struct dp_schedule *s = source->schedule;
    const struct dp_slot *where = slot_of(source, slot);
    const struct dp_moments *m = &lives->moments[dp_lives_at(lives, slot, mb)];
    struct dp_places *at = &lives->places[dp_lives_at(lives, slot, mb)];
    size_t in_bytes = source->layouts[where->stage].activation.bytes;
    size_t out_bytes = source->layouts[where->stage + 1].activation.bytes;

    if (!dp_slot_is_first(where) && where->prev != source->rank)
        at->in = add_life(lives, DP_PART_IN, in_bytes, m->recv_f, m->done);
    else if (dp_slot_is_first(where) && source->copy_batch)
        at->in = add_life(lives, DP_PART_IN, in_bytes, m->f, m->done);

    if (where->next == source->rank) {
        size_t next = dp_lives_at(lives, (uint32_t)where->next_slot, mb);
        at->out = add_life(lives, DP_PART_IN, out_bytes, m->f, lives->moments[next].done);
        lives->places[next].in = at->out;
    } else if (!dp_slot_is_last(where)) {
        at->out = add_life(lives, DP_PART_OUT, out_bytes, m->f, m->sent_f);
    } else if (!s->return_outputs || source->copy_batch) {
        at->out = add_life(lives, DP_PART_OUT, out_bytes, m->f, s->forward_only ? m->f : m->b);
    }
}

/* The way back: output gradient and input gradient. */
static void add_gradients(struct dp_lives *lives, const struct dp_plan_source *source,
                          uint32_t slot, uint32_t mb)
{
    const struct dp_slot *where = slot_of(source, slot);
    const struct dp_moments *m = &lives->moments[dp_lives_at(lives, slot, mb)];
    struct dp_places *at = &lives->places[dp_lives_at(lives, slot, mb)];
    size_t in_bytes = source->layouts[where->stage].gradient.bytes;
    size_t out_bytes = source->layouts[where->stage + 1].gradient.bytes;

    if (dp_slot_is_last(where))
        at->gout = add_life(lives, DP_PART_GOUT, out_bytes, m->b_first, m->b);
    else if (where->next != source->rank)
        at->gout = add_life(lives, DP_PART_GOUT, out_bytes, m->recv_b, m->b);

    if (where->prev == source->rank) {
        size_t prev = dp_lives_at(lives, (uint32_t)where->prev_slot, mb);
        at->gin = add_life(lives, DP_PART_GOUT, in_bytes, m->b_first, lives->moments[prev].b);
        lives->places[prev].gout = at->gin;
    } else if (!dp_slot_is_first(where)) {
        at->gin = add_life(lives, DP_PART_GIN, in_bytes, m->b_first, m->sent_b);
    }
}

static void add_lives(struct dp_lives *lives, const struct dp_plan_source *source)
{
    uint32_t slots = (uint32_t)source->schedule->slots_per_rank;

    for (uint32_t slot = 0; slot < slots; slot++)
        for (uint32_t mb = 0; mb < lives->mb_count; mb++) {
            size_t i = dp_lives_at(lives, slot, mb);
            const struct dp_moments *m = &lives->moments[i];
            if (source->stages[slot].save_bytes)
                lives->places[i].save = add_life(
                    lives, DP_PART_SAVE, source->stages[slot].save_bytes, m->f, m->done);
            add_activations(lives, source, slot, mb);
            if (!source->schedule->forward_only)
                add_gradients(lives, source, slot, mb);
        }
}

/* ---- where --------------------------------------------------------------------------------- */

static int pack_parts(struct dp_lives *lives)
{
    for (int i = 0; i < DP_PARTS; i++) {
        struct dp_part *part = &lives->parts[i];
        int err = dp_arena_pack(part->lives, part->count, &part->bytes, &part->before);
        if (err)
            return err;
        part->base = lives->bytes;
        lives->bytes += part->bytes;
    }
    return 0;
}

int dp_lives_init(struct dp_lives *lives, const struct dp_plan_source *source)
{
    size_t n = (size_t)source->schedule->slots_per_rank * (size_t)source->schedule->mb_per_stream;
    bool failed = false;
    int err;

    *lives = (struct dp_lives){.mb_count = (uint32_t)source->schedule->mb_per_stream};
    lives->moments = malloc(n * sizeof(*lives->moments));
    lives->places = malloc(n * sizeof(*lives->places));
    for (int i = 0; i < DP_PARTS; i++) {
        lives->parts[i].lives = malloc(2 * n * sizeof(struct dp_life));
        failed |= !lives->parts[i].lives;
    }
    if (failed || !lives->moments || !lives->places) {
        err = dp_fail(DP_ENOMEM, "no memory to plan %zu micro-batches", n);
    } else {
        memset(lives->places, 0xFF, n * sizeof(*lives->places));
        find_moments(lives, source, n);
        find_peak(lives, source);
        add_lives(lives, source);
        err = pack_parts(lives);
    }
    if (err)
        dp_lives_fini(lives);
    return err;
}

void dp_lives_fini(struct dp_lives *lives)
{
    for (int i = 0; i < DP_PARTS; i++) {
        free(lives->parts[i].lives);
        dp_arena_before_fini(&lives->parts[i].before);
    }
    free(lives->moments);
    free(lives->places);
    *lives = (struct dp_lives){0};
}
