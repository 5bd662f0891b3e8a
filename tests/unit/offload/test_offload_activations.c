/* SPDX-License-Identifier: Apache-2.0
 *
 * The activations of a pipeline within a number of bytes: what is chosen fits, trains to the same bits,
 * and is no more than is needed; the faster way is taken.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "unit/comm/comm_group.h"
#include "pipeline_job.h"
#include <dualpipe/offload.h>

enum { RANKS = 4, MBS = 10 };
static const int64_t deadline_ns = 60 * DP_NS_PER_S;

/* A schedule, and what its stages save. */
struct rig {
    struct dp_schedule *s;
    struct job job;
    struct dp_border *borders;
    struct model_stage *models;
    struct dp_stage *stages;
    struct dp_offload_activations config;
};

static void begin(struct rig *rig, enum dp_schedule_kind kind)
{
    struct dp_schedule_spec spec = {
        .kind = kind, .ranks = RANKS, .microbatches = MBS, .mirror_reduce = true};

    *rig = (struct rig){0};
    assert_int_equal(dp_schedule_new(&spec, &rig->s), 0);
    rig->job = job_make(rig->s);
    size_t slots = rig->s->first_slot[RANKS];
    rig->borders = calloc((size_t)rig->s->stages + 1, sizeof(*rig->borders));
    rig->models = calloc(slots, sizeof(*rig->models));
    rig->stages = calloc(slots, sizeof(*rig->stages));
    model_borders(&rig->job.model, rig->borders);
    for (size_t i = 0; i < slots; i++) {
        model_stage_init(&rig->models[i], &rig->job.model, rig->s->slots[i].stage);
        rig->stages[i] = model_stage_config(&rig->models[i], &model_ops, false);
    }
    rig->config = (struct dp_offload_activations){
        .borders = rig->borders, .stages = rig->stages, .budget_bytes = SIZE_MAX, .lead = 1};
}

static void end(struct rig *rig)
{
    for (size_t i = 0; i < rig->s->first_slot[RANKS]; i++)
        model_stage_fini(&rig->models[i]);
    dp_schedule_free(rig->s);
    free(rig->borders);
    free(rig->models);
    free(rig->stages);
}

static int run_step(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    CHECK(!job_rank_step(&r));
    return 0;
}

/* To the last bit, within the bytes. */
static void expect_sequential(struct rig *rig, size_t peak_bytes)
{
    size_t most = 0;

    rig->job.schedule = rig->s;
    job_begin(&rig->job);
    assert_int_equal(comm_on_threads(RANKS, deadline_ns, run_step, &rig->job), 0);
    assert_true(job_result_is_sequential(&rig->job, 0));
    for (int rank = 0; rank < RANKS; rank++) {
        const struct dp_pipeline_memory *m = &rig->job.result->memory[rank];
        size_t bytes = m->activations_bytes + m->gradients_bytes + m->save_bytes;
        most = bytes > most ? bytes : most;
    }
    assert_int_equal(most, peak_bytes);
    job_end(&rig->job);
}

CASE(less_memory_sends_more_to_the_host)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_GPIPE, DP_SCHEDULE_1F1B,
                                                  DP_SCHEDULE_ZB1P, DP_SCHEDULE_DUALPIPE,
                                                  DP_SCHEDULE_DUALPIPEV};
    struct dp_offload_choice choice;
    struct rig rig;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        int64_t evicted = 0;
        size_t budget = SIZE_MAX;
        for (int cuts = 0;; cuts++) {
            begin(&rig, kinds[k]);
            rig.config.budget_bytes = budget;
            int err = dp_offload_activations(rig.s, &rig.config, &choice);
            if (err) {
                assert_int_equal(err, DP_ENOMEM);
                assert_true(cuts > (kinds[k] == DP_SCHEDULE_GPIPE));
                end(&rig);
                break;
            }
            assert_true(choice.peak_bytes <= budget && choice.sets == (int64_t)MBS * rig.s->stages);
            if (!cuts)
                assert_true(!choice.evicted && !choice.recomputed);
            else if (!choice.recomputed)
                assert_true(choice.evicted > evicted);
            assert_int_equal(dp_schedule_check(rig.s, NULL, NULL), 0);
            expect_sequential(&rig, choice.peak_bytes);
            evicted = choice.evicted;
            budget = choice.peak_bytes - 1;
            end(&rig);
        }
    }
}

CASE(the_faster_way_is_taken)
{
    struct dp_offload_choice all, choice;
    struct dp_cost cost = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000};
    struct rig rig;

    begin(&rig, DP_SCHEDULE_GPIPE);
    assert_int_equal(dp_offload_activations(rig.s, &rig.config, &all), 0);
    end(&rig);
    for (int slow = 0; slow < 2; slow++) {
        begin(&rig, DP_SCHEDULE_GPIPE);
        cost.evict_ns = cost.fetch_ns = slow ? 100000 : 1;
        rig.config.cost = &cost;
        rig.config.budget_bytes = all.peak_bytes - 1;
        assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), 0);
        assert_true(choice.step_ns > 0);
        assert_int_equal(choice.recomputed > 0, slow);
        assert_int_equal(choice.evicted > 0, !slow);
        assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), DP_ESTATE);
        end(&rig);
    }
}

/* A budget of which a part is taken, for training and evaluation; copies neither slow nor fast. */
CASE(some_leave_and_some_are_computed_again)
{
    struct dp_offload_choice all, choice;
    struct dp_cost cost = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000, .evict_ns = 2000, .fetch_ns = 2000};
    size_t beside[RANKS] = {100000, 100000, 100000, 100000};
    int64_t alone[2] = {0, 0};
    struct rig rig;

    begin(&rig, DP_SCHEDULE_GPIPE);
    assert_int_equal(dp_offload_activations(rig.s, &rig.config, &all), 0);
    end(&rig);
    for (int quick = 0; quick < 2; quick++) { /* one way only: the other takes for ever */
        begin(&rig, DP_SCHEDULE_GPIPE);
        struct dp_cost one = cost;
        *(quick ? &one.recompute_ns : &one.evict_ns) = 1e9;
        rig.config.cost = &one;
        rig.config.budget_bytes = all.peak_bytes * 3 / 4;
        assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), 0);
        alone[quick] = choice.step_ns;
        end(&rig);
    }
    begin(&rig, DP_SCHEDULE_GPIPE);
    rig.config.cost = &cost;
    rig.config.beside_bytes = beside;
    rig.config.budget_bytes = all.peak_bytes * 3 / 4 + 100000;
    assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), 0);
    assert_true(choice.evicted > 0 && choice.recomputed > 0);
    assert_true(choice.step_ns < alone[0] && choice.step_ns < alone[1]);
    assert_true(choice.peak_bytes <= all.peak_bytes * 3 / 4);
    expect_sequential(&rig, choice.peak_bytes);
    end(&rig);
    begin(&rig, DP_SCHEDULE_GPIPE);
    rig.config.keep = true;
    rig.config.budget_bytes = all.peak_bytes - 1;
    assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), DP_ENOMEM);
    assert_non_null(strstr(dp_last_error(), "all activations kept"));
    end(&rig);
}

CASE(what_cannot_be_chosen_is_refused)
{
    struct dp_offload_choice choice;
    struct rig rig;

    begin(&rig, DP_SCHEDULE_1F1B);
    rig.config.lead = -1;
    assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), DP_EINVAL);
    rig.config.lead = 1;
    rig.config.stages = NULL;
    assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), DP_EINVAL);
    rig.config.stages = rig.stages;
    rig.config.budget_bytes = 1;
    assert_int_equal(dp_offload_activations(rig.s, &rig.config, &choice), DP_ENOMEM);
    assert_non_null(strstr(dp_last_error(), "expected at most 1"));
    end(&rig);
}
