/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"
#include "pipeline/internal.h"

#include "unit/comm/comm_group.h"
#include "pipeline_job.h"
#include <dualpipe/trace.h>

#include <jansson.h>

enum { RANKS = 4, MICROBATCHES = 10, STEPS = 3 };
static const int64_t deadline_ns = INT64_C(20000000000);

/* ---- a real step, recorded ------------------------------------------------------------------- */

struct recorded {
    struct job job;
    struct dp_timeline timeline; /* filled by rank 0 */
    int (*run)(struct dp_comm *comm, struct recorded *r, struct job_rank *rank,
               struct dp_recorder *rec);
};

static _Thread_local struct dp_recorder *the_recorder;

static void set_recorder(void *user, int rank, struct dp_pipeline_config *config)
{
    config->recorder = the_recorder;
}

static int run_recorded(struct dp_comm *comm, void *arg)
{
    struct recorded *r = arg;
    struct job_rank rank;

    CHECK(!dp_recorder_new(200, 2, &the_recorder));
    CHECK(!job_rank_open(&rank, &r->job, comm));
    CHECK(!r->run(comm, r, &rank, the_recorder));
    job_rank_close(&rank);
    dp_recorder_free(the_recorder);
    return 0;
}

static void run_on_threads(struct recorded *r, struct dp_schedule *s)
{

    r->job = job_make(s);
    job_begin(&r->job);
    r->job.edit = set_recorder;
    assert_int_equal(comm_on_threads(s->ranks, deadline_ns, run_recorded, r), 0);
    job_end(&r->job);
}

static struct dp_schedule *build(enum dp_schedule_kind kind)
{
    struct dp_schedule *s = NULL;
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = kind, .ranks = RANKS,
                                                                .microbatches = MICROBATCHES,
                                                                .mirror_reduce = true},
                                     &s),
                     0);
    return s;
}

static int gather_last_step(struct dp_comm *comm, struct recorded *r, struct job_rank *rank,
                            struct dp_recorder *rec)
{
    struct dp_timeline timeline;

    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(rank));
    CHECK(!dp_recorder_gather(rec, r->job.schedule, comm, &timeline));
    if (dp_comm_rank(comm) == 0)
        r->timeline = timeline;
    else
        CHECK(!timeline.count && !timeline.spans);
    return 0;
}

static size_t count_computes(const struct dp_schedule *s)
{
    size_t count = 0;

    for (size_t i = 0; i < s->first[s->ranks]; i++) {
        uint32_t kind = s->ops[i].kind;
        count += kind == DP_OP_F || kind == DP_OP_B || kind == DP_OP_I || kind == DP_OP_W ||
                 kind == DP_OP_REDUCE || kind == DP_OP_REDUCE_WAIT;
        count -= s->ops[i].flags & DP_OP_OVERLAP;
    }
    return count;
}

/* The spans of each rank are its list, in order and without overlap. */
static void expect_whole(const struct dp_timeline *t, const struct dp_schedule *s)
{
    assert_int_equal(t->ranks, s->ranks);
    assert_int_equal(t->count, count_computes(s));
    for (size_t i = 0; i < t->count; i++) {
        const struct dp_span *span = &t->spans[i];
        assert_true(span->start_ns >= 0 && span->end_ns >= span->start_ns);
        assert_true(span->end_ns <= t->makespan_ns);
        assert_true(span->waited_ns >= 0);
        assert_memory_equal(&span->op, dp_schedule_ops(s, span->rank) + span->index,
                            sizeof(span->op));
        if (!i || span[-1].rank != span->rank)
            continue;
        assert_true(span->index > span[-1].index);
        assert_true(span->start_ns >= span[-1].end_ns);
    }
}

CASE(a_recorded_step_has_every_compute_once_and_in_order)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++) {
        OWNED(dp_schedule) *s = build((enum dp_schedule_kind)kind);
        struct recorded r = {.run = gather_last_step};
        run_on_threads(&r, s);
        expect_whole(&r.timeline, s);
        dp_timeline_fini(&r.timeline);
    }
}

static int gather_when_it_cannot(struct dp_comm *comm, struct recorded *r, struct job_rank *rank,
                                 struct dp_recorder *rec)
{
    struct dp_timeline timeline;

    CHECK(dp_recorder_gather(rec, r->job.schedule, comm, &timeline) == DP_ESTATE);
    CHECK_SAYS("rank 0 has recorded no step");
    dp_recorder_enable(rec, dp_comm_rank(comm) != 2);
    CHECK(!job_rank_step(rank));
    CHECK(dp_recorder_gather(rec, r->job.schedule, comm, &timeline) == DP_ESTATE);
    CHECK_SAYS("rank 2 has recorded no step");
    dp_recorder_enable(rec, true);
    CHECK(!job_rank_step(rank));
    dp_recorder_enable(rec, dp_comm_rank(comm) != 1);
    CHECK(!job_rank_step(rank));
    CHECK(dp_recorder_gather(rec, r->job.schedule, comm, &timeline) == DP_ESTATE);
    CHECK_SAYS("rank 1 has recorded step 1, rank 0 step 2");
    return 0;
}

CASE(a_step_that_not_all_have_recorded_is_refused)
{
    OWNED(dp_schedule) *s = build(DP_SCHEDULE_DUALPIPE);
    struct recorded r = {.run = gather_when_it_cannot};
    run_on_threads(&r, s);
}

/* One rank, no comm; a ring that is too small, then one that is not. */
CASE(a_rank_alone_gathers_its_own_steps)
{
    struct dp_schedule *s, *other = build(DP_SCHEDULE_1F1B);
    struct dp_timeline t;
    struct job_rank rank;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV,
                                                                .ranks = 1,
                                                                .microbatches = 4},
                                     &s),
                     0);
    struct job job = job_make(s);
    job_begin(&job);
    job.edit = set_recorder;
    for (size_t ops = 5; ops <= 100; ops += 95) {
        assert_int_equal(dp_recorder_new(ops, 1, &the_recorder), 0);
        assert_int_equal(job_rank_open(&rank, &job, NULL), 0);
        for (int i = 0; i < STEPS; i++)
            assert_int_equal(job_rank_step(&rank), 0);
        assert_int_equal(dp_recorder_gather(the_recorder, other, NULL, &t), DP_EINVAL);
        assert_int_equal(dp_recorder_gather(the_recorder, s, NULL, &t), ops == 5 ? DP_ESTATE : 0);
        job_rank_close(&rank);
        dp_recorder_free(the_recorder);
    }
    expect_whole(&t, s);
    dp_timeline_fini(&t);
    job_end(&job);
    dp_schedule_free(s);
    dp_schedule_free(other);
}

CASE(a_recorder_refuses_to_hold_no_step)
{
    struct dp_recorder *rec;

    assert_int_equal(dp_recorder_new(1, 0, &rec), DP_EINVAL);
    dp_recorder_free(NULL);
}

/* A rank that holds no stage has no op, and takes part in the gathering. */
static int record_own_list(struct dp_comm *comm, void *arg)
{
    struct recorded *r = arg;
    struct dp_timeline timeline;
    struct job_rank rank;

    CHECK(!dp_recorder_new(dp_schedule_count(r->job.schedule, dp_comm_rank(comm)), 1, &the_recorder));
    CHECK(!job_rank_open(&rank, &r->job, comm));
    CHECK(!job_rank_step(&rank));
    CHECK(!dp_recorder_gather(the_recorder, r->job.schedule, comm, &timeline));
    if (dp_comm_rank(comm) == 0)
        r->timeline = timeline;
    job_rank_close(&rank);
    dp_recorder_free(the_recorder);
    return 0;
}

CASE(a_rank_without_a_stage_is_recorded_too)
{
    static const char list[] = "user P=3 M=2\n"
                               "holds 0: 0\n"
                               "holds 1:\n"
                               "holds 2: 1\n"
                               "rank 0: F0.0 F0.1 B0.0 B0.1\n"
                               "rank 1:\n"
                               "rank 2: F0.0 B0.0 F0.1 B0.1\n";
    OWNED(dp_schedule) *s = NULL;
    struct recorded r = {0};

    assert_int_equal(dp_schedule_read(list, strlen(list), DP_FORMAT_TEXT, &s), 0);
    r.job = job_make(s);
    job_begin(&r.job);
    r.job.edit = set_recorder;
    assert_int_equal(comm_on_threads(3, deadline_ns, record_own_list, &r), 0);
    assert_int_equal(r.timeline.count, 8);
    dp_timeline_fini(&r.timeline);
    job_end(&r.job);
}

/* ---- Perfetto -------------------------------------------------------------------------------- */

struct tally {
    int bars, waits, starts, ends, counters, names;
};

static double number_of(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static bool is_phase(const json_t *event, const char *phase)
{
    return !strcmp(json_string_value(json_object_get(event, "ph")), phase);
}

/* An arrow's end lies in a bar of its own process and thread. */
static bool lies_in_a_bar(const json_t *events, const json_t *arrow)
{
    double at = number_of(arrow, "ts");
    const json_t *event;
    size_t i;

    json_array_foreach(events, i, event)
        if (is_phase(event, "X") && number_of(event, "pid") == number_of(arrow, "pid") &&
            number_of(event, "tid") == number_of(arrow, "tid") &&
            number_of(event, "ts") <= at &&
            at <= number_of(event, "ts") + number_of(event, "dur") + 1e-9)
            return true;
    return false;
}

static const json_t *find_arrow(const json_t *events, const char *phase, double id)
{
    const json_t *event, *found = NULL;
    size_t i;

    json_array_foreach(events, i, event)
        if (is_phase(event, phase) && number_of(event, "id") == id) {
            assert_null(found); /* each once */
            found = event;
        }
    return found;
}

static void tally_event(struct tally *tally, const json_t *events, const json_t *event)
{
    assert_true(json_is_string(json_object_get(event, "name")));
    if (is_phase(event, "M")) {
        assert_true(json_is_object(json_object_get(event, "args")));
        tally->names++;
    } else if (is_phase(event, "X")) {
        assert_true(number_of(event, "dur") >= 0);
        if (strcmp(json_string_value(json_object_get(event, "cat")), "wait"))
            tally->bars++;
        else
            tally->waits++;
    } else if (is_phase(event, "s")) {
        assert_non_null(find_arrow(events, "f", number_of(event, "id")));
        assert_true(lies_in_a_bar(events, event));
        tally->starts++;
    } else if (is_phase(event, "f")) {
        assert_non_null(find_arrow(events, "s", number_of(event, "id")));
        assert_true(lies_in_a_bar(events, event));
        assert_string_equal(json_string_value(json_object_get(event, "bp")), "e");
        tally->ends++;
    } else {
        assert_true(is_phase(event, "C"));
        assert_true(number_of(json_object_get(event, "args"), "count") >= 0);
        tally->counters++;
    }
}

/* The last value of every counter of a process. */
static double last_count(const json_t *events, int pid, const char *name)
{
    double count = -1;
    const json_t *event;
    size_t i;

    json_array_foreach(events, i, event)
        if (is_phase(event, "C") && number_of(event, "pid") == pid &&
            !strcmp(json_string_value(json_object_get(event, "name")), name))
            count = number_of(json_object_get(event, "args"), "count");
    return count;
}

static int count_kind(const struct dp_schedule *s, uint32_t kind)
{
    int count = 0;
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        count += s->ops[i].kind == kind;
    return count;
}

static void expect_perfetto(const struct dp_timeline *t, const struct dp_schedule *s)
{
    FREED char *text = NULL;
    size_t len;
    json_error_t error;
    struct tally tally = {0};

    assert_int_equal(dp_timeline_write_perfetto(t, s, &text, &len), 0);
    assert_int_equal(len, strlen(text));
    json_t *root = json_loads(text, 0, &error);
    if (!root)
        fail_msg("line %d: %s", error.line, error.text);
    const json_t *events = json_object_get(root, "traceEvents"), *event;
    size_t i;
    json_array_foreach(events, i, event)
        tally_event(&tally, events, event);

    assert_int_equal(tally.bars, count_kind(s, DP_OP_F) + count_kind(s, DP_OP_B) +
                                     count_kind(s, DP_OP_I) + count_kind(s, DP_OP_W) +
                                     count_kind(s, DP_OP_REDUCE) +
                                     count_kind(s, DP_OP_REDUCE_WAIT));
    assert_int_equal(tally.starts, count_kind(s, DP_OP_SEND_F) + count_kind(s, DP_OP_SEND_B));
    assert_int_equal(tally.ends, tally.starts);
    for (int rank = 0; rank < s->ranks; rank++) {
        assert_int_equal(last_count(events, rank, "live activation sets"), 0);
        if (count_kind(s, DP_OP_W))
            assert_int_equal(last_count(events, rank, "weight queue"), 0);
    }
    json_decref(root);
}

CASE(a_recorded_step_opens_in_perfetto_with_an_arrow_for_every_message)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++) {
        OWNED(dp_schedule) *s = build((enum dp_schedule_kind)kind);
        struct recorded r = {.run = gather_last_step};
        run_on_threads(&r, s);
        expect_perfetto(&r.timeline, s);
        dp_timeline_fini(&r.timeline);
    }
}

CASE(a_simulated_step_opens_in_perfetto_too)
{
    const struct dp_cost cost = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000, .link_latency_ns = 10};

    for (int forward = 0; forward < 2; forward++) {
        ENDED_BY(dp_simulation_fini) struct dp_simulation sim = {0};
        OWNED(dp_schedule) *s = NULL;
        assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV,
                                                                    .ranks = RANKS,
                                                                    .microbatches = MICROBATCHES,
                                                                    .forward_only = forward},
                                         &s),
                         0);
        assert_int_equal(dp_schedule_simulate(s, &cost, DP_SIMULATE_TIMELINE, &sim), 0);
        expect_perfetto(&sim.timeline, s);
    }
}

/* ---- report ---------------------------------------------------------------------------------- */

CASE(a_report_of_a_simulated_step_repeats_the_simulation)
{
    const struct dp_cost cost = {.f_ns = 1e6, .i_ns = 1e6, .w_ns = 1e6, .fb_ns = 3e6};
    OWNED(dp_schedule) *s = build(DP_SCHEDULE_DUALPIPE);
    struct dp_trace_report report;
    ENDED_BY(dp_simulation_fini) struct dp_simulation sim = {0};

    assert_int_equal(dp_schedule_simulate(s, &cost, DP_SIMULATE_TIMELINE, &sim), 0);
    assert_int_equal(dp_trace_report(&sim.timeline, s, &report), 0);
    assert_int_equal(report.makespan_ns, sim.makespan_ns);
    assert_int_equal(report.simulated_ns, sim.makespan_ns);
    assert_true(report.bubble_ratio == sim.bubble_ratio);
    /* F = I = W = 1, F&B = 3: the formula of the schedule is exact, (P/2 - 1)(F&B + B - 3W). */
    assert_int_equal(sim.ranks[0].bubble_ns, 2 * 1000000);
}

/* In ms. */
struct bar {
    int rank;
    enum dp_op_kind kind;
    int start, end, waited, peer;
};

static struct dp_span span_of(const struct dp_schedule *s, const struct bar *bar)
{
    const struct dp_op *ops = dp_schedule_ops(s, bar->rank);
    uint32_t at = 0;

    while (ops[at].kind != (uint32_t)bar->kind)
        at++;
    return (struct dp_span){.start_ns = bar->start * 1000000, .end_ns = bar->end * 1000000,
                            .rank = bar->rank, .index = at, .op = ops[at],
                            .waited_ns = bar->waited * 1000000, .waited_for = bar->peer};
}

CASE(a_report_says_what_waiting_cost_and_where_ops_were_late)
{
    OWNED(dp_schedule) *s = NULL;
    struct dp_span spans[4];
    struct dp_trace_report report;

    /* GPipe, two ranks, one micro-batch: rank 1 waits 2 ms for F, rank 0 waits 5 ms for B. */
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_GPIPE,
                                                                .ranks = 2,
                                                                .microbatches = 1},
                                     &s),
                     0);
    static const struct bar bars[] = {{0, DP_OP_F, 0, 1, 0, -1},
                                      {0, DP_OP_B, 6, 8, 5, 1},
                                      {1, DP_OP_F, 2, 3, 2, 0},
                                      {1, DP_OP_B, 3, 5, 0, -1}};
    for (size_t i = 0; i < 4; i++)
        spans[i] = span_of(s, &bars[i]);
    struct dp_timeline t = {.ranks = 2, .count = 4, .spans = spans, .makespan_ns = 8000000};
    assert_int_equal(dp_trace_report(&t, s, &report), 0);
    assert_int_equal(report.makespan_ns, 8000000);
    assert_int_equal(report.simulated_ns, 6000000);
    assert_true(report.bubble_ratio == 0.625);
    struct dp_late late[4];
    int count;
    assert_int_equal(dp_trace_late(&t, s, late, 4, &count), 0);
    assert_int_equal(count, 2); /* both by 1 ms, as what came before the backward was late already */
    for (int i = 0; i < count; i++) {
        assert_int_equal(late[i].late_ns, 1000000);
        assert_int_equal(late[i].because, !late[i].span.rank);
    }
    spans[3].start_ns += 500000; /* and now it begins late by itself; what waits for it is so no more */
    spans[3].end_ns += 500000;
    assert_int_equal(dp_trace_late(&t, s, late, 1, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(late[0].late_ns, 1000000);
    assert_int_equal(dp_trace_late(&t, s, late, 4, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(late[1].late_ns, 500000);
    assert_int_equal(late[2].late_ns, 500000);
    for (int i = 1; i < count; i++)
        assert_int_equal(late[i].because, late[i].span.waited_ns ? !late[i].span.rank : -1);
    t.ranks = 3;
    assert_int_equal(dp_trace_late(&t, s, late, 4, &count), DP_EINVAL);
}

CASE(an_op_is_late_by_what_no_other_op_was_late_by)
{
    const struct dp_cost cost = {.f_ns = 1e6, .i_ns = 1e6, .w_ns = 1e6, .fb_ns = 3e6};
    const struct dp_cost slow = {
        .f_ns = 1e6, .i_ns = 1e6, .w_ns = 1e6, .fb_ns = 3e6, .link_latency_ns = 1000};
    OWNED(dp_schedule) *s = build(DP_SCHEDULE_DUALPIPE);
    struct dp_simulation sim;
    struct dp_late late[8];
    int count;

    assert_int_equal(dp_schedule_simulate(s, &cost, DP_SIMULATE_TIMELINE, &sim), 0);
    assert_int_equal(dp_trace_late(&sim.timeline, s, late, 8, &count), 0);
    assert_int_equal(count, 0);
    dp_simulation_fini(&sim);
    assert_int_equal(dp_schedule_simulate(s, &slow, DP_SIMULATE_TIMELINE, &sim), 0);
    assert_int_equal(dp_trace_late(&sim.timeline, s, late, 8, &count), 0);
    assert_int_equal(count, 8);
    for (int i = 0; i < count; i++) {
        assert_int_equal(late[i].late_ns, 1000); /* of one message each */
        assert_int_equal(late[i].because, late[i].span.waited_for);
        assert_true(late[i].because >= 0);
    }
    dp_simulation_fini(&sim);
}
