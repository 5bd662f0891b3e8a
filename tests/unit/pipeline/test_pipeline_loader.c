/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps whose micro-batches come from loaders, one at a time: the numbers of the sequential loop,
 * and no more of them in memory than are in flight. Each lies in memory of its own that is freed at
 * its release, so that the sanitizers see any later use.
 */
#include "pipeline_case.h"

enum { STEPS = 2, MAX_MB = 32 };
static const int64_t deadline_ns = INT64_C(60000000000);

/* One end of the model on one rank. */
struct end {
    const struct model *model;
    int first; /* of the stream's micro-batches in the whole batch */
    bool labels;
    int fail_at; /* load of this one fails; -1: of none */
    struct model_batch batch[MAX_MB];
    struct dp_tree items[MAX_MB][MODEL_TENSORS], trees[MAX_MB];
    bool there[MAX_MB];
    int loads, now, most;
};

static int load(void *user, int32_t mb, const struct dp_tree **args, const struct dp_tree **kwargs)
{
    struct end *e = user;
    const int tensors = e->labels ? 1 : MODEL_TENSORS;

    if (mb == e->fail_at || e->there[mb])
        return -77;
    if (e->labels)
        model_batch_init_label(&e->batch[mb], e->model, e->first + mb, 1);
    else
        model_batch_init(&e->batch[mb], e->model, 0, e->first + mb, 1);
    for (int k = 0; k < tensors; k++)
        e->items[mb][k] = dp_tensor(&e->batch[mb].tensors[k]);
    e->trees[mb] = dp_tuple(tensors, e->items[mb]);
    *args = &e->trees[mb];
    e->there[mb] = true;
    e->loads++;
    if (++e->now > e->most)
        e->most = e->now;
    return 0;
}

static void release(void *user, int32_t mb)
{
    struct end *e = user;

    e->there[mb] = false;
    e->now--;
    model_batch_fini(&e->batch[mb]);
}

/* A rank whose inputs and labels come from loaders; the batches of the job are not used. */
struct loading {
    struct job_rank r;
    struct end input, label;
    struct dp_loader input_loader, label_loader;
};

static void load_one_by_one(struct loading *l, int fail_at)
{
    const struct job *job = l->r.job;
    const struct dp_schedule *s = job->schedule;

    for (int i = 0; i < dp_schedule_slot_count(s, l->r.rank); i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, l->r.rank, i);
        const struct end end = {
            .model = &job->model, .first = slot->stream * s->mb_per_stream, .fail_at = fail_at};
        if (dp_slot_is_first(slot))
            l->input = end;
        if (dp_slot_is_last(slot))
            l->label = end;
    }
    l->label.labels = true;
    l->input_loader = (struct dp_loader){load, release, &l->input};
    l->label_loader = (struct dp_loader){load, release, &l->label};
    if (l->r.step.inputs)
        l->r.step.input_loader = &l->input_loader;
    if (l->r.step.labels)
        l->r.step.label_loader = &l->label_loader;
    l->r.step.inputs = l->r.step.labels = NULL;
}

static int check_loads(struct dp_comm *comm, const struct loading *l)
{
    const struct dp_schedule *s = l->r.job->schedule;
    struct dp_pipeline_memory memory;
    int most = s->mb_per_stream; /* what is recomputed keeps its input */

    dp_pipeline_memory(l->r.pipe, &memory);
    if (s->kind != DP_SCHEDULE_GPIPE)
        most = memory.peak_activations;
    CHECK(!l->input.now && !l->label.now);
    CHECK(!l->r.step.input_loader || l->input.loads == STEPS * s->mb_per_stream);
    CHECK(!l->r.step.label_loader || l->label.loads == STEPS * s->mb_per_stream);
    if (s->forward_only)
        CHECK(l->input.most <= 1 && l->label.most <= 1);
    else
        CHECK(l->input.most <= most && l->label.most <= most);
    return 0;
}

static int run_steps(struct dp_comm *comm, void *arg)
{
    struct loading *l = calloc(1, sizeof(*l));

    CHECK(l && !job_rank_open(&l->r, arg, comm));
    load_one_by_one(l, -1);
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&l->r));
    CHECK(!check_loads(comm, l));
    job_rank_close(&l->r);
    free(l);
    return 0;
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_1F1B, .ranks = 1, .microbatches = 5},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 3, .microbatches = 9},
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4, .recompute = DP_RECOMPUTE_ALWAYS},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 3, .microbatches = 7},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 8},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 6},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 5},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void expect_sequential(struct dp_schedule_spec spec, bool no_split,
                              void (*edit)(void *user, int rank, struct dp_pipeline_config *config))
{
    OWNED(dp_schedule) *s = case_schedule(spec);
    struct job job = job_make(s);

    job.no_split = no_split;
    job.edit = edit;
    case_run(&job, deadline_ns, run_steps, STEPS - 1);
}

CASE(loaded_micro_batches_train_like_a_batch)
{
    for (int i = 0; i < SHAPES; i++) {
        expect_sequential(shapes[i], false, NULL);
        expect_sequential(shapes[i], true, NULL);
    }
}

CASE(loaded_micro_batches_are_evaluated_one_at_a_time)
{
    for (int i = 0; i < SHAPES; i++) {
        struct dp_schedule_spec spec = shapes[i];
        spec.forward_only = spec.return_outputs = true;
        expect_sequential(spec, false, NULL);
    }
}

static void by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = DP_EXECUTE_MESSAGES;
}

CASE(loaders_serve_steps_that_messages_drive)
{
    expect_sequential(shapes[SHAPES - 1], false, by_messages);
    expect_sequential(shapes[SHAPES - 1], true, by_messages);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static int fail_to_load(struct dp_comm *comm, void *arg)
{
    struct loading *l = calloc(1, sizeof(*l));

    CHECK(l && !job_rank_open(&l->r, arg, comm));
    load_one_by_one(l, dp_comm_rank(comm) ? -1 : 3);
    CHECK(job_rank_step(&l->r) == (dp_comm_rank(comm) ? DP_EABORTED : DP_ECALLBACK));
    CHECK_SAYS("micro-batch 3 in slot 0 (stage 0): callback load of the inputs failed with -77");
    CHECK(dp_comm_rank(comm) || l->r.step.callback_error == -77);
    CHECK(!l->input.now && !l->label.now);
    l->input.fail_at = -1;
    CHECK(!dp_comm_reset(comm));
    dp_pipeline_seek(l->r.pipe, 1);
    CHECK(!job_rank_step(&l->r));
    job_rank_close(&l->r);
    free(l);
    return 0;
}

CASE(a_load_that_fails_ends_the_step_and_gives_all_back)
{
    OWNED(dp_schedule) *s = case_schedule(shapes[1]);
    struct job job = job_make(s);

    case_run(&job, deadline_ns, fail_to_load, 1);
}

static int load_one_tensor(void *user, int32_t mb, const struct dp_tree **args,
                           const struct dp_tree **kwargs)
{
    int err = load(user, mb, args, kwargs);

    ((struct end *)user)->trees[mb].count = 1;
    return err;
}

CASE(what_a_loader_hands_over_is_checked_like_a_batch)
{
    OWNED(dp_schedule) *s = case_schedule(shapes[0]);
    struct job job = job_make(s);
    struct loading *l = calloc(1, sizeof(*l));

    assert_non_null(l);
    job_begin(&job);
    assert_int_equal(job_rank_open(&l->r, &job, NULL), 0);
    const struct dp_microbatches *inputs = l->r.step.inputs;
    load_one_by_one(l, -1);
    l->r.step.inputs = inputs;
    assert_int_equal(job_rank_step(&l->r), DP_EINVAL);
    assert_string_equal(dp_last_error(), "inputs: given, expected NULL beside input_loader");
    l->r.step.inputs = NULL;
    l->input_loader.load = NULL;
    expect_error_is(job_rank_step(&l->r), DP_EINVAL, "input_loader: no callback load");
    l->input_loader.load = load_one_tensor;
    assert_int_equal(job_rank_step(&l->r), DP_EINVAL);
    assert_string_equal(dp_last_error(), "inputs: micro-batch 0 has 1 tensors, expected 3");
    assert_int_equal(l->input.now, 0);
    job_rank_close(&l->r);
    job_end(&job);
    free(l);
}

static int give_loader_to_all(struct dp_comm *comm, void *arg)
{
    struct loading *l = calloc(1, sizeof(*l));

    CHECK(l && !job_rank_open(&l->r, arg, comm));
    (void)dp_comm_barrier(comm); /* all have opened; one may have failed by now */
    load_one_by_one(l, -1);
    l->r.step.input_loader = &l->input_loader;
    const int err = job_rank_step(&l->r);
    CHECK(dp_comm_rank(comm) ? err == DP_EINVAL || err == DP_EABORTED : err == DP_EABORTED);
    CHECK_SAYS("input_loader: given, expected NULL on rank");
    job_rank_close(&l->r);
    free(l);
    return 0;
}

CASE(a_rank_without_a_first_stage_has_no_use_for_an_input_loader)
{
    OWNED(dp_schedule) *s = case_schedule(shapes[1]);
    struct job job = job_make(s);

    case_run_apart(&job, deadline_ns, give_loader_to_all);
}

RUN_QUIET_CASES(NULL, NULL)
