/* SPDX-License-Identifier: Apache-2.0
 *
 * Skip connections carried out: a model with two that cross and one without a gradient, equal to the
 * sequential loop to the last bit under every schedule and both executions.
 */
#include "pipeline_case.h"
#include "shuffled_comm.h"

enum { STEPS = 2, ORDERS = 100, ROOM = 4096 };
static const int64_t deadline_ns = INT64_C(60000000000);

/* Stages 0 to S - 2 and 1 to S - 1 cross; the third has no gradient. */
static int declare(int stages, struct dp_skip skips[MODEL_SKIPS])
{
    memset(skips, 0, MODEL_SKIPS * sizeof(*skips));
    skips[0] = (struct dp_skip){.name = "a", .to = stages - 1 - (stages > 2)};
    skips[1] = (struct dp_skip){.name = "a", .space = "enc", .from = stages > 2, .to = stages - 1};
    skips[2] = (struct dp_skip){.name = "n", .to = stages - 1};
    return stages > 1 ? 3 : 0;
}

static struct dp_schedule *build(struct dp_schedule_spec spec, struct dp_skip skips[MODEL_SKIPS])
{
    struct dp_schedule *plain = case_schedule(spec);

    spec.skip_count = declare(plain->stages, skips);
    spec.skips = skips;
    dp_schedule_free(plain);
    return case_schedule(spec);
}

static struct job make(const struct dp_schedule *s, const struct dp_skip *skips)
{
    struct job job = job_make(s);

    job.model.skips = skips;
    job.model.skip_count = s->skip_count;
    return job;
}

static int run_steps(struct dp_comm *comm, void *arg)
{
    return case_train(comm, arg, STEPS);
}

static void expect_sequential(const struct comm_kind *kind, struct dp_schedule_spec spec,
                              void (*change)(struct job *job))
{
    struct dp_skip skips[MODEL_SKIPS];
    struct dp_schedule *s = build(spec, skips);
    ENDED_BY(job_end) struct job job = make(s, skips);
    int killed = 0;

    if (change)
        change(&job);
    job_begin(&job);
    assert_int_equal(kind ? kind->run(kind, s->ranks, deadline_ns, run_steps, &job, &killed)
                          : comm_on_threads(s->ranks, deadline_ns, run_steps, &job),
                     0);
    assert_true(job_result_is_sequential(&job, STEPS - 1));
    dp_schedule_free(s);
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 3, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 6},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 4, .microbatches = 6},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 2},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4, .microbatches = 8},
    {.kind = DP_SCHEDULE_INTERLEAVED, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_INTERLEAVED, .ranks = 3, .microbatches = 6, .virtual_stages = 3},
    {.kind = DP_SCHEDULE_ZBV, .ranks = 3, .microbatches = 6},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 5},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]), SHM_SHAPE = 6 };

static void expect_all(void (*change_spec)(struct dp_schedule_spec *spec),
                       void (*change_job)(struct job *job))
{
    for (int i = 0; i < SHAPES; i++) {
        struct dp_schedule_spec spec = shapes[i];
        if (change_spec)
            change_spec(&spec);
        expect_sequential(NULL, spec, change_job);
    }
}

static void recompute_always(struct dp_schedule_spec *spec)
{
    spec->recompute = DP_RECOMPUTE_ALWAYS;
}

static void forward_only(struct dp_schedule_spec *spec)
{
    spec->forward_only = spec->return_outputs = true;
    spec->mirror_reduce = false;
}

static void no_hook(struct job *job)
{
    job->ops = &model_ops_no_hook;
}

static void no_split(struct job *job)
{
    job->no_split = true;
}

static void some_absent(struct job *job)
{
    job->model.absent_skips = true;
}

CASE(crossing_skips_train_like_a_sequential_loop_under_every_schedule)
{
    expect_all(NULL, NULL);
    expect_all(NULL, no_hook);
    expect_all(NULL, no_split);
}

CASE(skips_go_with_recomputed_forwards)
{
    expect_all(recompute_always, NULL);
}

CASE(skips_go_with_steps_without_a_backward)
{
    expect_all(forward_only, NULL);
}

CASE(a_stage_may_leave_a_value_out)
{
    expect_all(NULL, some_absent);
    expect_all(recompute_always, some_absent);
}

CASE(every_communicator_carries_skips)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        expect_sequential(kind, shapes[3], NULL);
        expect_sequential(kind, shapes[SHM_SHAPE], NULL);
    }
}

/* ---- messages that drive the ranks ----------------------------------------------------------- */

static void by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = DP_EXECUTE_MESSAGES;
}

static void driven(struct job *job)
{
    job->edit = by_messages;
}

static void driven_with_absent(struct job *job)
{
    job->edit = by_messages;
    job->model.absent_skips = true;
}

CASE(skips_are_carried_where_messages_drive_the_ranks)
{
    for (int ranks = 1; ranks <= 5; ranks++) {
        struct dp_schedule_spec spec = {
            .kind = DP_SCHEDULE_ASYNC, .ranks = ranks, .microbatches = 5};
        expect_sequential(NULL, spec, driven);
        expect_sequential(NULL, spec, driven_with_absent);
        recompute_always(&spec);
        expect_sequential(NULL, spec, driven);
        spec.recompute = DP_RECOMPUTE_NEVER;
        forward_only(&spec);
        expect_sequential(NULL, spec, driven);
    }
}

static int run_shuffled(struct dp_comm *inner, void *arg)
{
    struct dp_comm *comm = shuffled_comm_new(inner, ROOM, (uint64_t)dp_comm_rank(inner) + 1);
    int err = comm ? case_train(comm, arg, ORDERS) : -1;

    dp_comm_close(comm);
    return err;
}

CASE(skips_that_arrive_in_any_order_give_the_same_bits)
{
    const struct dp_schedule_spec spec = {
        .kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 4};
    struct dp_skip skips[MODEL_SKIPS];
    struct dp_schedule *s = build(spec, skips);
    struct job job = make(s, skips);

    driven(&job);
    case_run(&job, deadline_ns, run_shuffled, ORDERS - 1);
    dp_schedule_free(s);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

/* A stage that asks for a skip in a callback where it may, or must, not. */
struct mistake {
    int stage;
    const char *callback, *says;
    const void *(*ask)(const struct dp_stage_call *call);
};

static const void *ask_undeclared(const struct dp_stage_call *call)
{
    return dp_skip_pop(call, "enc", "b");
}

static const void *ask_elsewhere(const struct dp_stage_call *call)
{
    return dp_skip_pop(call, "enc", "a");
}

static const void *ask_too_early(const struct dp_stage_call *call)
{
    return dp_skip_stash_gradient(call, NULL, "a");
}

static const void *ask_too_late(const struct dp_stage_call *call)
{
    return dp_skip_stash(call, "", "a");
}

static const struct mistake mistakes[] = {
    {3, "forward", "dp_skip_pop('enc', 'b'): the stage does not declare", ask_undeclared},
    {0, "forward", "dp_skip_pop('enc', 'a'): the stage does not declare", ask_elsewhere},
    {0, "forward", "dp_skip_stash_gradient('', 'a'): is not for this callback", ask_too_early},
    {0, "backward", "dp_skip_stash('', 'a'): is not for this callback", ask_too_late},
};

static int make_mistake(void *user, const struct dp_stage_call *call, const char *what)
{
    const struct mistake *m = user;

    return call->stage == m->stage && !strcmp(what, m->callback) && m->ask(call) ? DP_EIO : 0;
}

static int run_mistake(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const struct mistake *m = job->user;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    CHECK(job_rank_step(&r) == (r.rank == m->stage ? DP_ECALLBACK : DP_EABORTED));
    CHECK_SAYS(m->says);
    return 0;
}

static void expect_failure(const struct mistake *mistake, void (*change)(struct job *job))
{
    struct dp_skip skips[MODEL_SKIPS];
    struct dp_schedule *s = build(shapes[3], skips);
    struct job job = make(s, skips);

    job.user = (void *)(uintptr_t)mistake;
    change(&job);
    case_run_apart(&job, deadline_ns, run_mistake);
    dp_schedule_free(s);
}

static void let_fail(struct job *job)
{
    job->before = make_mistake;
}

CASE(skips_that_a_callback_may_not_ask_for_fail_the_step)
{
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++)
        expect_failure(&mistakes[i], let_fail);
}

/* The stages know of no skips: they stash and pop none. */
static void forget_skips(struct job *job)
{
    job->model.skip_count = 0;
    job->edit = NULL;
}

static void give_specs(void *user, int rank, struct dp_pipeline_config *config)
{
    static _Thread_local struct dp_tensor_spec specs[MODEL_SKIPS];

    for (int k = 0; k < MODEL_SKIPS; k++)
        specs[k] = (struct dp_tensor_spec){
            .dtype = {kDLFloat, 32, 1}, .ndim = 2, .shape = {3, MODEL_SKIP_WIDTH}};
    config->skips = specs;
}

static void forget_in_stages(struct job *job)
{
    forget_skips(job);
    job->edit = give_specs;
}

CASE(a_forward_that_stashes_nothing_fails_the_step)
{
    expect_failure(&(struct mistake){.stage = 0, .says = "skip 'a' begins here, expected the forward "
                                                         "to call dp_skip_stash"},
                   forget_in_stages);
}

static int open_without(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(job_rank_open(&r, arg, comm) == DP_EINVAL);
    CHECK_SAYS("skips: NULL, expected the tensors of the schedule's 3");
    r.pipe = NULL;
    return 0;
}

CASE(a_pipeline_without_the_tensors_of_its_skips_is_refused)
{
    struct dp_skip skips[MODEL_SKIPS];
    struct dp_schedule *s = build(shapes[3], skips);
    struct job job = make(s, skips);

    forget_skips(&job);
    case_run_apart(&job, deadline_ns, open_without);
    dp_schedule_free(s);
}
