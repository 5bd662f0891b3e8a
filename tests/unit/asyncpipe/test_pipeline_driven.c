/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines that messages drive: the same numbers as the list and as the sequential loop to the
 * last bit, in whatever order messages come. Failures: test_pipeline_faults.c.
 */
#include "unit/pipeline/pipeline_case.h"
#include "shuffled_comm.h"
#include <dualpipe/partition.h>

#include <dualpipe/trace.h>

#include <poll.h>
#include <stdatomic.h>

enum { STEPS = 2, ORDERS = 1000, RANKS = 4, ROOM = 4096 };
static const int64_t deadline_ns = INT64_C(60000000000);

static void by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = DP_EXECUTE_MESSAGES;
}

static struct dp_schedule *build(struct dp_schedule_spec spec)
{
    spec.kind = DP_SCHEDULE_ASYNC;
    return case_schedule(spec);
}

static struct job make(const struct dp_schedule *s)
{
    struct job job = job_make(s);

    job.edit = by_messages;
    return job;
}

static int run_steps(struct dp_comm *comm, void *arg)
{
    return case_train(comm, arg, STEPS);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void expect_sequential(struct dp_schedule_spec spec, void (*change)(struct job *job))
{
    OWNED(dp_schedule) *s = build(spec);
    struct job job = make(s);

    if (change)
        change(&job);
    case_run(&job, deadline_ns, run_steps, STEPS - 1);
}

static const struct dp_schedule_spec shapes[] = {
    {.ranks = 1, .microbatches = 1}, {.ranks = 1, .microbatches = 5},
    {.ranks = 2, .microbatches = 1}, {.ranks = 2, .microbatches = 4},
    {.ranks = 3, .microbatches = 7}, {.ranks = 4, .microbatches = 8},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void expect_all(void (*change_spec)(struct dp_schedule_spec *spec),
                       void (*change_job)(struct job *job))
{
    for (int i = 0; i < SHAPES; i++) {
        struct dp_schedule_spec spec = shapes[i];
        if (change_spec)
            change_spec(&spec);
        expect_sequential(spec, change_job);
    }
}

static void recompute_always(struct dp_schedule_spec *spec)
{
    spec->recompute = DP_RECOMPUTE_ALWAYS;
}

static void recompute_except_last(struct dp_schedule_spec *spec)
{
    spec->recompute = DP_RECOMPUTE_EXCEPT_LAST;
}

static void forward_only(struct dp_schedule_spec *spec)
{
    spec->forward_only = spec->return_outputs = true;
}

static void no_split(struct job *job)
{
    job->no_split = true;
}

static void four_blocks(struct job *job)
{
    job->model.order_blocks = 4;
}

static void cut_columns(struct job *job)
{
    job->model.batch_dim = 1;
}

CASE(messages_drive_training_like_a_sequential_loop)
{
    expect_all(NULL, NULL);
    expect_all(NULL, four_blocks);
    expect_all(NULL, no_split);
    expect_all(NULL, cut_columns);
}

CASE(messages_drive_steps_that_recompute)
{
    expect_all(recompute_always, NULL);
    expect_all(recompute_always, no_split);
    expect_all(recompute_except_last, four_blocks);
}

CASE(messages_drive_evaluation)
{
    expect_all(forward_only, NULL);
    expect_all(forward_only, cut_columns);
}

CASE(every_communicator_carries_the_messages)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        struct dp_schedule *s = build((struct dp_schedule_spec){.ranks = 3, .microbatches = 4});
        struct job job = make(s);
        int killed;

        job_begin(&job);
        assert_int_equal(kind->run(kind, s->ranks, deadline_ns, run_steps, &job, &killed), 0);
        assert_true(job_result_is_sequential(&job, STEPS - 1));
        job_end(&job);
        dp_schedule_free(s);
    }
}

/* ---- in any order ---------------------------------------------------------------------------- */

static float *copy_of_grads(const struct job_rank *r, size_t *count)
{
    const struct model *m = &r->job->model;
    const int slots = dp_schedule_slot_count(r->job->schedule, r->rank);
    float *copy;

    *count = 0;
    for (int i = 0; i < slots; i++)
        *count += model_grad_count(m, r->stages[i].stage);
    copy = malloc((*count + 1) * sizeof(*copy));
    for (int i = 0, at = 0; i < slots && copy; i++) {
        const size_t n = model_grad_count(m, r->stages[i].stage);
        memcpy(copy + at, r->stages[i].gw, n * sizeof(*copy));
        at += (int)n;
    }
    return copy;
}

/* The same step with messages in another order each time: the same bits. */
static int step_in_many_orders(struct dp_comm *comm, struct job_rank *r)
{
    uint64_t order, first_order = 0;
    int orders = 0;
    size_t count;
    float *first = NULL;

    for (int i = 0; i < ORDERS; i++) {
        dp_pipeline_seek(r->pipe, 1);
        CHECK(!job_rank_step(r));
        order = shuffled_comm_order(comm);
        if (!first) {
            first = copy_of_grads(r, &count);
            first_order = order;
            CHECK(first);
            continue;
        }
        float *grads = copy_of_grads(r, &count);
        CHECK(grads);
        CHECK(!memcmp(grads, first, count * sizeof(*grads)));
        free(grads);
        orders += order != first_order;
    }
    free(first);
    CHECK(orders > 0);
    return 0;
}

static int run_shuffled(struct dp_comm *inner, void *arg)
{
    struct dp_comm *comm = shuffled_comm_new(inner, ROOM, (uint64_t)dp_comm_rank(inner) + 1);
    struct job_rank r;

    CHECK(comm);
    CHECK(!job_rank_open(&r, arg, comm));
    CHECK(!step_in_many_orders(comm, &r));
    job_rank_close(&r);
    dp_comm_close(comm);
    return 0;
}

static void expect_sequential_in_many_orders(struct dp_schedule_spec spec,
                                             void (*change)(struct job *job))
{
    OWNED(dp_schedule) *s = build(spec);
    struct job job = make(s);

    if (change)
        change(&job);
    case_run(&job, deadline_ns, run_shuffled, 1);
}

CASE(a_thousand_orders_of_arrival_give_the_same_bits)
{
    expect_sequential_in_many_orders((struct dp_schedule_spec){.ranks = RANKS, .microbatches = 6},
                                     NULL);
}

CASE(a_thousand_orders_give_the_same_bits_to_stages_that_cannot_split)
{
    expect_sequential_in_many_orders(
        (struct dp_schedule_spec){.ranks = 3, .microbatches = 6, .recompute = DP_RECOMPUTE_ALWAYS},
        no_split);
}

/* ---- recomputed before the gradient comes ------------------------------------------------------ */

/* Forwards of stage 0 that were done again, in this step. */
static atomic_int done_again;

/* The first backward of stage 1 waits until stage 0 has recomputed, which needs no message. */
static int wait_for_stage_0(void *user, const struct dp_stage_call *call, const char *what)
{
    if (!strcmp(what, "forward") && call->stage == 0 && call->recomputing)
        atomic_fetch_add(&done_again, 1);
    if (strcmp(what, "backward") || call->stage != 1)
        return 0;
    for (int ms = 0; ms < 20000 && !atomic_load(&done_again); ms++)
        poll(NULL, 0, 1);
    return atomic_load(&done_again) ? 0 : dp_callback_error(-5, "stage 0 waits for its gradient");
}

CASE(forwards_are_done_again_while_the_gradient_is_on_its_way)
{
    for (enum dp_execution how = DP_EXECUTE_LIST; how < DP_EXECUTIONS; how++) {
        OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
            .ranks = 2, .microbatches = 4, .recompute = DP_RECOMPUTE_ALWAYS});
        struct job job = make(s);
        if (how == DP_EXECUTE_LIST)
            job.edit = NULL;
        job.before = wait_for_stage_0;
        atomic_store(&done_again, 0);
        case_run(&job, deadline_ns, run_steps, STEPS - 1);
        assert_int_equal(atomic_load(&done_again), STEPS * 4);
    }
}

/* Each forward that is to be kept leaves a handle; what is done again in vain is given back first. */
static _Thread_local int handles_open, handles_dropped, handles_twice;

static int forward_with_handle(void *user, const struct dp_stage_call *call, const DLTensor *in,
                               DLTensor *out)
{
    static int handle;

    if (!call->discarded) {
        handles_twice += *call->handle != NULL;
        *call->handle = &handle;
        handles_open++;
    }
    return model_ops.forward(user, call, in, out);
}

static int backward_with_handle(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                                DLTensor *gin, enum dp_backward_mode mode)
{
    handles_open -= *call->handle != NULL;
    *call->handle = NULL;
    return model_ops.backward(user, call, gout, gin, mode);
}

static void drop_handle(void *user, void *handle)
{
    handles_open -= handle != NULL;
    handles_dropped++;
}

static const struct dp_stage_ops ops_with_handles = {.forward = forward_with_handle,
                                                     .backward = backward_with_handle,
                                                     .drop = drop_handle};

static atomic_int all_dropped;

static _Thread_local struct dp_recorder *recorder;

static void by_messages_recorded(void *user, int rank, struct dp_pipeline_config *config)
{
    by_messages(user, rank, config);
    config->recorder = recorder;
}

static int run_with_handles(struct dp_comm *inner, void *arg)
{
    struct dp_comm *comm = shuffled_comm_new(inner, ROOM, (uint64_t)dp_comm_rank(inner) + 1);
    const struct job *job = arg;
    const struct dp_schedule *s = job->schedule;
    struct dp_timeline timeline;
    struct job_rank r;

    CHECK(comm);
    handles_open = handles_dropped = handles_twice = 0;
    CHECK(!dp_recorder_new(dp_schedule_count(s, dp_comm_rank(inner)), 1, &recorder));
    CHECK(!job_rank_open(&r, job, comm));
    for (int i = 0; i < 100; i++) {
        dp_pipeline_seek(r.pipe, 1);
        CHECK(!job_rank_step(&r));
        CHECK(!handles_open && !handles_twice);
    }
    atomic_fetch_add(&all_dropped, handles_dropped);
    CHECK(!dp_recorder_gather(recorder, s, comm, &timeline)); /* an op is recorded once */
    dp_timeline_fini(&timeline);
    job_rank_close(&r);
    dp_recorder_free(recorder);
    dp_comm_close(comm);
    return 0;
}

CASE(forwards_that_were_done_again_in_vain_leave_nothing)
{
    OWNED(dp_schedule) *s = build((struct dp_schedule_spec){
        .ranks = 3, .microbatches = 6, .recompute = DP_RECOMPUTE_ALWAYS});
    struct job job = make(s);

    job.edit = by_messages_recorded;
    job.ops = &ops_with_handles;
    job.no_split = true;
    atomic_store(&all_dropped, 0);
    case_run(&job, deadline_ns, run_with_handles, 1);
    assert_true(atomic_load(&all_dropped) > 0);
}

/* ---- layers that are used several times ------------------------------------------------------ */

/* Widths alternate from border to border, so a layer may be used again at stages of equal parity.
 */
struct reuse {
    int stages, layer_count;
    int32_t balance[3], layers[6];
    int same_as[6]; /* by invocation */
};

static const struct reuse reuses[] = {
    /* s | a, visited again between and at the end */
    {2, 5, {1, 2}, {0, 1, 0, 2, 0}, {0, 1, 0, 3, 0}},
    /* one chain of three on a rank */
    {2, 4, {2, 1}, {0, 1, 0, 2}, {0, 1, 0, 3}},
    /* from two other ranks */
    {3, 6, {1, 1, 2}, {0, 1, 0, 2, 0, 3}, {0, 1, 0, 3, 0, 5}},
};
enum { REUSES = sizeof(reuses) / sizeof(*reuses) };

static struct dp_partition *cut(const struct reuse *u)
{
    struct dp_partition *p = NULL;

    if (dp_partition_new(&(struct dp_partition_spec){.layers = u->layers,
                                                     .layer_count = u->layer_count,
                                                     .balance = u->balance,
                                                     .stages = u->stages},
                         &p))
        fail_msg("%s", dp_last_error());
    return p;
}

/* Slots of a location have the parameters, and so the gradients, of the first of them. */
static void share_parameters(int rank, struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    struct dp_stage *stages = (struct dp_stage *)(uintptr_t)config->stages;

    for (int slot = dp_schedule_slot_count(s, rank) - 1; slot > 0; slot--)
        for (int first = 0; first < slot; first++)
            if (dp_schedule_slot(s, rank, first)->location ==
                dp_schedule_slot(s, rank, slot)->location) {
                stages[slot].parameters = stages[first].parameters;
                break;
            }
}

static void share_by_list(void *user, int rank, struct dp_pipeline_config *config)
{
    share_parameters(rank, config);
}

static void share_by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    by_messages(user, rank, config);
    share_parameters(rank, config);
}

/* The sum over the uses of the slot's layer, from the last to the first; both halves of each. */
static void add_uses(const struct job *job, const struct model_result *want, int stage, float *out)
{
    const int *same_as = job->model.same_as;
    const size_t count = model_grad_count(&job->model, stage);

    memset(out, 0, count * sizeof(*out));
    for (int use = job->model.stages - 1; use >= stage; use--)
        for (size_t k = 0; k < count && same_as[use] == stage; k++)
            out[k] += want->first[use][k] + want->second[use][k];
}

static void expect_sums_of_uses(const struct job *job)
{
    const struct dp_schedule *s = job->schedule;
    struct model_result want;

    model_result_init(&want, &job->model);
    model_run_sequential(&job->model, 1, true, &want);
    for (size_t i = 0; i < s->first_slot[s->ranks]; i++) {
        const int stage = s->slots[i].stage;
        const size_t count = model_grad_count(&job->model, stage);
        if (job->model.same_as[stage] != stage)
            continue;
        float *sum = test_malloc(count * sizeof(*sum));
        add_uses(job, &want, stage, sum);
        assert_memory_equal(sum, job->result->grads[i], count * sizeof(*sum));
        test_free(sum);
    }
    model_result_fini(&want, &job->model);
}

static void expect_reuse(const struct reuse *u, rank_fn run, void (*change)(struct job *job),
                         void (*edit)(void *user, int rank, struct dp_pipeline_config *config))
{
    OWNED(dp_partition) *p = cut(u);
    struct dp_schedule *s =
        build((struct dp_schedule_spec){.ranks = u->stages, .microbatches = 5, .partition = p});
    ENDED_BY(job_end) struct job job = job_make(s);

    job.edit = edit;
    job.model.same_as = u->same_as;
    if (change)
        change(&job);
    job_begin(&job);
    assert_int_equal(comm_on_threads(s->ranks, deadline_ns, run, &job), 0);
    expect_sums_of_uses(&job);
    dp_schedule_free(s);
}

CASE(gradients_of_a_layer_used_several_times_are_summed_in_one_order)
{
    for (int i = 0; i < REUSES; i++) {
        expect_reuse(&reuses[i], run_steps, NULL, share_by_list);
        expect_reuse(&reuses[i], run_steps, no_split, share_by_list);
        expect_reuse(&reuses[i], run_steps, NULL, share_by_messages);
        expect_reuse(&reuses[i], run_steps, no_split, share_by_messages);
    }
}

CASE(layers_used_several_times_give_the_same_bits_in_a_thousand_orders)
{
    expect_reuse(&reuses[0], run_shuffled, NULL, share_by_messages);
    expect_reuse(&reuses[2], run_shuffled, NULL, share_by_messages);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void not_async(void *user, int rank, struct dp_pipeline_config *config)
{
    by_messages(user, rank, config);
}

static void not_checked(void *user, int rank, struct dp_pipeline_config *config)
{
    by_messages(user, rank, config);
    config->unchecked = true;
}

static void one_differs(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = rank ? DP_EXECUTE_LIST : DP_EXECUTE_MESSAGES;
}

static void unknown_execution(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = DP_EXECUTIONS;
}

struct refused {
    enum dp_schedule_kind kind;
    void (*edit)(void *user, int rank, struct dp_pipeline_config *config);
    int error;
    const char *sentence;
    struct job job;
};

static int open_refused(struct dp_comm *comm, void *arg)
{
    const struct refused *r = arg;
    struct job_rank rank;
    int err = job_rank_open(&rank, &r->job, comm);

    CHECK(err == r->error || err == DP_EABORTED);
    CHECK_SAYS(r->sentence);
    rank.pipe = NULL;
    job_rank_close(&rank);
    return 0;
}

CASE(what_messages_cannot_drive_is_refused_on_every_rank)
{
    static struct refused refused[] = {
        {.kind = DP_SCHEDULE_1F1B, .edit = not_async, .error = DP_EUNSUPPORTED,
         .sentence = "execution by messages: schedule '1f1b', expected 'async'"},
        {.kind = DP_SCHEDULE_ASYNC, .edit = not_checked, .error = DP_EINVAL,
         .sentence = "execution by messages: unchecked is set"},
        {.kind = DP_SCHEDULE_ASYNC, .edit = one_differs, .error = DP_EMISMATCH,
         .sentence = "execution (0: list, 1: messages)"},
        {.kind = DP_SCHEDULE_ASYNC, .edit = unknown_execution, .error = DP_EINVAL,
         .sentence = "execution: 2, expected 0 (list) or 1 (messages)"},
    };

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct refused *r = &refused[i];
        OWNED(dp_schedule) *s = NULL;
        assert_int_equal(
            dp_schedule_new(
                &(struct dp_schedule_spec){.kind = r->kind, .ranks = 2, .microbatches = 4}, &s),
            0);
        r->job = job_make(s);
        r->job.edit = r->edit;
        job_begin(&r->job);
        assert_int_equal(comm_on_threads(2, deadline_ns, open_refused, r), 0);
        job_end(&r->job);
    }
}
