/* SPDX-License-Identifier: Apache-2.0
 *
 * Tied parameters of different stages: under every schedule their gradients become one sum at the
 * owner, and its values those of all.
 */
#include "pipeline_case.h"

enum { STEPS = 2, TIED = 2 }; /* stages 0 and 2: widths of equal parity have equal shapes */
static const int64_t deadline_ns = INT64_C(60000000000);
static const int begins_as[] = {0, 1, 0, 3, 4, 5, 6, 7};

static bool is_tied(int stage)
{
    return stage == 0 || stage == TIED;
}

/* Both stages' weights are the group "table"; biases stay their own. */
static void tie(void *user, int rank, struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;

    for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++) {
        struct model_stage *stage = config->stages[slot].user;
        if (is_tied(stage->stage))
            stage->parameters[0].tied = "table";
    }
}

static void tie_copies(void *user, int rank, struct dp_pipeline_config *config)
{
    tie(user, rank, config);
    config->tied_copies = true;
}

static size_t weights_of(const struct model *m, int stage)
{
    return (size_t)model_width(m, stage) * (size_t)model_width(m, stage + 1);
}

/* What the sequential loop makes of the k-th gradient of a stage. */
static float sequential_grad(const struct model_result *want, int stage, size_t k)
{
    return want->first[stage][k] + want->second[stage][k];
}

/* Whether a slot's stage owns the group: with tied_copies each copy of stage 0 does. */
static bool should_own(const struct job_rank *r, int slot, bool copies)
{
    const struct dp_slot *at = dp_schedule_slot(r->job->schedule, r->rank, slot);

    return r->stages[slot].stage == 0 && (copies || at->stream == 0);
}

static int check_sums(struct dp_comm *comm, const struct job_rank *r)
{
    const bool copies = r->job->edit == tie_copies;
    const struct model *m = &r->job->model;
    struct model_result want;

    model_result_init(&want, m);
    model_run_sequential(m, STEPS - 1, true, &want);
    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++) {
        const struct model_stage *stage = &r->stages[i];
        const bool owner = dp_pipeline_owns(r->pipe, i, 0);
        CHECK(owner == should_own(r, i, copies) || !is_tied(stage->stage));
        for (size_t k = 0; k < weights_of(m, 0) && is_tied(stage->stage); k++) {
            float sum = sequential_grad(&want, 0, k) + sequential_grad(&want, TIED, k);
            CHECK(stage->gw[k] == (owner ? sum : 0));
        }
        for (size_t k = is_tied(stage->stage) ? weights_of(m, stage->stage) : 0;
             k < model_grad_count(m, stage->stage); k++)
            CHECK(stage->gw[k] == sequential_grad(&want, stage->stage, k));
    }
    model_result_fini(&want, m);
    return 0;
}

/* The owner alone changes its values. */
static int check_broadcast(struct dp_comm *comm, struct job_rank *r)
{
    const int slots = dp_schedule_slot_count(r->job->schedule, r->rank);
    const size_t count = weights_of(&r->job->model, 0);

    for (int i = 0; i < slots; i++)
        for (size_t k = 0; k < count && is_tied(r->stages[i].stage); k++)
            r->stages[i].w[k] = dp_pipeline_owns(r->pipe, i, 0) ? (float)k + 0.5f : -1;
    CHECK(!dp_pipeline_broadcast_tied(r->pipe));
    for (int i = 0; i < slots; i++)
        for (size_t k = 0; k < count && is_tied(r->stages[i].stage); k++)
            CHECK(r->stages[i].w[k] == (float)k + 0.5f);
    return 0;
}

static int run_tied(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    CHECK(!dp_pipeline_sum_tied(r.pipe));
    CHECK(!check_sums(comm, &r));
    CHECK(!check_broadcast(comm, &r));
    return 0;
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 3, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 6},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 3, .microbatches = 5},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_INTERLEAVED, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_ZBV, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 5},
};

static void expect_tied_as(const struct comm_kind *kind, struct dp_schedule_spec spec,
                           void (*edit)(void *user, int rank, struct dp_pipeline_config *config))
{
    OWNED(dp_schedule) *s = case_schedule(spec);
    ENDED_BY(job_end) struct job job = job_make(s);
    int killed;

    job.model.same_as = begins_as;
    job.edit = edit;
    job_begin(&job);
    assert_int_equal(kind ? kind->run(kind, s->ranks, deadline_ns, run_tied, &job, &killed)
                          : comm_on_threads(s->ranks, deadline_ns, run_tied, &job),
                     0);
}

static void expect_tied(const struct comm_kind *kind, struct dp_schedule_spec spec)
{
    expect_tied_as(kind, spec, tie);
}

CASE(tied_gradients_are_summed_at_the_owner_under_every_schedule)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        expect_tied(NULL, shapes[i]);
}

CASE(both_copies_of_the_owner_own_where_that_is_wanted)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        expect_tied_as(NULL, shapes[i], tie_copies);
}

/* The pipeline's ranks are the group's the other way round. */
CASE(tied_gradients_are_summed_wherever_the_stages_are)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct dp_schedule_spec spec = shapes[i];
        int map[8];
        for (int rank = 0; rank < spec.ranks; rank++)
            map[rank] = spec.ranks - 1 - rank;
        spec.rank_map = map;
        spec.recompute = DP_RECOMPUTE_EXCEPT_LAST;
        expect_tied(NULL, spec);
    }
}

static void tie_by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    tie(user, rank, config);
    config->execution = DP_EXECUTE_MESSAGES;
}

CASE(tied_gradients_are_summed_where_messages_drive_the_ranks)
{
    expect_tied_as(NULL, shapes[sizeof(shapes) / sizeof(shapes[0]) - 1], tie_by_messages);
}

CASE(every_communicator_carries_tied_parameters)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        expect_tied(kind, shapes[1]);
}

/* ---- other things ---------------------------------------------------------------------------- */

/* A member that begins with other values. */
static int start_apart(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};
    float first = 0;

    CHECK(!job_rank_open(&r, arg, comm));
    if (is_tied(r.stages[0].stage))
        first = r.stages[0].w[0];
    CHECK(!dp_comm_broadcast(comm, &first, sizeof(first), 0));
    CHECK(!is_tied(r.stages[0].stage) || r.stages[0].w[0] == first);
    return 0;
}

CASE(members_of_a_group_start_equal)
{
    OWNED(dp_schedule) *s = case_schedule(shapes[1]);
    struct job job = job_make(s);

    job.edit = tie;
    case_run_apart(&job, deadline_ns, start_apart);
}

/* Of the other parity: another shape. */
static void tie_another_shape(void *user, int rank, struct dp_pipeline_config *config)
{
    if (rank < 2)
        ((struct model_stage *)config->stages[0].user)->parameters[0].tied = "table";
}

static int open_mismatch(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(job_rank_open(&r, arg, comm) == DP_EMISMATCH);
    CHECK_SAYS("tied group 'table': stage 0 and stage 1 have it in other types, shapes or strides");
    CHECK(!dp_comm_barrier(comm));
    r.pipe = NULL;
    return 0;
}

CASE(tied_parameters_of_different_shapes_are_refused_on_every_rank)
{
    OWNED(dp_schedule) *s = case_schedule(shapes[1]);
    struct job job = job_make(s);

    job.edit = tie_another_shape;
    case_run_apart(&job, deadline_ns, open_mismatch);
}
