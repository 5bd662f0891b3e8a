/* SPDX-License-Identifier: Apache-2.0
 *
 * Slow ranks and links, in steps that are carried out on paper with noise, and what a rank tells
 * those who look on, in real ones.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "pipeline/recorder.h"
#include "pipeline_job.h"

#include <dualpipe/random.h>
#include <dualpipe/trace.h>

static const int64_t ms = 1000000;

/* ---- a step on paper ------------------------------------------------------------------------- */

struct paper {
    struct dp_schedule *s;
    double noise;            /* of each op: log-normal, sigma */
    double rank_times[16];   /* 0: 1 */
    int64_t link_ns[16][16]; /* a message, one after the other */
    uint64_t step;
    /* of the step at hand */
    int64_t *arrivals; /* [2 * ranks * slots * mb] of an activation, of a gradient; -1: not yet */
    struct dp_span *spans;
    size_t count, at[16];
    int64_t now_ns[16], free_ns[16][16];
};

static int64_t *arrival(struct paper *p, int rank, int slot, uint32_t mb, bool backward)
{
    const size_t n = (size_t)p->s->mb_per_stream, slots = (size_t)p->s->max_slots;

    return &p->arrivals[2 * (((size_t)rank * slots + (size_t)slot) * n + mb) + backward];
}

static int64_t duration(struct paper *p, int rank, size_t index, struct dp_op op)
{
    static const int64_t base_ms[DP_OP_KINDS] = {
        [DP_OP_F] = 5, [DP_OP_B] = 10, [DP_OP_I] = 5, [DP_OP_W] = 5};
    const double scale = p->rank_times[rank] > 0 ? p->rank_times[rank] : 1;
    float normal;

    dp_random_normal(dp_random_key(1, p->step, (uint32_t)rank, (uint32_t)index), 0, &normal, 1);
    return (int64_t)((double)(base_ms[op.kind] * ms) * scale * exp(p->noise * (double)normal));
}

/* Whether the op's message is there, and since when; what the neighbour slot on the same rank makes
 * is there in order. */
static bool is_there(struct paper *p, int rank, struct dp_op op, int64_t *since_ns, int *from)
{
    const struct dp_slot *slot = dp_schedule_slot(p->s, rank, (int)op.slot);
    const bool backward = op.kind == DP_OP_B || op.kind == DP_OP_I;

    *since_ns = 0;
    *from = backward ? slot->next : slot->prev;
    if ((op.kind != DP_OP_F && !backward) || *from < 0 || *from == rank)
        return true;
    *since_ns = *arrival(p, rank, (int)op.slot, op.mb, backward);
    return *since_ns >= 0;
}

static void commit(struct paper *p, int rank, size_t end)
{
    const struct dp_op *ops = dp_schedule_ops(p->s, rank);

    for (size_t i = end; i > 0 && ops[i - 1].kind != DP_OP_COMMIT; i--) {
        const struct dp_op op = ops[i - 1];
        const struct dp_slot *slot = dp_schedule_slot(p->s, rank, (int)op.slot);
        const bool forward = op.kind == DP_OP_SEND_F;
        if (!forward && op.kind != DP_OP_SEND_B)
            continue;
        const int to = forward ? slot->next : slot->prev;
        int64_t *free_ns = &p->free_ns[rank][to];
        *free_ns = (*free_ns > p->now_ns[rank] ? *free_ns : p->now_ns[rank]) + p->link_ns[rank][to];
        *arrival(p, to, forward ? slot->next_slot : slot->prev_slot, op.mb, !forward) = *free_ns;
    }
}

static bool is_compute(struct dp_op op)
{
    return op.kind == DP_OP_F || op.kind == DP_OP_B || op.kind == DP_OP_I || op.kind == DP_OP_W;
}

/* As far as one rank comes. */
static bool advance(struct paper *p, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(p->s, rank);
    const size_t begun = p->at[rank];

    for (size_t *at = &p->at[rank]; *at < dp_schedule_count(p->s, rank); ++*at) {
        struct dp_op op = ops[*at], pair = op.flags & DP_OP_OVERLAP ? ops[*at + 1] : (struct dp_op){0};
        int64_t since_ns, pair_since_ns = 0;
        int from, pair_from = -1;
        if (op.kind == DP_OP_COMMIT)
            commit(p, rank, *at);
        if (!is_compute(op))
            continue;
        if (!is_there(p, rank, op, &since_ns, &from) ||
            (op.flags & DP_OP_OVERLAP && !is_there(p, rank, pair, &pair_since_ns, &pair_from)))
            break;
        if (pair_since_ns > since_ns)
            since_ns = pair_since_ns, from = pair_from;
        struct dp_span *span = &p->spans[p->count++];
        const int64_t wait_ns = since_ns > p->now_ns[rank] ? since_ns - p->now_ns[rank] : 0;
        *span = (struct dp_span){.start_ns = p->now_ns[rank] + wait_ns, .rank = rank,
                                 .index = (uint32_t)*at, .op = op, .pair = pair,
                                 .waited_ns = wait_ns, .waited_for = wait_ns ? from : -1};
        span->end_ns = span->start_ns + duration(p, rank, *at, op) +
                       (op.flags & DP_OP_OVERLAP ? duration(p, rank, *at + 1, pair) : 0);
        p->now_ns[rank] = span->end_ns;
        *at += op.flags & DP_OP_OVERLAP;
    }
    return p->at[rank] > begun;
}

static int by_rank(const void *pa, const void *pb)
{
    const struct dp_span *a = pa, *b = pb;

    return a->rank != b->rank ? a->rank - b->rank : (a->index > b->index) - (a->index < b->index);
}

static struct dp_timeline carry_out(struct paper *p)
{
    const size_t ops = p->s->first[p->s->ranks];
    struct dp_timeline t = {.ranks = p->s->ranks};
    bool moved = true;

    p->arrivals = malloc(2 * ops * sizeof(*p->arrivals) +
                         2 * sizeof(*p->arrivals) *
                             (size_t)(p->s->ranks * p->s->max_slots * p->s->mb_per_stream));
    memset(p->arrivals, 0xff,
           2 * sizeof(*p->arrivals) *
               (size_t)(p->s->ranks * p->s->max_slots * p->s->mb_per_stream));
    p->spans = calloc(ops, sizeof(*p->spans));
    p->count = 0;
    memset(p->at, 0, sizeof(p->at));
    memset(p->now_ns, 0, sizeof(p->now_ns));
    memset(p->free_ns, 0, sizeof(p->free_ns));
    while (moved) {
        moved = false;
        for (int rank = 0; rank < p->s->ranks; rank++)
            moved |= advance(p, rank);
    }
    for (int rank = 0; rank < p->s->ranks; rank++) {
        assert_int_equal(p->at[rank], dp_schedule_count(p->s, rank));
        t.makespan_ns = p->now_ns[rank] > t.makespan_ns ? p->now_ns[rank] : t.makespan_ns;
    }
    qsort(p->spans, p->count, sizeof(*p->spans), by_rank);
    free(p->arrivals);
    p->step++;
    t.count = p->count;
    t.spans = p->spans;
    return t;
}

/* As a pipeline's recorder would have it. */
static struct dp_rank_pace pace_of(const struct paper *p, const struct dp_timeline *t, int rank)
{
    struct dp_recorder *rec;
    struct dp_rank_pace pace;

    assert_int_equal(dp_recorder_new(dp_schedule_count(p->s, rank), 1, &rec), 0);
    dp_recorder_begin(rec, 0);
    for (size_t i = 0; i < t->count; i++)
        if (t->spans[i].rank == rank)
            dp_recorder_add(rec, &(struct dp_record){.start_ns = t->spans[i].start_ns,
                                                     .end_ns = t->spans[i].end_ns,
                                                     .waited_ns = t->spans[i].waited_ns,
                                                     .waited_for = t->spans[i].waited_for,
                                                     .index = t->spans[i].index & INT32_MAX,
                                                     .pair = t->spans[i].pair.kind != 0});
    dp_recorder_end(rec);
    assert_int_equal(dp_recorder_pace(rec, p->s, rank, &pace), 0);
    pace.step_ns = (double)t->makespan_ns;
    dp_recorder_free(rec);
    return pace;
}

/* One step; how many are slow after it. Links are looked at when it is worth it, or always. */
static int watch(struct paper *p, struct dp_watch *w, bool always, struct dp_slow *out, int room)
{
    struct dp_timeline t = carry_out(p);
    struct dp_rank_pace paces[16];

    for (int rank = 0; rank < p->s->ranks; rank++)
        paces[rank] = pace_of(p, &t, rank);
    if (dp_watch_step(w, paces) || always)
        assert_int_equal(dp_watch_links(w, &t), 0);
    dp_timeline_fini(&t);
    return dp_watch_list(w, out, room);
}

static void build(struct paper *p, enum dp_schedule_kind kind, int ranks)
{
    *p = (struct paper){.noise = 0.1};
    assert_int_equal(
        dp_schedule_new(
            &(struct dp_schedule_spec){.kind = kind, .ranks = ranks, .microbatches = 3 * ranks},
            &p->s),
        0);
    for (int from = 0; from < ranks; from++)
        for (int to = 0; to < ranks; to++)
            p->link_ns[from][to] = ms / 10;
}

/* ---- cases ----------------------------------------------------------------------------------- */

CASE(nothing_is_said_of_a_thousand_quiet_steps)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_1F1B};
    struct dp_slow slow[4];

    for (size_t k = 0; k < 2; k++) {
        struct paper p;
        struct dp_watch *w;
        build(&p, kinds[k], 4);
        p.noise = 0.2;
        assert_int_equal(dp_watch_new(p.s, 4, &w), 0);
        for (int step = 0; step < 1000; step++)
            assert_int_equal(watch(&p, w, true, slow, 4), 0);
        dp_watch_free(w);
        dp_schedule_free(p.s);
    }
}

/* Steps from a change until there is what `wanted` says; nothing else may be said. */
static int steps_until(struct paper *p, struct dp_watch *w, const struct dp_slow *wanted)
{
    struct dp_slow slow[4];
    int steps = 1;

    for (int count; (count = watch(p, w, false, slow, 4)) == 0; steps++)
        assert_true(steps < 20);
    assert_int_equal(slow[0].kind, wanted->kind);
    assert_int_equal(slow[0].rank, wanted->rank);
    assert_int_equal(slow[0].peer, wanted->peer);
    assert_int_equal(watch(p, w, false, slow, 4), 1);
    return steps;
}

CASE(a_rank_that_slows_down_is_named_within_three_steps_and_taken_back)
{
    for (int ranks = 4; ranks <= 8; ranks += 4)
        for (int rank = 0; rank < ranks; rank++) {
            struct dp_slow slow[4];
            struct paper p;
            struct dp_watch *w;
            char text[128];
            build(&p, DP_SCHEDULE_DUALPIPE, ranks);
            assert_int_equal(dp_watch_new(p.s, ranks, &w), 0);
            for (int step = 0; step < 10; step++)
                assert_int_equal(watch(&p, w, false, slow, 4), 0);
            p.rank_times[rank] = 2;
            assert_int_equal(
                steps_until(&p, w,
                            &(struct dp_slow){DP_SLOW_COMPUTE, rank, ranks - 1 - rank, 0, 0}),
                DP_SLOW_STEPS);
            dp_watch_list(w, slow, 4);
            assert_non_null(strstr(dp_slow_text(slow, text, sizeof(text)), "which holds the same"));
            p.rank_times[rank] = 1;
            for (int step = 0; step < DP_SLOW_STEPS; step++)
                watch(&p, w, false, slow, 4);
            assert_int_equal(dp_watch_list(w, slow, 4), 0);
            dp_watch_free(w);
            dp_schedule_free(p.s);
        }
}

CASE(a_link_that_slows_down_is_named_within_three_steps)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_1F1B,
                                                  DP_SCHEDULE_GPIPE};
    for (size_t k = 0; k < 3; k++)
        for (int from = 0; from < 4; from++)
            for (int to = from ? from - 1 : 1; to < 4 && to <= from + 1; to += 2) {
                struct dp_slow slow[4];
                struct paper p;
                struct dp_watch *w;
                char text[128];
                build(&p, kinds[k], 4);
                assert_int_equal(dp_watch_new(p.s, 4, &w), 0);
                for (int step = 0; step < 10; step++)
                    assert_int_equal(watch(&p, w, false, slow, 4), 0);
                p.link_ns[from][to] = 30 * ms;
                assert_int_equal(
                    steps_until(&p, w, &(struct dp_slow){DP_SLOW_LINK, from, to, 0, 0}),
                    DP_SLOW_STEPS);
                dp_watch_list(w, slow, 4);
                assert_non_null(strstr(dp_slow_text(slow, text, sizeof(text)), "the link from"));
                dp_watch_free(w);
                dp_schedule_free(p.s);
            }
}

CASE(replicas_are_compared_where_there_is_no_mirror)
{
    struct dp_slow slow[4];
    struct dp_watch *w;
    struct paper p;

    build(&p, DP_SCHEDULE_1F1B, 2);
    assert_int_equal(dp_watch_new(p.s, 6, &w), 0);
    for (int step = 0; step < 2 * DP_SLOW_STEPS; step++) {
        struct dp_rank_pace paces[6];
        for (int i = 0; i < 6; i++)
            paces[i] = (struct dp_rank_pace){.compute_ns = i == 3 ? 8e6 : 4e6, .step_ns = 2e7};
        dp_watch_step(w, paces);
    }
    assert_int_equal(dp_watch_list(w, slow, 4), 1);
    assert_int_equal(slow[0].rank, 3);
    assert_int_equal(slow[0].peer, 1);
    dp_watch_free(w);
    dp_schedule_free(p.s);
}

CASE(watching_refuses_what_does_not_fit)
{
    struct dp_watch *w;
    struct paper p;

    build(&p, DP_SCHEDULE_1F1B, 2);
    assert_int_equal(dp_watch_new(p.s, 3, &w), DP_EINVAL);
    assert_int_equal(dp_watch_new(NULL, 0, &w), DP_EINVAL);
    assert_int_equal(dp_watch_new(NULL, 3, &w), 0);
    assert_int_equal(dp_watch_links(w, &(struct dp_timeline){.ranks = 1}), DP_EINVAL);
    dp_watch_free(w);
    assert_int_equal(dp_watch_new(p.s, 2, &w), 0);
    assert_int_equal(dp_watch_links(w, &(struct dp_timeline){.ranks = 3}), DP_EINVAL);
    dp_watch_free(w);
    dp_watch_free(NULL);
    dp_schedule_free(p.s);
}

/* ---- real steps ------------------------------------------------------------------------------ */

static _Thread_local struct dp_recorder *the_recorder;

static void set_recorder(void *user, int rank, struct dp_pipeline_config *config)
{
    config->recorder = the_recorder;
}

static int run_shown(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const struct dp_schedule *s = job->schedule;
    const int me = dp_comm_rank(comm);
    struct dp_live live = {0};
    struct dp_rank_pace pace;
    struct job_rank rank;
    char text[80];

    CHECK(!dp_recorder_new(200, 2, &the_recorder));
    CHECK(dp_recorder_pace(the_recorder, s, me, &pace) == DP_ESTATE);
    CHECK(!job_rank_open(&rank, job, comm));
    dp_recorder_show(the_recorder, &live);
    CHECK(!job_rank_step(&rank));
    CHECK(live.doing && live.sent_bytes && live.received_bytes && !live.waiting_since_ns);
    CHECK(strstr(dp_pipeline_doing_text(live.doing, text, sizeof(text)), "step 0"));
    CHECK(!dp_recorder_pace(the_recorder, s, me, &pace));
    CHECK(pace.compute_ns > 0 && pace.busy_ns > 0 && pace.busy_ns <= pace.step_ns);
    CHECK(pace.waited_ns >= pace.waited_for_ns);
    const uint64_t sent = live.sent_bytes;
    CHECK(!job_rank_step(&rank));
    CHECK(live.sent_bytes == 2 * sent);
    dp_recorder_show(the_recorder, NULL);
    CHECK(!job_rank_step(&rank));
    CHECK(live.sent_bytes == 2 * sent);
    job_rank_close(&rank);
    dp_recorder_free(the_recorder);
    return 0;
}

CASE(a_rank_tells_what_it_does_while_it_does_it)
{
    OWNED(dp_schedule) *s = NULL;
    ENDED_BY(job_end) struct job job = {0};

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE,
                                                                .ranks = 4,
                                                                .microbatches = 10},
                                     &s),
                     0);
    job = job_make(s);
    job_begin(&job);
    job.edit = set_recorder;
    assert_int_equal(comm_on_threads(s->ranks, INT64_C(20000000000), run_shown, &job), 0);
}
