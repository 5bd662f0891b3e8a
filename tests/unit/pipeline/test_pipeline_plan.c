/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "pipeline/plan.h"
#include <dualpipe/comm.h>

/* ---- arena ---------------------------------------------------------------------------------- */

static bool overlap(size_t a, size_t a_len, size_t b, size_t b_len)
{
    return a < b + b_len && b < a + a_len;
}

static size_t peak_bytes(const struct dp_lifetime *lifetimes, size_t count, uint32_t times)
{
    size_t peak = 0;

    for (uint32_t t = 0; t < times; t++) {
        size_t now = 0;
        for (size_t i = 0; i < count; i++)
            if (lifetimes[i].first <= t && t <= lifetimes[i].last)
                now += dp_offset_align(lifetimes[i].bytes);
        peak = now > peak ? now : peak;
    }
    return peak;
}

static uint32_t draw(uint64_t *at, uint32_t limit)
{
    uint32_t block[4];
    dp_random_block(dp_random_key(1, 2, 3, 4), (*at)++, block);
    return block[0] % limit;
}

static void expect_apart(const struct dp_lifetime *lifetimes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (lifetimes[i].first <= lifetimes[j].last && lifetimes[j].first <= lifetimes[i].last)
                assert_false(overlap(lifetimes[i].offset, lifetimes[i].bytes, lifetimes[j].offset,
                                     lifetimes[j].bytes));
}

static bool is_before(const struct dp_offset_owners *before, size_t i, uint32_t id)
{
    for (size_t k = before->first[i]; k < before->first[i + 1]; k++)
        if (before->ids[k] == id)
            return true;
    return false;
}

/* Of those that had a byte of lifetime i before it, the last one is in its list. */
static void expect_before(const struct dp_lifetime *lifetimes, size_t count,
                          const struct dp_offset_owners *before)
{
    for (size_t i = 0; i < count; i++)
        for (size_t byte = lifetimes[i].offset; byte < lifetimes[i].offset + lifetimes[i].bytes; byte += 256) {
            int64_t last = -1;
            for (size_t j = 0; j < count; j++)
                if (j != i && lifetimes[j].first < lifetimes[i].first &&
                    overlap(byte, 1, lifetimes[j].offset, dp_offset_align(lifetimes[j].bytes)) &&
                    (last < 0 || lifetimes[j].first > lifetimes[last].first))
                    last = (int64_t)j;
            if (last >= 0)
                assert_true(is_before(before, i, (uint32_t)last));
        }
}

static void pack_random_lifetimes(uint64_t *seed, bool one_size)
{
    enum { COUNT = 60, TIMES = 40 };
    struct dp_lifetime lifetimes[COUNT];
    struct dp_offset_owners before;
    size_t total;

    for (int i = 0; i < COUNT; i++) {
        uint32_t first = draw(seed, TIMES), length = draw(seed, 10);
        lifetimes[i] = (struct dp_lifetime){.bytes = one_size ? 1000 : draw(seed, 3000),
                                    .first = first, .last = first + length};
    }
    assert_int_equal(dp_offsets_plan(lifetimes, COUNT, &total, &before), 0);
    expect_apart(lifetimes, COUNT);
    expect_before(lifetimes, COUNT, &before);
    if (one_size)
        assert_int_equal(total, peak_bytes(lifetimes, COUNT, TIMES + 10));
    dp_offset_owners_fini(&before);
}

CASE(lifetimes_that_overlap_never_share_memory)
{
    uint64_t seed = 0;
    for (int i = 0; i < 200; i++)
        pack_random_lifetimes(&seed, false);
}

CASE(lifetimes_of_one_size_take_no_more_than_their_peak)
{
    uint64_t seed = 1000000;
    for (int i = 0; i < 200; i++)
        pack_random_lifetimes(&seed, true);
}

/* ---- plans ---------------------------------------------------------------------------------- */

enum { SAVE_BYTES = 1000, BORDER_BYTES = 4 * 100 };

struct planned {
    struct dp_schedule *schedule;
    struct dp_border_layout *layouts;
    struct dp_stage stages[DP_MAX_SLOTS];
    struct dp_plan plan;
};

static const struct dp_stage_ops no_ops;

static void planned_init(struct planned *p, struct dp_schedule_spec spec, int rank, bool staged)
{
    struct dp_border border = {.count = 1,
                               .tensors = {{.dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = {100}}}};

    if (dp_schedule_new(&spec, &p->schedule))
        fail_msg("%s", dp_last_error());
    p->layouts = calloc((size_t)p->schedule->stages + 1, sizeof(*p->layouts));
    for (int i = 0; i <= p->schedule->stages; i++)
        dp_border_lay_out(&border, &p->layouts[i]);
    for (int i = 0; i < dp_schedule_slot_count(p->schedule, rank); i++)
        p->stages[i] = (struct dp_stage){.ops = &no_ops, .save_bytes = SAVE_BYTES};
    const struct dp_plan_source source = {.schedule = p->schedule, .rank = rank,
                                          .stages = p->stages, .layouts = p->layouts,
                                          .order_blocks = 2, .staged = staged};
    assert_int_equal(dp_plan_init(&p->plan, &source), 0);
}

static void planned_fini(struct planned *p)
{
    dp_plan_fini(&p->plan);
    dp_schedule_free(p->schedule);
    free(p->layouts);
}

static void expect_peak(enum dp_schedule_kind kind, int ranks, int microbatches, int rank, int peak)
{
    struct planned p;

    planned_init(&p, (struct dp_schedule_spec){.kind = kind, .ranks = ranks,
                                               .microbatches = microbatches}, rank, false);
    assert_int_equal(p.plan.peak_activations, peak);
    assert_int_equal(p.plan.part_bytes[DP_PART_SAVE], (size_t)peak * dp_offset_align(SAVE_BYTES));
    planned_fini(&p);
}

CASE(save_areas_take_what_the_schedule_promises)
{
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int m = 2 * ranks; m <= 4 * ranks + 2; m += 2)
            for (int rank = 0; rank < ranks; rank++) {
                if (ranks % 2 == 0)
                    expect_peak(DP_SCHEDULE_DUALPIPE, ranks, m, rank, ranks + 1);
                expect_peak(DP_SCHEDULE_DUALPIPEV, ranks, m, rank, 2 * ranks + 1 <= 2 * m ?
                                                                        2 * ranks + 1 : 2 * m);
                expect_peak(DP_SCHEDULE_1F1B, ranks, m, rank, ranks - rank);
                expect_peak(DP_SCHEDULE_GPIPE, ranks, m, rank, m);
            }
}

/* Follows a plan as a machine with the strictest rules would: nothing writes to memory that a
 * message may still read or write, and a request is used for one message at a time. */
struct message_at {
    bool open, sending;
    size_t offset, len;
};

static void expect_no_message_in(const struct message_at *open, uint32_t requests, size_t offset,
                                 bool reading)
{
    for (uint32_t i = 0; i < requests && offset != DP_NOWHERE; i++)
        if (open[i].open && !(reading && open[i].sending))
            assert_false(overlap(offset, BORDER_BYTES, open[i].offset, open[i].len));
}

static void close_waits(struct message_at *open, const struct dp_plan *plan, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        assert_true(open[plan->waits[i].request].open);
        open[plan->waits[i].request].open = false;
    }
}

static void open_message(struct message_at *open, const struct dp_plan *plan,
                         const struct dp_plan_op *op)
{
    const struct dp_plan_message *m = &op->message;

    assert_true(m->request < plan->requests);
    assert_false(open[m->request].open);
    expect_no_message_in(open, plan->requests, m->offset, op->kind == DP_PLAN_SEND);
    open[m->request] = (struct message_at){true, op->kind == DP_PLAN_SEND, m->offset, m->len};
}

static void follow(const struct dp_plan *plan)
{
    struct message_at *open = calloc(plan->requests + 1, sizeof(*open));

    for (size_t i = 0; i < plan->count; i++) {
        const struct dp_plan_op *op = &plan->ops[i];
        if (op->kind == DP_PLAN_RECV || op->kind == DP_PLAN_SEND) {
            open_message(open, plan, op);
            continue;
        }
        if (dp_plan_is_sum(op) || op->kind == DP_PLAN_REDUCE || op->kind == DP_PLAN_REDUCE_WAIT)
            continue;
        close_waits(open, plan, op->first_wait, op->first_wait + op->waits);
        expect_no_message_in(open, plan->requests, op->at.in, true);
        expect_no_message_in(open, plan->requests, op->at.out, op->kind != DP_PLAN_FORWARD);
        if (op->kind == DP_PLAN_BACKWARD || op->kind == DP_PLAN_INPUT) {
            expect_no_message_in(open, plan->requests, op->at.gout, true);
            expect_no_message_in(open, plan->requests, op->at.gin, false);
        }
    }
    close_waits(open, plan, plan->last_wait, plan->wait_count);
    for (uint32_t i = 0; i < plan->requests; i++)
        assert_false(open[i].open);
    free(open);
}

CASE(no_buffer_is_touched_while_a_message_uses_it)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int forward = 0; forward < 2; forward++)
            for (int rank = 0; rank < 6; rank++) {
                struct planned p;
                planned_init(&p, (struct dp_schedule_spec){.kind = (enum dp_schedule_kind)kind,
                                                           .ranks = 6, .microbatches = 16,
                                                           .forward_only = forward},
                             rank, false);
                follow(&p.plan);
                planned_fini(&p);
            }
}

/* The op index of the schedule at which each receive of the plan is posted is not later there. */
CASE(receives_are_posted_ahead_and_in_the_order_of_the_link)
{
    struct planned p;
    uint32_t reached = 0, early = 0;
    uint32_t last[8][2] = {{0}};

    planned_init(&p, (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 8,
                                               .microbatches = 20}, 2, false);
    for (size_t i = 0; i < p.plan.count; i++) {
        const struct dp_plan_op *op = &p.plan.ops[i];
        if (op->kind != DP_PLAN_RECV) {
            reached = op->index;
            continue;
        }
        assert_true(reached <= op->index);
        early += reached + 3 < op->index;
        uint32_t *before = &last[op->message.peer][op->message.channel == DP_CHANNEL_GRADIENT];
        assert_true(*before <= op->index);
        *before = op->index;
    }
    assert_true(early > 10);
    planned_fini(&p);
}

/* So activations and gradients between two ranks have no order in common, as messages of a single NCCL
 * communicator would need: receives of one pass those of the other that are sent before. */
CASE(receives_of_one_channel_pass_those_of_another)
{
    struct planned p;
    uint32_t passed = 0, last[4][2] = {{0}};

    planned_init(&p, (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4,
                                               .microbatches = 16}, 3, false);
    for (size_t i = 0; i < p.plan.count; i++) {
        const struct dp_plan_op *op = &p.plan.ops[i];
        const bool is_gradient = op->message.channel == DP_CHANNEL_GRADIENT;
        if (op->kind != DP_PLAN_RECV)
            continue;
        passed += op->index < last[op->message.peer][!is_gradient];
        last[op->message.peer][is_gradient] = op->index;
    }
    assert_true(passed > 0);
    planned_fini(&p);
}

/* Staged: the last message received into the same memory must have been copied out of it. */
static bool waits_for(const struct dp_plan *plan, const struct dp_plan_op *op, uint32_t request)
{
    for (uint32_t i = 0; i < op->waits; i++)
        if (plan->waits[op->first_wait + i].request == request)
            return true;
    return false;
}

static const struct dp_plan_op *last_received(const struct dp_plan *plan, size_t before,
                                              size_t offset)
{
    for (size_t i = before; i-- > 0;)
        if (plan->ops[i].kind == DP_PLAN_RECV && plan->ops[i].message.offset == offset)
            return &plan->ops[i];
    return NULL;
}

CASE(staged_receives_wait_for_the_copy_before_them)
{
    struct planned p;
    int waits = 0;

    planned_init(&p, (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4,
                                               .microbatches = 20}, 2, true);
    for (size_t i = 0; i < p.plan.count; i++) {
        const struct dp_plan_op *op = &p.plan.ops[i];
        if (op->kind != DP_PLAN_RECV)
            continue;
        const struct dp_plan_op *before = last_received(&p.plan, i, op->message.offset);
        if (!before)
            continue;
        assert_true(waits_for(&p.plan, op, before->message.request));
        waits++;
    }
    assert_true(waits > 10);
    planned_fini(&p);
}

CASE(a_plan_has_few_requests_and_no_more_memory_than_its_parts)
{
    struct planned p;
    size_t sum = 0;

    planned_init(&p, (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 8,
                                               .microbatches = 400}, 3, false);
    for (int i = 0; i < DP_PARTS; i++)
        sum += p.plan.part_bytes[i];
    assert_int_equal(p.plan.bytes, sum);
    assert_true(p.plan.requests < 32);
    assert_true(p.plan.part_bytes[DP_PART_IN] <= 11 * dp_offset_align(BORDER_BYTES));
    assert_true(p.plan.part_bytes[DP_PART_OUT] <= 6 * dp_offset_align(BORDER_BYTES));
    planned_fini(&p);
}
