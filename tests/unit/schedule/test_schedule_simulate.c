/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator against published formulas and numbers. All times in ns; F is 1000 of them.
 */
#include "cmocka_all.h"

#include <dualpipe/schedule.h>

enum { T = 1000 };

static const struct dp_cost unit_cost = {.f_ns = T, .i_ns = T, .w_ns = T};

static struct dp_schedule *build(enum dp_schedule_kind kind, int ranks, int microbatches)
{
    struct dp_schedule *s;

    if (dp_schedule_new(&(struct dp_schedule_spec){.kind = kind, .ranks = ranks,
                                                   .microbatches = microbatches}, &s))
        fail_msg("%s", dp_last_error());
    return s;
}

static struct dp_simulation simulate(const struct dp_schedule *s, struct dp_cost cost,
                                     unsigned flags)
{
    struct dp_simulation sim;

    if (dp_schedule_simulate(s, &cost, flags, &sim))
        fail_msg("%s", dp_last_error());
    return sim;
}

static int64_t makespan_of(struct dp_schedule_spec spec, struct dp_cost cost)
{
    OWNED(dp_schedule) *s = NULL;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    struct dp_simulation sim = simulate(s, cost, 0);
    int64_t ns = sim.makespan_ns;
    dp_simulation_fini(&sim);
    return ns;
}

static int64_t makespan(enum dp_schedule_kind kind, int ranks, int microbatches,
                        struct dp_cost cost, unsigned flags)
{
    struct dp_schedule *s = build(kind, ranks, microbatches);
    struct dp_simulation sim = simulate(s, cost, flags);
    int64_t ns = sim.makespan_ns;

    dp_simulation_fini(&sim);
    dp_schedule_free(s);
    return ns;
}

static void expect_bubble_on_every_rank(enum dp_schedule_kind kind, int ranks, int microbatches,
                                        struct dp_cost cost, int64_t bubble_ns)
{
    struct dp_schedule *s = build(kind, ranks, microbatches);
    struct dp_simulation sim = simulate(s, cost, 0);

    for (int rank = 0; rank < ranks; rank++)
        if (sim.ranks[rank].bubble_ns != bubble_ns)
            fail_msg("%s P=%d M=%d: rank %d idles %ld, the formula says %ld",
                     dp_name(DP_NAMES_SCHEDULE, kind), ranks, microbatches, rank,
                     (long)sim.ranks[rank].bubble_ns, (long)bubble_ns);
    assert_int_equal(sim.ranks[0].busy_ns + bubble_ns, sim.makespan_ns);
    dp_simulation_fini(&sim);
    dp_schedule_free(s);
}

CASE(gpipe_and_1f1b_idle_for_the_published_time)
{
    for (int ranks = 1; ranks <= 16; ranks++)
        for (int m = ranks; m <= 3 * ranks; m++) {
            struct dp_cost cost = {.f_ns = T, .b_ns = 2300};
            expect_bubble_on_every_rank(DP_SCHEDULE_GPIPE, ranks, m, cost, (ranks - 1) * 3300);
            expect_bubble_on_every_rank(DP_SCHEDULE_1F1B, ranks, m, cost, (ranks - 1) * 3300);
        }
}

/* (PP - 1)(F + B - 2W), B = I + W; exact where W is no longer than F and I. */
CASE(zb1p_idles_for_the_published_time)
{
    static const struct dp_cost costs[] = {{.f_ns = T, .i_ns = T, .w_ns = T},
                                           {.f_ns = T, .i_ns = 1200, .w_ns = 800},
                                           {.f_ns = 2 * T, .i_ns = 2 * T, .w_ns = T}};
    for (int ranks = 1; ranks <= 16; ranks++)
        for (int m = ranks; m <= 3 * ranks; m++)
            for (int i = 0; i < 3; i++)
                expect_bubble_on_every_rank(DP_SCHEDULE_ZB1P, ranks, m, costs[i], (ranks - 1) *
                    (int64_t)(costs[i].f_ns + costs[i].i_ns - costs[i].w_ns));
}

/* (PP/2 - 1)(F&B + B - 3W), PP stages; exact where F = I = W. */
CASE(dualpipe_and_dualpipev_idle_for_the_published_time)
{
    for (int ranks = 2; ranks <= 16; ranks *= 2)
        for (int m = 2 * ranks; m <= 4 * ranks; m += 2) {
            expect_bubble_on_every_rank(DP_SCHEDULE_DUALPIPE, ranks, m, unit_cost,
                                        (ranks / 2 - 1) * 2 * T);
            expect_bubble_on_every_rank(DP_SCHEDULE_DUALPIPEV, ranks, m, unit_cost,
                                        (ranks - 1) * 2 * T);
        }
}

CASE(dualpipe_takes_3m_plus_p_minus_2)
{
    static const int cases[][3] = {{4, 8, 26}, {4, 20, 62}, {8, 16, 54},
                                   {8, 20, 66}, {8, 40, 126}, {16, 64, 206}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(makespan(DP_SCHEDULE_DUALPIPE, cases[i][0], cases[i][1], unit_cost, 0),
                         cases[i][2] * T);
}

/* With F&B < F + B outer ranks idle less, and the formula is the most that any does. */
CASE(the_formula_is_an_upper_bound_where_it_is_not_exact)
{
    struct dp_schedule *s = build(DP_SCHEDULE_DUALPIPE, 8, 20);
    struct dp_cost cost = unit_cost;
    int64_t most = 0;

    cost.fb_ns = 2500;
    struct dp_simulation sim = simulate(s, cost, 0);
    for (int rank = 0; rank < 8; rank++)
        if (sim.ranks[rank].bubble_ns > most)
            most = sim.ranks[rank].bubble_ns;
    assert_int_equal(most, 3 * (2500 + 2000 - 3000));
    assert_true(sim.ranks[0].bubble_ns < most);
    dp_simulation_fini(&sim);

    cost = (struct dp_cost){.f_ns = T, .i_ns = 1200, .w_ns = 800};
    sim = simulate(s, cost, 0);
    assert_int_equal(sim.ranks[0].bubble_ns, 7200); /* the formula: 7800 */
    dp_simulation_fini(&sim);
    dp_schedule_free(s);
}

/* The published figures, 69 and 81, are those of batches that are waited for as a whole; a wait
 * that belongs to the op that consumes gains little. */
CASE(link_latency_costs_what_was_published)
{
    struct dp_cost tenth = unit_cost, half = unit_cost;

    tenth.link_latency_ns = 100;
    half.link_latency_ns = 500;
    assert_int_equal(makespan(DP_SCHEDULE_DUALPIPE, 8, 20, tenth, DP_SIMULATE_BATCHES), 69000);
    assert_int_equal(makespan(DP_SCHEDULE_DUALPIPE, 8, 20, half, DP_SIMULATE_BATCHES), 81000);
    assert_int_equal(makespan(DP_SCHEDULE_DUALPIPE, 8, 20, tenth, 0), 68600);
    assert_int_equal(makespan(DP_SCHEDULE_DUALPIPE, 8, 20, half, 0), 79500);
}

/* From the steady state on, two micro-batches more take two pairs more, whatever the latency up to
 * that of a pair. Without slack they take longer with any latency. */
CASE(slack_hides_the_latency_of_messages_up_to_a_pair)
{
    for (int kind = DP_SCHEDULE_DUALPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int ranks = 2; ranks <= 8; ranks += 2)
            for (int tenths = 0; tenths <= 30; tenths++) {
                const int step = kind == DP_SCHEDULE_DUALPIPE ? 2 : 1;
                struct dp_cost cost = unit_cost;
                int64_t ns[2][2];
                cost.link_latency_ns = tenths * T / 10;
                for (int slack = 0; slack < 2; slack++)
                    for (int more = 0; more < 2; more++)
                        ns[slack][more] = makespan_of(
                            (struct dp_schedule_spec){.kind = kind, .ranks = ranks,
                                                      .microbatches = 8 * ranks + more * step,
                                                      .slack = slack},
                            cost);
                assert_int_equal(ns[1][1] - ns[1][0], 6 * T);
                assert_true(ns[1][0] <= ns[0][0]);
                assert_true(!tenths || ns[1][0] < ns[0][0]);
                assert_true(!tenths || ns[0][1] - ns[0][0] > 6 * T);
            }
    struct dp_cost tenth = unit_cost;
    struct dp_schedule_spec spec = {
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 8, .microbatches = 20, .slack = 1};
    tenth.link_latency_ns = 100;
    assert_int_equal(makespan_of(spec, tenth), 65200);
    tenth.link_latency_ns = 500;
    assert_int_equal(makespan_of(spec, tenth), 70000);
}

CASE(peak_activations_are_the_published_ones)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++) {
        struct dp_schedule *s = build((enum dp_schedule_kind)kind, 8, 20);
        struct dp_simulation sim = simulate(s, unit_cost, 0);
        for (int rank = 0; rank < 8; rank++) {
            const int alive[] = {0, 20, 8 - rank, 8, 9, 17}, h = rank < 4 ? rank : 7 - rank;
            const int queue[] = {0, 0, 0, rank + 1, h + 1, rank + 1};
            assert_int_equal(sim.ranks[rank].peak_activations, alive[kind]);
            assert_int_equal(sim.ranks[rank].peak_weight_queue, queue[kind]);
        }
        dp_simulation_fini(&sim);
        dp_schedule_free(s);
    }
}

/* ---- timelines ----------------------------------------------------------------------------- */

CASE(spans_of_a_rank_follow_each_other_and_name_the_rank_they_waited_for)
{
    struct dp_schedule *s = build(DP_SCHEDULE_DUALPIPE, 4, 8);
    struct dp_simulation sim = simulate(s, unit_cost, DP_SIMULATE_TIMELINE);
    const struct dp_timeline *t = &sim.timeline;

    for (size_t i = 0; i < t->count; i++) {
        const struct dp_span *span = &t->spans[i], *before = i ? span - 1 : NULL;
        bool same = before && before->rank == span->rank;
        int64_t ready = same ? before->end_ns : 0;
        assert_true(!before || same || before->rank + 1 == span->rank);
        assert_int_equal(span->start_ns - span->waited_ns, ready);
        assert_int_equal(span->waited_for >= 0, span->waited_ns > 0);
        assert_true(span->op.kind == dp_schedule_ops(s, span->rank)[span->index].kind);
        assert_int_equal(span->pair.kind, span->op.flags & DP_OP_OVERLAP ? DP_OP_B : DP_OP_NONE);
        assert_true(!span->waited_ns || abs(span->waited_for - span->rank) == 1);
    }
    assert_int_equal(t->makespan_ns, 26 * T);
    dp_simulation_fini(&sim);
    dp_schedule_free(s);
}

CASE(the_critical_path_leads_from_zero_to_the_end_without_a_gap)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int latency = 0; latency <= 700; latency += 350) {
            struct dp_schedule *s = build(kind, 4, 12);
            struct dp_cost cost = {.f_ns = T, .i_ns = 1100, .w_ns = 700,
                                   .link_latency_ns = latency};
            struct dp_simulation sim = simulate(s, cost, DP_SIMULATE_CRITICAL);
            int64_t at = 0;
            assert_null(sim.timeline.spans);
            for (size_t i = 0; i < sim.critical_count; i++) {
                const struct dp_span *span = &sim.critical[i];
                bool crossed = i && span[-1].rank != span->rank;
                assert_int_equal(span->start_ns, at + (crossed ? latency : 0));
                at = span->end_ns;
            }
            assert_int_equal(at, sim.makespan_ns);
            dp_simulation_fini(&sim);
            dp_schedule_free(s);
        }
}

CASE(a_slow_rank_or_stage_slows_the_step_as_it_must)
{
    static const double rank_scale[] = {1, 1, 3, 1}, stage_scale[] = {1, 3, 1, 1};
    struct dp_cost slow_rank = unit_cost, slow_stage = unit_cost;

    slow_rank.rank_scale = rank_scale;
    slow_stage.stage_scale = stage_scale;
    /* GPipe: the slow one computes without a break, others before and after it. */
    assert_int_equal(makespan(DP_SCHEDULE_GPIPE, 4, 10, slow_rank, 0), (10 * 9 + 3 * 3) * T);
    assert_int_equal(makespan(DP_SCHEDULE_GPIPE, 4, 10, slow_stage, 0), (10 * 9 + 3 * 3) * T);
    /* DualPipe holds every stage twice: a slow stage slows two ranks, each for half of its work. */
    assert_true(makespan(DP_SCHEDULE_DUALPIPE, 4, 20, slow_stage, 0) <
                makespan(DP_SCHEDULE_DUALPIPE, 4, 20, slow_rank, 0));
}

CASE(a_narrow_link_passes_one_message_at_a_time)
{
    struct dp_cost cost = {.f_ns = 1, .b_ns = 1, .link_bytes_per_ns = 0.5, .message_bytes = 500};

    /* Four messages of 1000 there, four back; computes take next to nothing. */
    assert_int_equal(makespan(DP_SCHEDULE_GPIPE, 2, 4, cost, 0), 1 + 4000 + 1 + 1 + 4000 + 1);
    assert_int_equal(makespan(DP_SCHEDULE_GPIPE, 1, 4, cost, 0), 8);
}

CASE(measured_op_times_can_stand_in_for_costs)
{
    struct dp_schedule *s = build(DP_SCHEDULE_DUALPIPE, 8, 20);
    size_t count = s->first[s->ranks];
    int64_t *op_ns = calloc(count, sizeof(*op_ns));
    struct dp_cost cost = {.op_ns = op_ns};

    for (size_t i = 0; i < count; i++)
        op_ns[i] = s->ops[i].flags & DP_OP_OVERLAP ? 3 * T : s->ops[i].kind == DP_OP_B ? 2 * T : T;
    struct dp_simulation sim = simulate(s, cost, 0);
    assert_int_equal(sim.makespan_ns, 66 * T);
    dp_simulation_fini(&sim);
    free(op_ns);
    dp_schedule_free(s);
}

/* The end of the rank's last span before its op `index`. */
static int64_t end_before(const struct dp_timeline *t, int rank, size_t index)
{
    int64_t end_ns = 0;

    for (size_t i = 0; i < t->count; i++)
        if (t->spans[i].rank == rank && t->spans[i].index < index)
            end_ns = t->spans[i].end_ns;
    return end_ns;
}

static size_t index_of(const struct dp_schedule *s, int rank, enum dp_op_kind kind, uint32_t slot)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t i = 0;

    while (ops[i].kind != kind || ops[i].slot != slot)
        i++;
    return i;
}

CASE(a_sum_with_the_mirror_goes_on_while_both_compute)
{
    OWNED(dp_schedule) *s = NULL;
    struct dp_cost cost = unit_cost;
    int waits = 0;

    cost.reduce_ns = 500;
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10,
        .mirror_reduce = true}, &s), 0);
    struct dp_simulation sim = simulate(s, cost, DP_SIMULATE_TIMELINE);
    for (size_t i = 0; i < sim.timeline.count; i++) {
        const struct dp_span *span = &sim.timeline.spans[i];
        uint32_t slot = span->op.slot, other = 1 - slot;
        if (span->op.kind != DP_OP_REDUCE_WAIT)
            continue;
        int64_t mine = end_before(&sim.timeline, span->rank,
                                  index_of(s, span->rank, DP_OP_REDUCE, slot));
        int64_t theirs = end_before(&sim.timeline, 3 - span->rank,
                                    index_of(s, 3 - span->rank, DP_OP_REDUCE, other));
        int64_t done_ns = (mine > theirs ? mine : theirs) + 500;
        assert_int_equal(span->end_ns, done_ns > span->start_ns ? done_ns : span->start_ns);
        waits++;
    }
    assert_int_equal(waits, 8);
    dp_simulation_fini(&sim);
}

static struct dp_schedule *read_text(const char *text)
{
    struct dp_schedule *s;

    if (dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s) ||
        dp_schedule_check(s, NULL, NULL))
        fail_msg("%s", dp_last_error());
    return s;
}

CASE(a_recomputed_forward_keeps_its_input_only)
{
    OWNED(dp_schedule) *s = read_text("user P=1 M=3\n"
                                      "rank 0: F0.0 F0.1 F0.2 B0.2 re0.1 B0.1 re0.0 B0.0\n");
    struct dp_simulation sim = simulate(s, unit_cost, 0);

    assert_int_equal(sim.ranks[0].peak_activations, 1);
    assert_int_equal(sim.ranks[0].peak_inputs, 2);
    assert_int_equal(sim.makespan_ns, (3 + 3 * 2 + 2) * T);
    dp_simulation_fini(&sim);
}

/* The copy out takes 2 T, from the end of F0.0 on, that back 3 T after it: B0.0 waits from 4 T on
 * until 6 T. */
CASE(an_evicted_set_is_fetched_before_the_backward_that_needs_it)
{
    OWNED(dp_schedule) *s = read_text("user P=1 M=2\n"
                                      "rank 0: F0.0 ev0.0 F0.1 fe0.0 B0.1 B0.0\n");
    struct dp_cost cost = unit_cost;

    cost.evict_ns = 2 * T;
    cost.fetch_ns = 3 * T;
    struct dp_simulation sim = simulate(s, cost, DP_SIMULATE_TIMELINE);
    assert_int_equal(sim.timeline.spans[3].start_ns, 6 * T);
    assert_int_equal(sim.timeline.spans[3].waited_ns, 2 * T);
    assert_int_equal(sim.timeline.spans[3].waited_for, -1);
    assert_int_equal(sim.ranks[0].peak_activations, 2);
    assert_int_equal(sim.ranks[0].peak_inputs, 1);
    dp_simulation_fini(&sim);
}

/* Only a message of a skip has an argument. */
CASE(an_eviction_with_an_argument_or_of_no_micro_batch_is_refused)
{
    OWNED(dp_schedule) *s = read_text("user P=1 M=1\nrank 0: F0.0 ev0.0 fe0.0 B0.0\n");
    struct dp_simulation sim;

    s->ops[1].flags = dp_op_flags(0, 1);
    assert_int_equal(dp_schedule_simulate(s, &unit_cost, 0, &sim), DP_EINVAL);
    s->ops[1].flags = 0;
    s->ops[1].mb = DP_MAX_MB + 1;
    assert_int_equal(dp_schedule_simulate(s, &unit_cost, 0, &sim), DP_EINVAL);
}

/* ---- what cannot be simulated -------------------------------------------------------------- */

static void expect_refused(struct dp_schedule *s, struct dp_cost cost, const char *sentence)
{
    struct dp_simulation sim;

    assert_int_equal(dp_schedule_simulate(s, &cost, DP_SIMULATE_CRITICAL, &sim), DP_EINVAL);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' does not say '%s'", dp_last_error(), sentence);
}

CASE(bad_costs_and_schedules_without_end_are_refused)
{
    static const double scale[] = {1, -1};
    struct dp_schedule *s = build(DP_SCHEDULE_1F1B, 2, 2);
    int64_t op_ns[100] = {0};
    struct dp_op *first = s->ops + s->first[1];

    expect_refused(s, (struct dp_cost){.f_ns = -1}, "cost f: -1, expected 0 to 1e15");
    expect_refused(s, (struct dp_cost){.link_latency_ns = 0.0 / 0.0}, "cost latency: ");
    expect_refused(s, (struct dp_cost){.rank_scale = scale}, "rank_scale[1]: -1");
    expect_refused(s, (struct dp_cost){.f_ns = 9e14, .stage_scale = (double[]){1, 9e8}},
                   "ops of up to 8.1e+23 ns each, expected less than");
    expect_refused(s, (struct dp_cost){.message_bytes = 1e15, .link_bytes_per_ns = 1e-4},
                   "ops of up to 1e+19 ns each, expected less than");
    op_ns[0] = INT64_MAX;
    expect_refused(s, (struct dp_cost){.op_ns = op_ns}, "ops of up to 9.22337e+18 ns each");
    op_ns[0] = -1;
    expect_refused(s, (struct dp_cost){.op_ns = op_ns}, "cost of op 0: -1, expected 0 or more");
    for (size_t i = 0; i < s->first[1]; i++)
        if (s->ops[i].kind == DP_OP_SEND_F)
            s->ops[i].kind = DP_OP_FREE;
    expect_refused(s, unit_cost, "rank 0, op 9 (B0.0) waits for a message that never comes");
    first->slot = 3;
    expect_refused(s, unit_cost, "rank 1, op 0 (rF3.0) makes no sense");
    first->slot = 0;
    s->slots[1].prev = 1;
    expect_refused(s, unit_cost, "neighbours do not hold the stages beside stage 1");
    dp_schedule_free(s);
}

RUN_QUIET_CASES(NULL, NULL)
