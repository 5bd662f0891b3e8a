/* SPDX-License-Identifier: Apache-2.0
 *
 * What recomputation does to memory: in each mode a step keeps as many micro-batches, and touches as
 * many bytes of save areas, as the plan and the simulator said before it began.
 */
#include "pipeline_case.h"

enum { RANKS_MAX = 8 };
static const int64_t deadline_ns = INT64_C(60000000000);

/* What the callbacks of one rank saw: a thread each. */
struct seen {
    int32_t kept, peak;
    uintptr_t first, end; /* of all save areas */
};
static struct seen seen[RANKS_MAX];
static _Thread_local struct seen *mine;
static _Thread_local struct job_rank *my_rank;

static void touch(struct seen *s, const struct dp_stage_call *call)
{
    const uintptr_t at = (uintptr_t)call->save;
    const struct dp_stage stage =
        model_stage_config(&my_rank->stages[call->slot], &model_ops_no_hook, false);

    s->first = at < s->first ? at : s->first;
    s->end = at + stage.save_bytes > s->end ? at + stage.save_bytes : s->end;
}

static int watch(void *user, const struct dp_stage_call *call, const char *what)
{
    touch(mine, call);
    if (!strcmp(what, "forward") && !call->discarded && ++mine->kept > mine->peak)
        mine->peak = mine->kept;
    if (!strcmp(what, "backward") || !strcmp(what, "weight"))
        mine->kept--;
    return 0;
}

static _Thread_local struct dp_pipeline_memory measured;

/* Without the group, and before there is any memory. */
static void measure(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = *(const enum dp_execution *)user;
    struct dp_pipeline_config alone = *config;

    alone.comm = NULL;
    if (dp_pipeline_measure(&alone, rank, &measured))
        measured.total_bytes = 0;
}

static int run_watched(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct dp_pipeline_memory memory;
    struct dp_simulation sim;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    my_rank = &r;
    CHECK(!job_rank_open(&r, job, comm));
    mine = &seen[r.rank];
    *mine = (struct seen){.first = UINTPTR_MAX};
    dp_pipeline_memory(r.pipe, &memory);
    CHECK(memory.total_bytes && memory.total_bytes == measured.total_bytes);
    CHECK(memory.save_bytes == measured.save_bytes);
    CHECK(memory.peak_activations == measured.peak_activations);
    CHECK(!dp_schedule_simulate(job->schedule, &(struct dp_cost){.f_ns = 1, .b_ns = 2, .i_ns = 1,
                                                                  .w_ns = 1}, 0, &sim));
    CHECK(!job_rank_step(&r));
    CHECK(mine->kept == 0);
    CHECK(mine->peak == memory.peak_activations);
    CHECK(mine->peak == sim.ranks[r.rank].peak_activations);
    CHECK(mine->end - mine->first <= memory.save_bytes);
    CHECK(mine->end - mine->first + 256 > memory.save_bytes); /* the end is rounded up */
    dp_simulation_fini(&sim);
    return 0;
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 3, .microbatches = 5},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 8},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 4, .microbatches = 8},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 6},
    {.kind = DP_SCHEDULE_INTERLEAVED, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_ZBV, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 5},
};

static int32_t most_kept(const struct dp_schedule *s)
{
    int32_t most = 0;

    for (int rank = 0; rank < s->ranks; rank++)
        most = seen[rank].peak > most ? seen[rank].peak : most;
    return most;
}

static bool is_even_stage(void *user, const struct dp_slot *slot, int32_t mb)
{
    return slot->stage % 2 == 0;
}

/* Returns the most micro-batches that a rank kept. selective: of even stages all are recomputed. */
static int32_t run_mode(struct dp_schedule_spec spec, enum dp_execution execution,
                        enum dp_recompute recompute, bool selective)
{
    spec.recompute = recompute;
    OWNED(dp_schedule) *s = case_schedule(spec);
    if (selective)
        assert_int_equal(dp_schedule_add_recomputes(s, is_even_stage, NULL), 0);
    struct job job = job_make(s);

    job.before = watch;
    job.edit = measure;
    job.user = &execution;
    job.ops = &model_ops_no_hook;
    job.fixed_order = false;
    job.tolerance = 1e-5f;
    case_run(&job, deadline_ns, run_watched, 0);
    const int32_t most = most_kept(s);
    return most;
}

/* What they add up to over all schedules. */
static int32_t kept, recomputed;

static void run_modes(struct dp_schedule_spec spec, enum dp_execution execution)
{
    const int32_t never = run_mode(spec, execution, DP_RECOMPUTE_NEVER, false);
    const int32_t last = run_mode(spec, execution, DP_RECOMPUTE_EXCEPT_LAST, false);
    const int32_t always = run_mode(spec, execution, DP_RECOMPUTE_ALWAYS, false);
    const int32_t selective = run_mode(spec, execution, DP_RECOMPUTE_NEVER, true);

    assert_true(never >= last && last >= always);
    assert_true(never >= selective && selective >= always);
    kept += never;
    recomputed += always;
}

CASE(peak_memory_is_what_the_plan_said_in_every_mode)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        run_modes(shapes[i], DP_EXECUTE_LIST);
    assert_true(2 * recomputed < kept);
}

/* All forwards come first, so that the order in which messages come does not change the most. */
CASE(peak_memory_is_what_the_plan_said_where_messages_drive_the_ranks)
{
    static const struct dp_schedule_spec async = {
        .kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 5};

    run_modes(async, DP_EXECUTE_MESSAGES);
}
