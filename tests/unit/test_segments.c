/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages of segments: the order of a pair against every order that there is, and pairs that are carried
 * out by two threads.
 */
#include "pipeline_case.h"

#include <dualpipe/segments.h>

#include <pthread.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const int64_t deadline_ns = INT64_C(20000000000);

/* ---- the order ------------------------------------------------------------------------------- */

/* The shortest time of all orders: at every point one of the lists' next segments is begun, as soon as
 * its list and its resource allow it. */
static int64_t best_of_all(const struct dp_segment *const lists[2], const int counts[2], int i, int j,
                           const int64_t list_ns[2], const int64_t resource_ns[2])
{
    const int at[2] = {i, j};
    int64_t best = INT64_MAX;

    if (i == counts[0] && j == counts[1])
        return list_ns[0] > list_ns[1] ? list_ns[0] : list_ns[1];
    for (int list = 0; list < 2; list++) {
        if (at[list] == counts[list])
            continue;
        const struct dp_segment *s = &lists[list][at[list]];
        int64_t l[2] = {list_ns[0], list_ns[1]}, r[2] = {resource_ns[0], resource_ns[1]};
        const int64_t start = l[list] > r[s->resource] ? l[list] : r[s->resource];
        l[list] = r[s->resource] = start + s->cost_ns;
        const int64_t ns = best_of_all(lists, counts, i + !list, j + list, l, r);
        best = ns < best ? ns : best;
    }
    return best;
}

static uint32_t draw(uint32_t *seed)
{
    return *seed = *seed * 1664525 + 1013904223, *seed >> 8;
}

static int make_list(uint32_t *seed, struct dp_segment *list)
{
    const int count = (int)(draw(seed) % 7);

    for (int k = 0; k < count; k++)
        list[k] = (struct dp_segment){.resource = draw(seed) % 2, .cost_ns = 1 + draw(seed) % 20};
    return count;
}

/* Each segment once, in the order of its list, none beside another of its resource, and none after the
 * makespan. */
static void expect_order(const struct dp_segment *const lists[2], const int counts[2],
                         const struct dp_segment_place *places, int64_t makespan_ns)
{
    int64_t list_ns[2] = {0}, resource_ns[2] = {0}, last_ns = 0;
    int next[2] = {0};

    for (int i = 0; i < counts[0] + counts[1]; i++) {
        const struct dp_segment_place *p = &places[i];
        assert_in_range(p->list, 0, 1);
        assert_int_equal(p->index, next[p->list]++);
        const struct dp_segment *s = &lists[p->list][p->index];
        assert_true(p->start_ns >= list_ns[p->list] && p->start_ns >= resource_ns[s->resource]);
        list_ns[p->list] = resource_ns[s->resource] = p->start_ns + s->cost_ns;
        last_ns = list_ns[p->list] > last_ns ? list_ns[p->list] : last_ns;
    }
    assert_int_equal(next[0], counts[0]);
    assert_int_equal(next[1], counts[1]);
    assert_int_equal(last_ns, makespan_ns);
}

static void no_order_is_shorter(void **state)
{
    (void)state;
    uint32_t seed = 1;

    for (int trial = 0; trial < 2000; trial++) {
        struct dp_segment a[8], b[8];
        const int counts[2] = {make_list(&seed, a), make_list(&seed, b)};
        const struct dp_segment *const lists[2] = {a, b};
        struct dp_segment_place places[16];
        int64_t makespan_ns;
        assert_int_equal(dp_segments_order(a, counts[0], b, counts[1], places, &makespan_ns), 0);
        assert_int_equal(makespan_ns, best_of_all(lists, counts, 0, 0, (int64_t[2]){0},
                                                  (int64_t[2]){0}));
        expect_order(lists, counts, places, makespan_ns);
    }
}

/* 40 % of the time is communication: all of it is hidden but the first or last. */
static void communication_of_one_hides_behind_compute_of_the_other(void **state)
{
    (void)state;
    static const struct dp_segment f[] = {{.resource = DP_RESOURCE_COMPUTE, .cost_ns = 30},
                                          {.resource = DP_RESOURCE_COMMUNICATION, .cost_ns = 20},
                                          {.resource = DP_RESOURCE_COMPUTE, .cost_ns = 30},
                                          {.resource = DP_RESOURCE_COMMUNICATION, .cost_ns = 20}};
    static const struct dp_segment b[] = {{.resource = DP_RESOURCE_COMMUNICATION, .cost_ns = 40},
                                          {.resource = DP_RESOURCE_COMPUTE, .cost_ns = 60},
                                          {.resource = DP_RESOURCE_COMMUNICATION, .cost_ns = 40},
                                          {.resource = DP_RESOURCE_COMPUTE, .cost_ns = 60}};
    struct dp_segment_place places[8];
    int64_t makespan_ns;

    assert_int_equal(dp_segments_order(f, 4, b, 4, places, &makespan_ns), 0);
    assert_true(makespan_ns < 8 * (100 + 200) / 10);
}

static void lists_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct dp_segment none = {.resource = DP_RESOURCES},
                                   negative = {.cost_ns = -1};
    struct dp_segment_place places[4];
    int64_t makespan_ns;

    assert_int_equal(dp_segments_order(&none, 1, NULL, 0, places, &makespan_ns), DP_EINVAL);
    assert_string_equal(dp_last_error(),
                        "list 0, segment 0: resource 2, expected compute or communication");
    assert_int_equal(dp_segments_order(NULL, 0, &negative, 1, places, &makespan_ns), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "list 1, segment 0: a cost of -1 ns, expected 0 to "));
    assert_int_equal(dp_segments_order(NULL, 0, NULL, 65, places, &makespan_ns), DP_EINVAL);
    assert_string_equal(dp_last_error(), "list 1: 65 segments, expected 0 to 64");
    assert_string_equal(dp_resource_name(DP_RESOURCE_COMPUTE), "compute");
    assert_string_equal(dp_resource_name(DP_RESOURCE_COMMUNICATION), "communication");
}

/* ---- stages of a pipeline ---------------------------------------------------------------------- */

/* The model's own callbacks, cut into segments: a step of compute, the callback as communication, so
 * that the worker calls it in a pair, and another step of compute that checks that it has been. */
struct cut_stage {
    const struct dp_stage_ops *ops;
    void *user;
    bool fails;
    atomic_int forwards, backwards; /* begun and not ended */
    atomic_int by_worker;
    pthread_t caller;
    struct dp_segmented_stage stage;
    int64_t times_ns[7];
};

static int begin_forward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    (void)call;
    return atomic_fetch_add(&c->forwards, 1) ? -EIO : 0;
}

static int run_forward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    if (atomic_load(&c->forwards) != 1)
        return -EIO;
    if (!pthread_equal(c->caller, pthread_self()))
        atomic_fetch_add(&c->by_worker, 1);
    return c->ops->forward(c->user, call->stage, call->in, call->out);
}

static int end_forward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    (void)call;
    return atomic_fetch_sub(&c->forwards, 1) == 1 ? 0 : -EIO;
}

static int begin_backward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    (void)call;
    return atomic_fetch_add(&c->backwards, 1) ? -EIO : 0;
}

static int run_backward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    if (c->fails && call->stage->mb == 1)
        return dp_callback_error(-EIO, "the dispatch was lost");
    if (!pthread_equal(c->caller, pthread_self()))
        atomic_fetch_add(&c->by_worker, 1);
    return c->ops->backward(c->user, call->stage, call->gout, call->gin, DP_BACKWARD_INPUT);
}

static int end_backward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    (void)call;
    return atomic_fetch_sub(&c->backwards, 1) == 1 ? 0 : -EIO;
}

static int run_weight(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    return c->ops->weight(c->user, call->stage);
}

static const struct dp_segment forward_list[] = {
    {DP_RESOURCE_COMPUTE, 10, false, begin_forward},
    {DP_RESOURCE_COMMUNICATION, 20, false, run_forward},
    {DP_RESOURCE_COMPUTE, 10, false, end_forward},
};
static const struct dp_segment backward_list[] = {
    {DP_RESOURCE_COMPUTE, 5, false, begin_backward},
    {DP_RESOURCE_COMMUNICATION, 20, false, run_backward},
    {DP_RESOURCE_COMPUTE, 5, false, end_backward},
    {DP_RESOURCE_COMPUTE, 15, true, run_weight},
};

struct cut_rank {
    struct dp_segment_worker *worker;
    struct cut_stage cuts[2];
    struct dp_stage stages[2];
};

static _Thread_local struct cut_rank *the_rank;

static void cut_stages(void *user, int rank, struct dp_pipeline_config *config)
{
    const bool *fails = user;
    struct cut_rank *r = the_rank;

    for (int i = 0; i < 2; i++) {
        struct cut_stage *c = &r->cuts[i];
        c->ops = config->stages[i].ops;
        c->user = config->stages[i].user;
        c->fails = *fails && rank == 1;
        c->caller = pthread_self();
        c->stage = (struct dp_segmented_stage){.worker = r->worker,
                                               .forward = forward_list,
                                               .forward_count = 3,
                                               .backward = backward_list,
                                               .backward_count = 4,
                                               .user = c,
                                               .times_ns = c->times_ns};
        r->stages[i] = config->stages[i];
        r->stages[i].ops = dp_segment_stage_ops();
        r->stages[i].user = &c->stage;
    }
    config->stages = r->stages;
}

static int train_cut(struct dp_comm *comm, void *arg)
{
    struct cut_rank rank = {0};

    the_rank = &rank;
    CHECK(!dp_segment_worker_new(&rank.worker));
    CHECK(!case_train(comm, arg, 2));
    for (int i = 0; i < 2; i++) {
        CHECK(rank.cuts[i].by_worker > 0);
        CHECK(!rank.cuts[i].forwards && !rank.cuts[i].backwards);
        for (int k = 0; k < 7; k++)
            CHECK(rank.cuts[i].times_ns[k] > 0);
    }
    dp_segment_worker_free(rank.worker);
    return 0;
}

static struct job cut_job(const struct dp_schedule *s, bool *fails)
{
    struct job job = job_make(s);

    job.edit = cut_stages;
    job.user = fails;
    return job;
}

static void stages_of_segments_train_like_the_sequential_loop(void **state)
{
    (void)state;
    bool fails = false;

    for (int kind = DP_SCHEDULE_DUALPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int slack = 0; slack < 2; slack++) {
            struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
                .kind = kind, .ranks = 4, .microbatches = 12, .slack = slack});
            struct job job = cut_job(s, &fails);
            case_run(&job, deadline_ns, train_cut, 1);
            dp_schedule_free(s);
        }
}

static int fail_in_a_segment(struct dp_comm *comm, void *arg)
{
    struct cut_rank rank = {0};
    struct job_rank r;

    the_rank = &rank;
    CHECK(!dp_segment_worker_new(&rank.worker));
    CHECK(!job_rank_open(&r, arg, comm));
    const int err = job_rank_step(&r);
    CHECK(err == (dp_comm_rank(comm) == 1 ? DP_ECALLBACK : DP_EABORTED));
    job_rank_close(&r);
    dp_segment_worker_free(rank.worker);
    return 0;
}

static int train_without_a_worker(struct dp_comm *comm, void *arg)
{
    struct cut_rank rank = {0};
    struct job_rank r;

    the_rank = &rank;
    CHECK(!job_rank_open(&r, arg, comm));
    CHECK(job_rank_step(&r) == DP_ECALLBACK);
    CHECK(strstr(dp_last_error(), "a stage of segments without a worker or streams"));
    job_rank_close(&r);
    return 0;
}

static void a_pair_without_a_worker_is_refused(void **state)
{
    (void)state;
    bool fails = false;
    struct dp_schedule *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 4});
    struct job job = cut_job(s, &fails);
    struct job_result result;

    job_result_init(&result, &job);
    assert_int_equal(comm_on_threads(1, deadline_ns, train_without_a_worker, &job), 0);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

/* A list whose segments have moved to other resources is not the one whose order is known. */
static int note_thread(void *user, const struct dp_segment_call *call)
{
    (void)call;
    *(pthread_t *)user = pthread_self();
    return 0;
}

static void segments_that_change_their_resource_are_ordered_anew(void **state)
{
    (void)state;
    struct dp_segment list = {DP_RESOURCE_COMMUNICATION, 1, false, note_thread};
    struct dp_segmented_stage stage = {.forward = &list, .forward_count = 1};
    const struct dp_stage_call call = {0};
    pthread_t ran;

    assert_int_equal(dp_segment_worker_new(&stage.worker), 0);
    stage.user = &ran;
    const struct dp_pair pair = {.forward = {.user = &stage, .call = &call},
                                 .backward = {.user = &stage, .call = &call}};
    assert_int_equal(dp_segment_stage_ops()->fwd_bwd(&pair), 0);
    assert_false(pthread_equal(ran, pthread_self()));
    list.resource = DP_RESOURCE_COMPUTE;
    assert_int_equal(dp_segment_stage_ops()->fwd_bwd(&pair), 0);
    assert_true(pthread_equal(ran, pthread_self()));
    dp_segment_worker_free(stage.worker);
}

static void a_segment_that_fails_ends_the_step_on_all_ranks(void **state)
{
    (void)state;
    bool fails = true;
    struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 12});
    struct job job = cut_job(s, &fails);
    struct job_result result;

    job_result_init(&result, &job);
    assert_int_equal(comm_on_threads(4, deadline_ns, fail_in_a_segment, &job), 0);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_is_shorter),
        cmocka_unit_test(communication_of_one_hides_behind_compute_of_the_other),
        cmocka_unit_test(lists_that_make_no_sense_are_refused),
        cmocka_unit_test(stages_of_segments_train_like_the_sequential_loop),
        cmocka_unit_test(a_pair_without_a_worker_is_refused),
        cmocka_unit_test(segments_that_change_their_resource_are_ordered_anew),
        cmocka_unit_test(a_segment_that_fails_ends_the_step_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
