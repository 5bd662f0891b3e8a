/* SPDX-License-Identifier: Apache-2.0
 *
 * The trainer: three models learn the same, to the last bit, under every schedule, over P stages x D
 * replicas, whether gradients are summed whole or in shards; and what one layout has saved another goes on
 * from.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "trainer_run.h"
#include "use_sim_cuda.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *no_cuda; /* why there is no simulated CUDA */

CASE(every_layout_learns_the_same)
{
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const struct curve expected = run((struct job){.model = model, .layout = one});
        assert_true(expected.losses[STEPS - 1] < expected.losses[0] || model == MODEL_TIED);
        assert_true(expected.tensors > 0 && expected.held_out > 0);
        for (int i = 0; i < LAYOUTS; i++) {
            printf("model %d, layout %d\n", model, i);
            const struct curve curve = run((struct job){.model = model, .layout = layouts[i]});
            assert_same(&expected, &curve);
        }
    }
}

/* ---- on devices ------------------------------------------------------------------------------- */

static const char *const devices[] = {"host:2", "cuda"};

/* Without NCCL: messages and sums go by the host. Norms are added up in another order. */
CASE(a_device_learns_what_the_host_learns)
{
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const struct curve expected = run((struct job){.model = model, .layout = one});
        for (int i = -1; i < LAYOUTS; i++)
            for (int d = 0; d < 2; d++) {
                const struct layout layout = i < 0 ? one : layouts[i];
                if (d == 1 && no_cuda)
                    continue;
                printf("model %d, layout %d, %s\n", model, i, devices[d]);
                const struct curve curve = run((struct job){
                    .model = model, .layout = layout, .device = devices[d], .loads = i % 2});
                assert_same(&expected, &curve);
            }
    }
    const struct layout mixing = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_MIXING, 0};
    const struct curve mixed = run((struct job){.model = MODEL_SKIPS, .layout = mixing});
    for (int d = 0; d < (no_cuda ? 1 : 2); d++) {
        const struct curve curve = run((struct job){.model = MODEL_SKIPS, .layout = mixing,
                                                    .device = devices[d]});
        assert_same(&mixed, &curve);
    }
    if (no_cuda)
        skip_because(no_cuda);
}

/* Layers say whether they are the values of now. */
CASE(rounded_values_follow_the_values)
{
    static const struct layout mirrored = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_SHARDS, 0};

    const struct curve expected = run((struct job){.model = MODEL_TIED, .layout = one});
    for (int i = 0; i < (no_cuda ? 2 : 4); i++) {
        const struct curve curve = run((struct job){.model = MODEL_TIED, .rounds = true,
                                                    .layout = i % 2 ? mirrored : one,
                                                    .device = i < 2 ? NULL : "cuda"});
        assert_same(&expected, &curve);
    }
}

/* However the data comes, wherever the model is cut, and with a parameter that stays as it was. */
CASE(loaders_cuts_and_frozen_parameters_change_no_number)
{
    static const int32_t two[] = {2, 6}, four[] = {1, 4, 2, 1};
    const struct layout given[] = {{DP_SCHEDULE_1F1B, 2, 1, DP_SUMS_ALL, 0},
                                   {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_SHARDS, 0},
                                   {DP_SCHEDULE_DUALPIPEV, 2, 1, DP_SUMS_ALL, 0}};

    for (int freezes = 0; freezes < 2; freezes++) {
        const struct curve expected =
            run((struct job){.model = MODEL_SKIPS, .layout = one, .freezes = freezes});
        for (int i = 0; i < 3; i++) {
            const struct curve curve = run((struct job){.model = MODEL_SKIPS,
                                                        .layout = given[i],
                                                        .loads = true,
                                                        .freezes = freezes,
                                                        .balance = i == 2 ? four : two});
            assert_same(&expected, &curve);
        }
    }
}

CASE(a_schedule_that_is_made_before_changes_no_number)
{
    const struct curve expected = run((struct job){.model = MODEL_TIED, .layout = one});

    for (int i = 0; i < LAYOUTS; i++)
        for (int unreduced = 0; unreduced < 1 + (layouts[i].kind == DP_SCHEDULE_1F1B); unreduced++) {
            const struct layout *l = &layouts[i];
            if (l->replicas == 1 && l->sums == DP_SUMS_ALL && l->kind != DP_SCHEDULE_1F1B)
                continue; /* whose REDUCEs are the pipeline's own */
            printf("layout %d%s\n", i, unreduced ? ", without REDUCEs" : "");
            const struct curve curve =
                run((struct job){.model = MODEL_TIED,
                                 .layout = *l,
                                 .lists = true,
                                 .unreduced = unreduced || (l->replicas == 1 && !l->sums)});
            assert_same(&expected, &curve);
        }
}

/* The first step's gradient is used in the second, so that two steps have the same values. */
CASE(late_updates_are_the_same_in_every_layout)
{
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const struct curve expected = run((struct job){.model = model, .layout = one, .late = true});
        const struct curve at_once = run((struct job){.model = model, .layout = one});
        assert_true(expected.losses[0] == at_once.losses[0] &&
                    expected.losses[1] != at_once.losses[1]);
        for (int i = 0; i < LAYOUTS; i++) {
            if (layouts[i].sums != DP_SUMS_ALL)
                continue;
            printf("model %d, layout %d\n", model, i);
            char folder[SCRATCH_LEN];
            make_folder(folder);
            struct job job = {.model = model, .layout = layouts[i], .late = true, .folder = folder,
                              .stop = 2};
            run(job);
            job.stop = 0;
            const struct curve curve = run(job);
            assert_memory_equal(curve.losses + 2, expected.losses + 2, 2 * sizeof(double));
            assert_memory_equal(curve.values, expected.values, sizeof(curve.values));
            remove_folder(folder);
        }
    }
}

/* Half as many micro-batches, of other sizes: the same means, but for rounding. */
CASE(uneven_micro_batches_count_by_their_rows)
{
    const struct curve a = run((struct job){.layout = one});
    const struct curve b = run((struct job){.layout = one, .microbatches = 4});

    for (int i = 0; i < STEPS; i++)
        assert_float_equal(a.losses[i], b.losses[i], 1e-4);
    assert_float_equal(a.held_out, b.held_out, 1e-4);
}

/* Replicas that mix are not one model, but a stage of theirs is the same however it is cut. */
CASE(replicas_that_mix_learn_the_same_in_every_pipeline)
{
    static const struct layout mixing[] = {{DP_SCHEDULE_GPIPE, 1, 2, DP_SUMS_MIXING, 0},
                                           {DP_SCHEDULE_1F1B, 2, 2, DP_SUMS_MIXING, 0},
                                           {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_MIXING, 0},
                                           {DP_SCHEDULE_DUALPIPEV, 2, 2, DP_SUMS_MIXING, 0}};

    for (enum model_kind model = 0; model < MODEL_TIED; model++)
        for (int algorithm = 0; algorithm < 2; algorithm++) {
            struct job job = {.model = model, .layout = mixing[0],
                              .algorithm = (enum dp_mixer_algorithm)algorithm};
            const struct curve expected = run(job);
            for (int i = 1; i < 4; i++) {
                job.layout = mixing[i];
                const struct curve curve = run(job);
                assert_same(&expected, &curve);
            }
        }
}

/* ---- saved state ----------------------------------------------------------------------------- */

static bool is_there(const char *folder, const char *step)
{
    char path[SCRATCH_LEN + 32];

    snprintf(path, sizeof(path), "%s/%s/index.json", folder, step);
    return !access(path, F_OK);
}

static void count_fault(void *user, const char *sentence)
{
    assert_non_null(strstr(sentence, "tensor '"));
    ++*(int *)user;
}

/* What it lacks of what this job would read. */
static int faults_of(const char *folder, struct job job)
{
    struct dp_trainer_config config = config_of(&job);
    char path[SCRATCH_LEN + 40];
    struct dp_checkpoint *c;
    struct test_model m;
    int faults = 0;

    config.schedule.ranks = job.layout.ranks;
    test_model_init(&m, job.model);
    snprintf(path, sizeof(path), "%s/step-000002/index.json", folder);
    assert_int_equal(dp_checkpoint_open(path, &c), 0);
    assert_int_equal(dp_trainer_verify(&config, &m.model, c, count_fault, &faults), 0);
    dp_checkpoint_close(c);
    return faults;
}

/* Two steps of the one, and what is left by the other. */
static void go_on(const struct curve *expected, struct job first, struct job then)
{
    char folder[SCRATCH_LEN];

    make_folder(folder);
    first.folder = then.folder = folder;
    first.stop = 2;
    struct curve before = run(first);
    assert_int_equal(faults_of(folder, then), 0);
    struct job alone = then; /* one replica does not mix */
    alone.layout.sums = DP_SUMS_MIXING;
    for (alone.layout.replicas = 0; alone.layout.replicas < 2; alone.layout.replicas++)
        assert_int_equal(faults_of(folder, alone), 0);
    then.model = MODEL_TIED;
    assert_true((faults_of(folder, then) > 0) == (first.model != MODEL_TIED));
    then.model = first.model;
    const struct curve after = run(then);
    memcpy(before.losses + 2, after.losses + 2, 2 * sizeof(double));
    memcpy(before.norms + 2, after.norms + 2, 2 * sizeof(double));
    before.held_out = after.held_out;
    memcpy(before.values, after.values, sizeof(before.values));
    assert_same(expected, &before);
    assert_true(!is_there(folder, "step-000002") && is_there(folder, "step-000003") &&
                is_there(folder, "step-000004"));
    remove_folder(folder);
}

CASE(what_one_layout_saves_another_goes_on_from)
{
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const struct curve expected = run((struct job){.model = model, .layout = one});
        for (int i = 0; i < LAYOUTS; i++)
            go_on(&expected, (struct job){.model = model, .layout = layouts[i]},
                  (struct job){.model = model, .layout = layouts[(i + 5) % LAYOUTS]});
    }
}

CASE(what_a_device_saves_another_goes_on_from)
{
    static const struct {
        int layouts[2];
        const char *devices[2];
    } rows[] = {{{3, 11}, {"cuda", NULL}}, {{12, 3}, {NULL, "cuda"}}, {{0, 5}, {"cuda", "cuda"}}};

    if (no_cuda)
        skip_because(no_cuda);
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const struct curve expected = run((struct job){.model = model, .layout = one});
        for (int i = 0; i < 3; i++) {
            struct job jobs[2];
            for (int k = 0; k < 2; k++)
                jobs[k] = (struct job){.model = model, .layout = layouts[rows[i].layouts[k]],
                                       .device = rows[i].devices[k]};
            go_on(&expected, jobs[0], jobs[1]);
        }
    }
}

CASE(replicas_that_mix_go_on_as_they_were)
{
    const struct layout mixing = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_MIXING, 0};
    const struct curve expected = run((struct job){.model = MODEL_SKIPS, .layout = mixing});
    char folder[SCRATCH_LEN];

    for (int d = 0; d < (no_cuda ? 1 : 2); d++) {
        const char *device = d ? "cuda" : NULL;
        make_folder(folder);
        run((struct job){.model = MODEL_SKIPS, .layout = mixing, .folder = folder, .stop = 2,
                         .device = device});
        assert_int_equal(faults_of(folder, (struct job){.model = MODEL_SKIPS, .layout = mixing}), 0);
        assert_true(faults_of(folder, (struct job){.model = MODEL_TIED, .layout = mixing}) > 0);
        for (int i = 0; i < 2; i++) { /* without a folder of its own, and in the same */
            const struct curve after = run((struct job){.model = MODEL_SKIPS, .layout = mixing,
                                                        .folder = i ? folder : NULL, .from = folder,
                                                        .device = device});
            assert_memory_equal(expected.losses + 2, after.losses + 2, 2 * sizeof(double));
            assert_memory_equal(expected.values, after.values, sizeof(after.values));
        }
        remove_folder(folder);
    }
}

static int rank_finds_another_model(struct dp_comm *comm, void *arg)
{
    struct job job = *(const struct job *)arg;

    job.model = MODEL_TIED;
    const int err = learn(comm, &job);
    CHECK(err == DP_ENOENT || err == DP_EMISMATCH);
    CHECK_SAYS("rank ");
    return 0;
}

CASE(a_checkpoint_of_another_model_is_refused_on_every_rank)
{
    char folder[SCRATCH_LEN];
    struct curve curve;
    struct job job = {.layout = layouts[3], .folder = folder, .curve = &curve};

    make_folder(folder);
    run((struct job){.layout = one, .folder = folder, .stop = 1});
    assert_int_equal(comm_on_threads(2, timeout_ns, rank_finds_another_model, &job), 0);
    remove_folder(folder);
}

static int rank_is_refused(struct dp_comm *comm, void *arg)
{
    CHECK(learn(comm, arg) == DP_EUNSUPPORTED);
    CHECK_SAYS("dualpipe without REDUCEs, expected dp_schedule_add_all_reduces");
    return 0;
}

CASE(mirrors_need_reduces_where_replicas_sum)
{
    struct curve curve;
    struct job job = {.layout = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_ALL, 0}, .lists = true,
                      .unreduced = true, .curve = &curve};

    assert_int_equal(comm_on_threads(4, timeout_ns, rank_is_refused, &job), 0);
}

static int rank_finds_nothing(struct dp_comm *comm, void *arg)
{
    CHECK(learn(comm, arg) == DP_ENOENT);
    CHECK(!dp_comm_barrier(comm)); /* and goes on as it likes */
    return 0;
}

CASE(a_folder_without_a_checkpoint_leaves_no_rank_waiting)
{
    char folder[SCRATCH_LEN];
    struct curve curve;
    struct job job = {.model = MODEL_TIED, .layout = layouts[3], .from = folder, .curve = &curve};

    make_folder(folder);
    assert_int_equal(comm_on_threads(2, timeout_ns, rank_finds_nothing, &job), 0);
    remove_folder(folder);
}

static int rank_cannot_save(struct dp_comm *comm, void *arg)
{
    CHECK(learn(comm, arg) != 0);
    CHECK_SAYS("checkpoint.folder: '/dev/null/x': Not a directory, expected a folder that can be written");
    CHECK(!((struct job *)arg)->curve->losses[0]);
    return 0;
}

CASE(a_folder_that_cannot_be_written_is_refused_before_the_first_step)
{
    struct curve curve = {0};
    struct job job = {.model = MODEL_TIED, .layout = layouts[3], .folder = "/dev/null/x", .curve = &curve};

    assert_int_equal(comm_on_threads(2, timeout_ns, rank_cannot_save, &job), 0);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Wherever the clock cuts the model, and whatever steps on zeros have left. */
CASE(a_cut_by_measured_time_changes_no_number)
{
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const struct curve expected = run((struct job){.model = model, .layout = one});
        for (int i = 0; i < LAYOUTS; i += 3) {
            const struct curve curve =
                run((struct job){.model = model, .layout = layouts[i], .measured = true,
                                 .device = no_cuda ? NULL : "cuda"});
            assert_same(&expected, &curve);
        }
    }
}

enum { MOST_PLANS = 128 };

static int32_t plan(struct dp_trainer_config config, enum model_kind model, int ranks, size_t budget,
                    struct dp_trainer_plan out[MOST_PLANS])
{
    const struct dp_trainer_machine machine = {.ranks = ranks, .budget_bytes = budget, .latency_ns = 100};
    struct test_model m;
    struct dp_trainer_plan *list;
    int32_t count = 0;

    test_model_init(&m, model);
    assert_int_equal(dp_trainer_plan(&config, &m.model, &machine, &list, &count), 0);
    assert_in_range(count, 1, MOST_PLANS);
    memcpy(out, list, (size_t)count * sizeof(*list));
    for (int32_t i = 0; i < count; i++) {
        size_t most = 0;
        int32_t layers = 0;
        for (int32_t r = 0; r < out[i].ranks; r++)
            most = out[i].rank_bytes[r] > most ? out[i].rank_bytes[r] : most;
        for (int32_t s = 0; s < out[i].stages; s++)
            layers += out[i].layers_of_stage[s];
        assert_true(most == out[i].bytes && layers == m.model.layer_count);
        assert_true(!out[i].offload || (budget && most <= budget));
    }
    dp_trainer_plan_free(list, count);
    for (int32_t i = 0; i < count; i++) {
        const bool fits = !budget || out[i].bytes <= budget,
                   fitted = !i || !budget || out[i - 1].bytes <= budget;
        assert_int_equal(out[i].ranks * out[i].replicas, ranks);
        assert_true(out[i].step_ns > 0 && out[i].bytes > 0 && (!fits || fitted));
        if (i && fits == fitted)
            assert_true(out[i].step_ns >= out[i - 1].step_ns);
    }
    return count;
}

CASE(layouts_are_ranked_by_their_predicted_step)
{
    struct dp_trainer_plan all[MOST_PLANS], some[MOST_PLANS];
    struct dp_trainer_config config = config_of(&(struct job){.layout = one});

    config.schedule = (struct dp_schedule_spec){0};
    config.replicas = 0;
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const int32_t count = plan(config, model, 2, 0, all);
        size_t least = SIZE_MAX, most = 0;
        assert_true(count > 12); /* seven schedules with P = 2, one with D = 2, three ways each */
        for (int32_t i = 0; i < count; i++) {
            least = all[i].bytes < least ? all[i].bytes : least;
            most = all[i].bytes > most ? all[i].bytes : most;
            /* Each is a layout that trains. */
            const struct layout layout = {all[i].kind, all[i].ranks, all[i].replicas, DP_SUMS_ALL,
                                          all[i].recompute};
            if (i % 5 == 0 || (all[i].kind == DP_SCHEDULE_ASYNC && !all[i].recompute))
                assert_true(run((struct job){.model = model, .layout = layout, .stop = 1}).losses[0] > 0);
        }
        assert_true(least < most);
        const int32_t within = plan(config, model, 2, least, some);
        assert_true(within >= count && some[0].bytes <= least && some[within - 1].bytes > least);
    }
    config.schedule.kind = DP_SCHEDULE_DUALPIPE;
    assert_int_equal(plan(config, MODEL_SKIPS, 2, 0, all), 2 * DP_RECOMPUTES); /* with slack */
    assert_true(all[0].kind == DP_SCHEDULE_DUALPIPE && all[0].ranks == 2);
    config.replicas = 2;
    config.schedule.slack = 1;
    assert_int_equal(plan(config, MODEL_SKIPS, 4, 0, all), DP_RECOMPUTES);
    assert_true(all[0].slack == 1 && all[0].replicas == 2 && all[0].microbatches == MICROBATCHES);
    config.schedule.kind = DP_SCHEDULE_1F1B; /* which knows no slack */
    assert_int_equal(plan(config, MODEL_SKIPS, 4, 0, all), DP_RECOMPUTES);
    config.schedule.slack = 0;
    assert_true(all[0].slack == 0 && all[0].replicas == 2 && all[0].microbatches == MICROBATCHES);

    /* What has no meaning for a kind leaves none out. */
    config.replicas = 0;
    config.schedule.kind = DP_SCHEDULE_USER;
    const int32_t without = plan(config, MODEL_SKIPS, 2, 0, all);
    config.schedule.virtual_stages = 2;
    assert_int_equal(plan(config, MODEL_SKIPS, 2, 0, all), without);
    config.schedule.virtual_stages = 0;

    /* What one layout cannot be, another can. */
    config.schedule.kind = DP_SCHEDULE_USER;
    config.replicas = 0;
    config.survive = true;
    assert_true(plan(config, MODEL_SKIPS, 2, 0, all) > 0);
    config.survive = false;
    config.balance = DP_BALANCE_GIVEN;
    config.layers_of_stage = (const int32_t[]){MODEL_LAYERS / 2, MODEL_LAYERS - MODEL_LAYERS / 2};
    assert_true(plan(config, MODEL_SKIPS, 4, 0, all) > 0);
    config.balance = DP_BALANCE_MEASURED;
    assert_true(plan(config, MODEL_SKIPS, 2, 0, all) > 0);
    config.schedule.kind = DP_SCHEDULE_1F1B;
    assert_int_equal(plan(config, MODEL_SKIPS, 1, 0, all), DP_RECOMPUTES);
    config.schedule.ranks = 2;
    assert_true(plan(config, MODEL_SKIPS, 4, 0, all) > 0);
    assert_true(all[0].ranks == 2 && all[0].replicas == 2);
}

/* ---- loss scales and signals ----------------------------------------------------------------- */

/* A power of two changes no bit of what it is taken out of again. */
CASE(a_loss_scale_changes_no_number)
{
    struct dp_loss_scale scale = dp_loss_scale_defaults();

    scale.interval = 2;
    for (enum model_kind model = 0; model < MODEL_KINDS; model++)
        for (int i = -1; i < LAYOUTS; i += 3) {
            const struct layout *layout = i < 0 ? &one : &layouts[i];
            const struct curve a = run((struct job){.model = model, .layout = *layout});
            const struct curve b = run((struct job){.model = model, .layout = *layout, .scale = scale});
            assert_same(&a, &b);
            assert_true(a.scales[3] == 1 && b.scales[1] == 65536 && b.scales[3] == 131072);
        }
}

/* A step whose gradients are not finite is left out everywhere, and the scale goes on where it was. */
CASE(an_overflow_skips_the_step_on_all_ranks)
{
    const struct dp_loss_scale scale = {0x1p1000, 2, 0x1p-990, 2, 1, 0x1p1000, 0};
    const struct layout mixing = {DP_SCHEDULE_1F1B, 2, 2, DP_SUMS_MIXING, 0};

    for (int i = 0; i <= LAYOUTS; i++) {
        const struct layout *layout = i < LAYOUTS ? &layouts[i] : &mixing;
        char folder[SCRATCH_LEN];
        make_folder(folder);
        const struct curve whole = run((struct job){.layout = *layout, .scale = scale}),
                           begun = run((struct job){
                               .layout = *layout, .scale = scale, .folder = folder, .stop = 2}),
                           ended = run((struct job){.layout = i < LAYOUTS ? layouts[(i + 4) % LAYOUTS]
                                                                          : mixing,
                                                    .scale = scale, .folder = folder});
        assert_true(whole.skipped[0] && !whole.skipped[1] && !whole.skipped[3]);
        assert_true(whole.scales[0] == 0x1p1000 && whole.scales[2] == 1024 && whole.scales[3] == 2048);
        assert_true(begun.skipped[0] && ended.scales[2] == 1024 && ended.scales[3] == 2048);
        assert_memory_equal(&whole.losses[2], &ended.losses[2], 2 * sizeof(double));
        remove_folder(folder);
    }
}

CASE(a_signal_saves_on_all_ranks)
{
    const struct curve expected = run((struct job){.layout = one});

    for (int i = 0; i < LAYOUTS; i += 4) {
        char folder[SCRATCH_LEN];
        make_folder(folder);
        const struct curve begun = run((struct job){.layout = layouts[i], .told_at = 2, .folder = folder,
                                                    .stop = 3, .rarely = true}),
                           ended = run((struct job){.layout = one, .from = folder});
        assert_true(!begun.ending[0] && begun.ending[1] && begun.ending[2]);
        assert_true(is_there(folder, "step-000002") && !is_there(folder, "step-000003"));
        assert_memory_equal(&expected.losses[2], &ended.losses[2], 2 * sizeof(double));
        remove_folder(folder);
    }
}

/* What the program itself does at the signal it still does. */
static atomic_int told;

static void note_that(int signal)
{
    told++;
}

CASE(the_programs_own_handler_stays)
{
    signal(SIGTERM, note_that);
    const struct curve begun = run((struct job){.layout = one, .told_at = 1, .stop = 1});
    assert_true(begun.ending[0] && told == 1);
    raise(SIGTERM);
    assert_int_equal(told, 2);
    signal(SIGTERM, SIG_DFL);
}

int main(void)
{
    no_cuda = use_sim_cuda();
    return run_cases(NULL, NULL);
}
