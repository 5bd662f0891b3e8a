/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums that are the caller's (dp_reduce_ops): launched once a slot's gradients are complete, tested
 * in the order of their launches, waited for before the step is over; an error that they return
 * ends the group.
 */

#include "pipeline_case.h"

static const int64_t deadline_ns = INT64_C(20000000000);

enum { RANKS = 4, NEVER = 1 << 30, NOTHING = 0, LAUNCH, TEST, WAIT };

struct trial {
    struct job job;
    int late;                /* so many tests of a sum say that it is not there yet */
    int fails, failing_rank; /* which of the operations, and where */
};

/* What a rank's operations have seen. */
struct seen {
    const struct trial *trial;
    struct job_rank *r;
    int launched[DP_MAX_SLOTS], launches, done;
    int tests, waits;               /* of the oldest one */
    float *gradients[DP_MAX_SLOTS]; /* at the launch */
    const char *fault;
};

static _Thread_local struct seen seen;

static size_t gradient_bytes(const struct seen *s, int slot)
{
    const struct job_rank *r = s->r;

    return model_grad_count(&r->job->model, r->stages[slot].stage) * sizeof(float);
}

static void expect(struct seen *s, bool right, const char *what)
{
    if (!right && !s->fault)
        s->fault = what;
}

static int failure(const struct seen *s, int operation)
{
    return s->trial->fails == operation && s->r->rank == s->trial->failing_rank ? DP_EIO : 0;
}

static int launch(void *user, int slot)
{
    struct seen *s = user;
    const size_t bytes = gradient_bytes(s, slot);

    expect(s, !s->gradients[slot], "a slot is launched once");
    s->gradients[slot] = malloc(bytes);
    memcpy(s->gradients[slot], s->r->stages[slot].gw, bytes);
    s->launched[s->launches++] = slot;
    return failure(s, LAUNCH);
}

static int finish_oldest(struct seen *s, int slot)
{
    expect(s, s->done < s->launches && s->launched[s->done] == slot, "the oldest comes first");
    s->tests = 0;
    s->done++;
    return 0;
}

static int test(void *user, int slot)
{
    struct seen *s = user;

    if (failure(s, TEST))
        return DP_EIO;
    expect(s, s->done < s->launches && s->launched[s->done] == slot, "the oldest is tested");
    return s->tests++ < s->trial->late ? DP_EAGAIN : finish_oldest(s, slot);
}

static int wait_for(void *user, int slot)
{
    struct seen *s = user;

    s->waits++;
    return failure(s, WAIT) ? DP_EIO : finish_oldest(s, slot);
}

static const struct dp_reduce_ops ops = {launch, test, wait_for, NULL};

static void hand_in(void *user, int rank, struct dp_pipeline_config *config)
{
    config->reduce = &ops;
    config->reduce_user = &seen;
}

static void forget(void)
{
    for (int i = 0; i < DP_MAX_SLOTS; i++) {
        free(seen.gradients[i]);
        seen.gradients[i] = NULL;
    }
}

static int take_step(struct dp_comm *comm, void *arg)
{
    const struct trial *t = arg;
    const int slots = dp_schedule_slot_count(t->job.schedule, dp_comm_rank(comm));
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    seen = (struct seen){.trial = t, .r = &r};
    CHECK(!job_rank_open(&r, &t->job, comm));
    for (int step = 0; step < 2; step++) {
        seen = (struct seen){.trial = t, .r = &r};
        CHECK(!job_rank_step(&r));
        CHECK(seen.launches == slots && seen.done == slots);
        if (seen.fault)
            printf("%s\n", seen.fault);
        CHECK(!seen.fault);
        CHECK(t->late != 0 || seen.waits == 0);
        CHECK(t->late != NEVER || seen.waits == slots);
        for (int i = 0; i < slots; i++)
            CHECK(!memcmp(seen.gradients[i], r.stages[i].gw, gradient_bytes(&seen, i)));
        forget();
    }
    return 0;
}

static struct dp_schedule *build(enum dp_schedule_kind kind)
{
    const struct dp_schedule_spec spec = {
        .kind = kind, .ranks = RANKS, .microbatches = 8, .reduce_all = true};
    struct dp_schedule *s;

    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    return s;
}

/* Nothing is summed, so that gradients must stay those of the ranks alone. */
static void expect_sums(enum dp_schedule_kind kind, int late, bool fixed_order)
{
    OWNED(dp_schedule) *s = build(kind);
    struct trial t = {.job = job_make(s), .late = late};

    t.job.edit = hand_in;
    t.job.fixed_order = fixed_order;
    job_begin(&t.job);
    if (comm_on_threads(RANKS, deadline_ns, take_step, &t))
        fail_msg("%s, %d tests late", dp_name(DP_NAMES_SCHEDULE, kind), late);
    if (dp_schedule_slot(s, 0, 0)->mirror < 0)
        assert_true(job_result_is_sequential(&t.job, 1));
    job_end(&t.job);
}

CASE(sums_begin_with_complete_gradients_and_end_in_the_step)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_GPIPE, DP_SCHEDULE_1F1B,
                                                  DP_SCHEDULE_ZB1P, DP_SCHEDULE_DUALPIPE,
                                                  DP_SCHEDULE_DUALPIPEV};
    static const int late[] = {0, 1, 3, NEVER};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (size_t k = 0; k < sizeof(late) / sizeof(late[0]); k++)
            expect_sums(kinds[i], late[k], k % 2);
}

static int fail_in_step(struct dp_comm *comm, void *arg)
{
    const struct trial *t = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    seen = (struct seen){.trial = t, .r = &r};
    CHECK(!job_rank_open(&r, &t->job, comm));
    int err = job_rank_step(&r);
    forget();
    if (dp_comm_rank(comm) == t->failing_rank) {
        CHECK(err == DP_EIO);
    } else if (!err) { /* this rank was done already */
        seen = (struct seen){.trial = t, .r = &r};
        err = job_rank_step(&r);
        forget();
    }
    CHECK(dp_comm_rank(comm) == t->failing_rank || err == DP_EABORTED);
    return 0;
}

CASE(a_sum_that_fails_ends_the_group)
{
    OWNED(dp_schedule) *s = build(DP_SCHEDULE_1F1B);

    for (int operation = LAUNCH; operation <= WAIT; operation++) {
        struct trial t = {job_make(s), NEVER, operation, 1};
        t.job.edit = hand_in;
        job_begin(&t.job);
        assert_int_equal(comm_on_threads(RANKS, deadline_ns, fail_in_step, &t), 0);
        job_end(&t.job);
    }
}

/* ---- what is wrong ----------------------------------------------------------------------------- */

static const struct dp_reduce_ops parts[] = {
    {NULL, test, wait_for, NULL}, {launch, NULL, wait_for, NULL}, {launch, test, NULL, NULL}};

struct misuse {
    struct job job;
    const struct dp_reduce_ops *ops;
    bool messages;
    const char *sentence;
};

static void misuse(void *user, int rank, struct dp_pipeline_config *config)
{
    const struct misuse *m = user;

    config->reduce = m->ops;
    config->execution = m->messages ? DP_EXECUTE_MESSAGES : DP_EXECUTE_LIST;
}

static int be_refused(struct dp_comm *comm, void *arg)
{
    const struct misuse *m = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(job_rank_open(&r, &m->job, comm) == (m->messages ? DP_EUNSUPPORTED : DP_EINVAL));
    CHECK_SAYS(m->sentence);
    return 0;
}

static void expect_misuse(enum dp_schedule_kind kind, bool reduces, struct misuse m)
{
    const struct dp_schedule_spec spec = {
        .kind = kind, .ranks = RANKS, .microbatches = 8, .reduce_all = reduces};
    OWNED(dp_schedule) *s = case_schedule(spec);
    m.job = job_make(s);
    m.job.edit = misuse;
    m.job.user = &m;
    job_begin(&m.job);
    assert_int_equal(comm_on_threads(RANKS, deadline_ns, be_refused, &m), 0);
    job_end(&m.job);
}

CASE(operations_that_are_not_all_there_are_refused)
{
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        expect_misuse(DP_SCHEDULE_1F1B, true,
                      (struct misuse){.ops = &parts[i],
                                      .sentence = "expected launch, test and wait, all three"});
    expect_misuse(DP_SCHEDULE_1F1B, true,
                  (struct misuse){.sentence = "which has no mirror, expected reduce operations"});
    expect_misuse(DP_SCHEDULE_ASYNC, false,
                  (struct misuse){.ops = &ops, .messages = true,
                                  .sentence = "expected NULL where messages drive the ranks"});
}

RUN_QUIET_CASES(NULL, NULL)
