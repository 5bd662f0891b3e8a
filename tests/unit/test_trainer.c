/* SPDX-License-Identifier: Apache-2.0
 *
 * The trainer: three models learn the same, to the last bit, under every schedule, over P stages x D
 * replicas, whether gradients are summed whole or in shards; what one layout has saved another goes on
 * from; and what fails on one rank, or in one layer, every rank gets to know.
 */
#include "cmocka_all.h"

#include "comm_group.h"
#include "failing_memory.h"
#include "scratch.h"
#include "trainer_models.h"
#include "use_sim_cuda.h"

#include <dualpipe/trainer.h>

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 4, ROWS = 24, LESS_ROWS = 19, MICROBATCHES = 8, MAX_VALUES = 600 };
static const int64_t timeout_ns = INT64_C(60000000000);

/* ---- a run ----------------------------------------------------------------------------------- */

/* What it came to: that of rank 0. */
struct curve {
    double losses[STEPS], norms[STEPS], held_out;
    double scales[STEPS];      /* of losses */
    bool skipped[STEPS], ending[STEPS];
    int32_t tensors;
    float values[MAX_VALUES];
};

struct layout {
    enum dp_schedule_kind kind;
    int ranks, replicas;
    enum dp_sums sums;
    enum dp_recompute recompute;
};

struct job {
    enum model_kind model;
    struct layout layout;
    enum dp_mixer_algorithm algorithm;
    int microbatches;          /* 0: MICROBATCHES */
    const char *folder;        /* of checkpoints; NULL: none */
    const char *from;          /* the checkpoint to begin with; NULL: none */
    uint64_t stop;             /* a step before which it stops; 0: none */
    int fail_layer, fail_mb;   /* a layer that fails */
    struct dp_loss_scale scale;
    bool offloads;             /* parameters live on the host; */
    bool evicts, moves_state, files; /* so may activations, and the optimizer's state, in a file */
    double kept_share;
    size_t budget;             /* on the device */
    uint64_t told_at;          /* a step, from 1, before which the last rank gets SIGTERM; 0: none */
    bool rarely;               /* no step is saved but by a signal and at the end */
    bool rounds;               /* layers are given rounded values, too */
    bool loads;                /* batches come from loaders */
    bool freezes;              /* the first layer's w is frozen */
    bool late;                 /* updates are */
    bool lists, unreduced;     /* the schedule is made before; without REDUCEs */
    const int32_t *balance;    /* layers of each stage; NULL: by cost */
    bool measured;             /* by what layers take */
    const char *device;        /* where it trains; NULL: the host */
    struct curve *curve;
};

static void make_batch(uint64_t step, float x[ROWS][MODEL_WIDTH], float y[ROWS][MODEL_WIDTH],
                       uint8_t classes[ROWS])
{
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < MODEL_WIDTH; i++) {
            x[r][i] = sinf((float)(7 * r + 3 * i + 1) * (float)(step + 1));
            y[r][(i + 1) % MODEL_WIDTH] = x[r][i];
        }
        classes[r] = (uint8_t)((unsigned)r * (unsigned)(step + 3) % MODEL_WIDTH);
    }
}

/* Hands over rows of a tensor, by the place of the micro-batch in the batch of all replicas. */
struct loader {
    const DLTensor *all;
    int64_t dims[MICROBATCHES][4];
    DLTensor rows[MICROBATCHES];
    struct dp_tree leaves[MICROBATCHES], args[MICROBATCHES];
    int held;
};

static int load(void *user, int32_t mb, const struct dp_tree **args, const struct dp_tree **kwargs)
{
    struct loader *l = user;
    int64_t begin, size;

    (void)kwargs;
    if (dp_split_window(l->all->shape[0], MICROBATCHES, mb, &begin, &size) ||
        dp_tensor_window(l->all, 0, begin, size, l->dims[mb], &l->rows[mb]))
        return DP_EINVAL;
    l->leaves[mb] = dp_tensor(&l->rows[mb]);
    l->args[mb] = dp_tuple(1, &l->leaves[mb]);
    *args = &l->args[mb];
    l->held++;
    return 0;
}

static void release(void *user, int32_t mb)
{
    struct loader *l = user;

    (void)mb;
    l->held--;
}

/* Every third batch has fewer rows, which do not divide. */
static int with_batch(struct dp_trainer *t, const struct job *job, uint64_t step,
                      struct dp_trainer_result *result, double *held_out)
{
    static const DLDataType f32 = {kDLFloat, 32, 1}, u8 = {kDLUInt, 8, 1};
    float x[ROWS][MODEL_WIDTH], y[ROWS][MODEL_WIDTH];
    uint8_t classes[ROWS];
    int64_t shape[] = {step % 3 == 1 ? LESS_ROWS : ROWS, MODEL_WIDTH};
    const DLDevice cpu = {kDLCPU, 0};
    const DLTensor in = {x, cpu, 2, f32, shape, NULL, 0}, wanted = {y, cpu, 2, f32, shape, NULL, 0},
                   labels = {classes, cpu, 1, u8, shape, NULL, 0};
    const struct dp_tree inputs = dp_tuple(1, (struct dp_tree[]){dp_tensor(&in)});
    const struct dp_tree out =
        dp_tuple(1, (struct dp_tree[]){dp_tensor(job->model == MODEL_TIED ? &labels : &wanted)});
    struct loader loaders[2] = {{.all = &in}, {.all = out.items[0].tensor}};
    const struct dp_loader load_in = {load, release, &loaders[0]}, load_out = {load, release, &loaders[1]};
    const struct dp_batch batch = {.rows = shape[0],
                                   .inputs = job->loads ? NULL : &inputs,
                                   .labels = job->loads ? NULL : &out,
                                   .input_loader = job->loads ? &load_in : NULL,
                                   .label_loader = job->loads ? &load_out : NULL};

    make_batch(step, x, y, classes);
    const int err =
        held_out ? dp_trainer_evaluate(t, &batch, held_out) : dp_trainer_step(t, &batch, result);
    return err || (!loaders[0].held && !loaders[1].held) ? err : DP_ESTATE;
}

static struct dp_trainer_config config_of(const struct job *job)
{
    return (struct dp_trainer_config){
        .schedule = {.kind = job->layout.kind, .recompute = job->layout.recompute},
        .replicas = job->layout.replicas,
        .microbatches = job->microbatches ? job->microbatches : MICROBATCHES,
        .rows = ROWS,
        .balance = job->measured  ? DP_BALANCE_MEASURED
                   : job->balance ? DP_BALANCE_GIVEN
                                  : DP_BALANCE_COST,
        .layers_of_stage = job->balance,
        .sums = job->layout.sums,
        .mixing.graph.name = "complete",
        .mixing.algorithm = job->algorithm,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW),
        .rate = {.peak = 0.02},
        .clip = job->layout.sums == DP_SUMS_MIXING ? 0.5 : 0,
        .fixed_order = true,
        .seed = 5,
        .checkpoint = {.folder = job->folder, .every = job->rarely ? 0 : 1, .keep = 2, .resume = job->folder,
                       .from = job->from, .on_signal = job->told_at},
        .loss_scale = job->scale,
        .dtype = {job->rounds ? kDLBfloat : 0, job->rounds ? 16 : 0, job->rounds},
        .delay_update = job->late,
        .offload = {.parameters = job->offloads, .activations = job->evicts,
                    .optimizer = job->moves_state, .folder = job->files ? "." : NULL,
                    .kept_share = job->kept_share, .device_bytes = job->budget},
    };
}

static int take_values(struct dp_trainer *t, struct curve *curve, bool mine)
{
    struct dp_named_tensor *all;
    int32_t count;
    size_t at = 0;
    int err = dp_trainer_gather(t, 0, &all, &count);

    for (int32_t i = 0; !err && i < count && mine; i++) {
        size_t n = 1;
        for (int k = 0; k < all[i].tensor.ndim; k++)
            n *= (size_t)all[i].tensor.shape[k];
        memcpy(curve->values + at, all[i].tensor.data, n * sizeof(float));
        at += n;
    }
    if (!err && mine)
        curve->tensors = count;
    if (!err)
        dp_trainer_gathered_free(all);
    return err;
}

/* The schedule of the config as a list. */
static int make_list(const struct job *job, struct dp_trainer_config *config,
                     struct dp_schedule **list)
{
    struct dp_schedule_spec spec = config->schedule;

    spec.ranks = job->layout.ranks;
    spec.microbatches = config->microbatches / config->replicas;
    spec.mirror_reduce = spec.reduce_all = !job->unreduced;
    config->schedule = (struct dp_schedule_spec){0};
    const int err = dp_schedule_new(&spec, list);
    config->list = err ? NULL : *list;
    return err;
}

/* What is measured before is what there is. */
static int check_bytes(struct dp_comm *comm, const struct dp_trainer *t,
                       struct dp_trainer_config config, const struct dp_model *model, int ranks)
{
    struct dp_trainer_parts parts;
    size_t bytes;

    config.schedule.ranks = config.list ? 0 : ranks;
    dp_trainer_parts(t, &parts);
    CHECK(!dp_trainer_measure(&config, model, parts.rank, &bytes));
    CHECK(bytes == parts.bytes && parts.schedule && parts.recorder);
    CHECK(parts.paces[comm ? dp_comm_rank(comm) : 0].step_ns > 0);
    return 0;
}

static int learn_on(struct dp_device *device, struct dp_comm *comm, const struct job *job)
{
    const bool mine = !comm || dp_comm_rank(comm) == 0;
    struct dp_trainer_config config = config_of(job);
    struct dp_schedule *list = NULL;
    struct dp_trainer_result r;
    struct dp_trainer *t;
    struct test_model m;
    struct test_range seen = {0};
    double held_out = 0;

    config.device = device;
    test_model_init(&m, job->model);
    if (device && !dp_device_host_accessible(device))
        test_model_use_device(&m, device);
    for (int i = 0; i < MODEL_LAYERS; i++) {
        m.users[i].seen =
            !device && job->budget && job->offloads && job->kept_share == 0 ? &seen : NULL;
        m.users[i].rounds = job->rounds;
    }
    if (job->freezes)
        m.parameters[0][0].flags = DP_PARAMETER_FROZEN;
    if (job->fail_mb)
        m.users[job->fail_layer].fail_mb = job->fail_mb;
    int err = job->lists ? make_list(job, &config, &list) : 0;
    if (!err)
        err = dp_trainer_new(&config, &m.model, comm, &t);
    if (err) {
        dp_schedule_free(list);
        return err;
    }
    while (!err && dp_trainer_next_step(t) < (job->stop ? job->stop : STEPS)) {
        const uint64_t step = dp_trainer_next_step(t);
        if (job->told_at == step + 1 && (!comm || dp_comm_rank(comm) == dp_comm_size(comm) - 1))
            raise(SIGTERM);
        err = with_batch(t, job, step, &r, NULL);
        if (!err && mine) {
            job->curve->scales[step] = r.loss_scale;
            job->curve->skipped[step] = r.skipped;
            job->curve->ending[step] = r.ending;
            job->curve->losses[step] = r.loss;
            job->curve->norms[step] = r.norm;
        }
    }
    if (!err && (job->late || job->lists) && job->layout.sums == DP_SUMS_ALL)
        err = check_bytes(comm, t, config, &m.model, job->layout.ranks) ? DP_ESTATE : 0;
    if (!err && !job->stop)
        err = with_batch(t, job, STEPS, NULL, &held_out);
    if (!err && !job->stop)
        err = dp_trainer_finish(t);
    if (!err)
        err = take_values(t, job->curve, mine);
    if (!err && (size_t)(seen.high - seen.low) > job->budget)
        err = dp_callback_error(DP_ESTATE, "parameters are spread over %zu bytes, expected %zu",
                                (size_t)(seen.high - seen.low), job->budget);
    if (mine)
        job->curve->held_out = held_out;
    dp_trainer_free(t);
    dp_schedule_free(list);
    return err;
}

static int learn(struct dp_comm *comm, const struct job *job)
{
    struct dp_device *device = NULL;
    int err = job->device ? dp_device_open(job->device, &device) : 0;

    if (!err)
        err = learn_on(device, comm, job);
    dp_device_close(device);
    return err;
}

static int rank_learns(struct dp_comm *comm, void *arg)
{
    CHECK(!learn(comm, arg));
    return 0;
}

static struct curve run(struct job job)
{
    struct curve curve = {.tensors = 0};
    const int size = job.layout.ranks * job.layout.replicas;

    job.curve = &curve;
    if (size == 1)
        assert_int_equal(learn(NULL, &job), 0);
    else if (comm_on_threads(size, timeout_ns, rank_learns, &job))
        fail_msg("model %d, %s, P = %d, D = %d, sums %d", job.model,
                 dp_schedule_kind_name(job.layout.kind), job.layout.ranks, job.layout.replicas,
                 job.layout.sums);
    return curve;
}

/* The norm of a gradient in shards is added up in another order. */
static void assert_same(const struct curve *a, const struct curve *b)
{
    for (int i = 0; i < STEPS; i++) {
        assert_memory_equal(&a->losses[i], &b->losses[i], sizeof(double));
        if (fabs(a->norms[i] - b->norms[i]) > 1e-14 * a->norms[i])
            fail_msg("step %d: norm %.17g and %.17g", i, a->norms[i], b->norms[i]);
    }
    assert_memory_equal(&a->held_out, &b->held_out, sizeof(double));
    assert_int_equal(a->tensors, b->tensors);
    assert_memory_equal(a->values, b->values, sizeof(a->values));
}

static void remove_folder(const char *folder)
{
    char command[SCRATCH_LEN + 16];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void make_folder(char path[SCRATCH_LEN])
{
    assert_true(scratch_directory(path, "trainer"));
}

static const struct layout one = {.ranks = 1, .replicas = 1};
static const struct layout layouts[] = {
    {DP_SCHEDULE_1F1B, 2, 1, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_GPIPE, 4, 1, DP_SUMS_ALL, DP_RECOMPUTE_ALWAYS},
    {DP_SCHEDULE_ZB1P, 4, 1, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_DUALPIPE, 2, 1, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_DUALPIPE, 4, 1, DP_SUMS_SHARDS, 0},
    {DP_SCHEDULE_DUALPIPEV, 2, 1, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_INTERLEAVED, 2, 1, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_ZBV, 2, 1, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_GPIPE, 1, 4, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_GPIPE, 1, 2, DP_SUMS_SHARDS, 0},
    {DP_SCHEDULE_1F1B, 2, 2, DP_SUMS_SHARDS, 0},
    {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_ALL, 0},
    {DP_SCHEDULE_DUALPIPEV, 2, 2, DP_SUMS_SHARDS, 0},
};
enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

static void every_layout_learns_the_same(void **state)
{
    (void)state;
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

static const char *no_cuda; /* why there is no simulated CUDA */

static const char *const devices[] = {"host:2", "cuda"};

/* Without NCCL: messages and sums go by the host. Norms are added up in another order. */
static void a_device_learns_what_the_host_learns(void **state)
{
    (void)state;
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
static void rounded_values_follow_the_values(void **state)
{
    static const struct layout mirrored = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_SHARDS, 0};

    (void)state;
    const struct curve expected = run((struct job){.model = MODEL_TIED, .layout = one});
    for (int i = 0; i < (no_cuda ? 2 : 4); i++) {
        const struct curve curve = run((struct job){.model = MODEL_TIED, .rounds = true,
                                                    .layout = i % 2 ? mirrored : one,
                                                    .device = i < 2 ? NULL : "cuda"});
        assert_same(&expected, &curve);
    }
}

/* However the data comes, wherever the model is cut, and with a parameter that stays as it was. */
static void loaders_cuts_and_frozen_parameters_change_no_number(void **state)
{
    (void)state;
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

static void a_schedule_that_is_made_before_changes_no_number(void **state)
{
    (void)state;
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
static void late_updates_are_the_same_in_every_layout(void **state)
{
    (void)state;
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
static void uneven_micro_batches_count_by_their_rows(void **state)
{
    (void)state;
    const struct curve a = run((struct job){.layout = one});
    const struct curve b = run((struct job){.layout = one, .microbatches = 4});

    for (int i = 0; i < STEPS; i++)
        assert_float_equal(a.losses[i], b.losses[i], 1e-4);
    assert_float_equal(a.held_out, b.held_out, 1e-4);
}

/* Replicas that mix are not one model, but a stage of theirs is the same however it is cut. */
static void replicas_that_mix_learn_the_same_in_every_pipeline(void **state)
{
    (void)state;
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

/* Two steps of the one, and what is left by the other. */
static void go_on(const struct curve *expected, struct job first, struct job then)
{
    char folder[SCRATCH_LEN];

    make_folder(folder);
    first.folder = then.folder = folder;
    first.stop = 2;
    struct curve before = run(first);
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

static void what_one_layout_saves_another_goes_on_from(void **state)
{
    (void)state;
    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        const struct curve expected = run((struct job){.model = model, .layout = one});
        for (int i = 0; i < LAYOUTS; i++)
            go_on(&expected, (struct job){.model = model, .layout = layouts[i]},
                  (struct job){.model = model, .layout = layouts[(i + 5) % LAYOUTS]});
    }
}

static void what_a_device_saves_another_goes_on_from(void **state)
{
    static const struct {
        int layouts[2];
        const char *devices[2];
    } rows[] = {{{3, 11}, {"cuda", NULL}}, {{12, 3}, {NULL, "cuda"}}, {{0, 5}, {"cuda", "cuda"}}};

    (void)state;
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

static void replicas_that_mix_go_on_as_they_were(void **state)
{
    (void)state;
    const struct layout mixing = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_MIXING, 0};
    const struct curve expected = run((struct job){.model = MODEL_SKIPS, .layout = mixing});
    char folder[SCRATCH_LEN];

    for (int d = 0; d < (no_cuda ? 1 : 2); d++) {
        const char *device = d ? "cuda" : NULL;
        make_folder(folder);
        run((struct job){.model = MODEL_SKIPS, .layout = mixing, .folder = folder, .stop = 2,
                         .device = device});
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

static void a_checkpoint_of_another_model_is_refused_on_every_rank(void **state)
{
    (void)state;
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

static void mirrors_need_reduces_where_replicas_sum(void **state)
{
    (void)state;
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

static void a_folder_without_a_checkpoint_leaves_no_rank_waiting(void **state)
{
    (void)state;
    char folder[SCRATCH_LEN];
    struct curve curve;
    struct job job = {.model = MODEL_TIED, .layout = layouts[3], .from = folder, .curve = &curve};

    make_folder(folder);
    assert_int_equal(comm_on_threads(2, timeout_ns, rank_finds_nothing, &job), 0);
    remove_folder(folder);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Wherever the clock cuts the model, and whatever steps on zeros have left. */
static void a_cut_by_measured_time_changes_no_number(void **state)
{
    (void)state;
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

enum { MOST_PLANS = 64 };

static int32_t plan(struct dp_trainer_config config, enum model_kind model, int ranks, size_t budget,
                    struct dp_trainer_plan out[MOST_PLANS])
{
    const struct dp_trainer_machine machine = {.ranks = ranks, .budget_bytes = budget, .latency_ns = 100};
    struct test_model m;
    int32_t count = 0;

    test_model_init(&m, model);
    assert_int_equal(dp_trainer_plan(&config, &m.model, &machine, out, MOST_PLANS, &count), 0);
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

static void layouts_are_ranked_by_their_predicted_step(void **state)
{
    (void)state;
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
            if (i % 5 == 0)
                assert_true(run((struct job){.model = model, .layout = layout, .stop = 1}).losses[0] > 0);
        }
        assert_true(least < most);
        assert_int_equal(plan(config, model, 2, least, some), count);
        assert_true(some[0].bytes == least && some[count - 1].bytes > least);
    }
    config.schedule.kind = DP_SCHEDULE_DUALPIPE;
    assert_int_equal(plan(config, MODEL_SKIPS, 2, 0, all), DP_RECOMPUTES);
    assert_true(all[0].kind == DP_SCHEDULE_DUALPIPE && all[0].ranks == 2);
    config.replicas = 2;
    assert_int_equal(plan(config, MODEL_SKIPS, 4, 0, all), DP_RECOMPUTES);
    assert_true(all[0].replicas == 2 && all[0].microbatches == MICROBATCHES);

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

/* ---- offload --------------------------------------------------------------------------------- */

/* What the sentence says that would do, for a budget of one byte; where nothing is chosen, all of it. */
static size_t least_bytes(const struct job *wanted)
{
    struct job job = *wanted;
    struct test_model m;
    struct dp_device *device = NULL;
    size_t bytes = 0;

    job.budget = 1;
    struct dp_trainer_config config = config_of(&job);
    config.schedule.ranks = job.layout.ranks;
    test_model_init(&m, job.model);
    if (job.device) {
        assert_int_equal(dp_device_open(job.device, &device), 0);
        test_model_use_device(&m, device);
        config.device = device;
    }
    if (dp_trainer_measure(&config, &m.model, 0, &bytes)) {
        const char *takes = strstr(dp_last_error(), " takes ");
        assert_true(takes && sscanf(takes, " takes %zu bytes", &bytes) == 1);
    }
    dp_device_close(device);
    return bytes;
}

/* The device holds a part of the model alone, under every schedule and way of summing. */
static void a_model_larger_than_the_device_learns_the_same(void **state)
{
    (void)state;
    static const struct layout mixing = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_MIXING, 0},
                               again = {DP_SCHEDULE_GPIPE, 1, 1, DP_SUMS_ALL, DP_RECOMPUTE_ALWAYS};
    const struct {
        bool parameters, activations, optimizer, file;
        double kept;
        bool rounds;
    } ways[] = {{true, false, false, false, 0, false}, {true, true, false, false, 0, false},
                {false, true, true, false, 0, false}, {true, false, false, false, 0.6, false},
                {true, false, true, true, 0.4, false}, {true, true, false, false, 0.4, true}};

    for (enum model_kind model = 0; model < MODEL_KINDS; model++)
        for (int i = -2 - (model < MODEL_TIED); i < LAYOUTS; i++) {
            const struct layout *layout = i < -2   ? &mixing
                                          : i < -1 ? &again
                                          : i < 0  ? &one
                                                   : &layouts[i];
            for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
                struct job job = {.model = model, .layout = *layout, .offloads = ways[way].parameters,
                                  .evicts = ways[way].activations, .moves_state = ways[way].optimizer,
                                  .kept_share = ways[way].kept, .files = ways[way].file,
                                  .rounds = ways[way].rounds};
                if ((job.evicts && (layout->recompute || (model == MODEL_SKIPS && i != -1))) ||
                    (job.files && layout->sums != DP_SUMS_ALL))
                    continue;
                const struct curve expected =
                    run((struct job){.model = model, .layout = *layout, .rounds = job.rounds});
                const bool on_cuda = !no_cuda && job.offloads && job.kept_share == 0 && !job.files;
                /* Twice what would do for every other one: on the host, on CUDA, by turns. */
                for (int k = 0; k < 1 + on_cuda; k++) {
                    job.device = k ? "cuda" : NULL;
                    job.budget = least_bytes(&job) << (((size_t)(i + 3) + way + (size_t)k) % 2);
                    printf("model %d, layout %d, way %zu: %zu bytes\n", model, i, way, job.budget);
                    const struct curve curve = run(job);
                    assert_same(&expected, &curve);
                }
            }
        }
}

/* What was saved with it is read without it, and the other way round. */
static void a_checkpoint_does_not_know_of_offload(void **state)
{
    (void)state;
    const struct curve expected = run((struct job){.model = MODEL_TIED, .layout = one});

    for (int i = 0; i < 2; i++) {
        char folder[SCRATCH_LEN];
        make_folder(folder);
        run((struct job){.model = MODEL_TIED, .layout = layouts[3], .folder = folder, .stop = 2,
                         .offloads = i});
        const struct curve after = run((struct job){.model = MODEL_TIED, .layout = layouts[8],
                                                    .folder = folder, .offloads = !i});
        assert_memory_equal(&expected.losses[2], &after.losses[2], 2 * sizeof(double));
        assert_memory_equal(expected.values, after.values, sizeof(after.values));
        remove_folder(folder);
    }
}

/* ---- loss scales and signals ----------------------------------------------------------------- */

/* A power of two changes no bit of what it is taken out of again. */
static void a_loss_scale_changes_no_number(void **state)
{
    (void)state;
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
static void an_overflow_skips_the_step_on_all_ranks(void **state)
{
    (void)state;
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

static void a_signal_saves_on_all_ranks(void **state)
{
    (void)state;
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
    (void)signal;
    told++;
}

static void the_programs_own_handler_stays(void **state)
{
    (void)state;
    signal(SIGTERM, note_that);
    const struct curve begun = run((struct job){.layout = one, .told_at = 1, .stop = 1});
    assert_true(begun.ending[0] && told == 1);
    raise(SIGTERM);
    assert_int_equal(told, 2);
    signal(SIGTERM, SIG_DFL);
}

/* ---- what fails ------------------------------------------------------------------------------ */

static int rank_hears_of_it(struct dp_comm *comm, void *arg)
{
    CHECK(learn(comm, arg));
    CHECK_SAYS("micro-batch 5");
    CHECK_SAYS("layer 6: it was to fail at micro-batch 5");
    if (dp_comm_size(comm) > 1)
        CHECK_SAYS("rank ");
    return 0;
}

static void a_failed_layer_is_named_on_every_rank(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * LAYOUTS; i++) {
        struct curve curve;
        struct job job = {.layout = layouts[i % LAYOUTS], .fail_layer = 6, .fail_mb = 6,
                          .curve = &curve, .device = i < LAYOUTS ? NULL : "cuda"};
        if (job.device && no_cuda)
            continue;
        if (comm_on_threads(job.layout.ranks * job.layout.replicas, timeout_ns, rank_hears_of_it,
                            &job))
            fail_msg("layout %d", i);
    }
}

static int learn_alone(void)
{
    struct curve curve;
    struct job job = {.model = MODEL_SKIPS, .layout = one, .curve = &curve, .offloads = true,
                      .evicts = true, .budget = 1 << 16, .microbatches = 1};

    return learn(NULL, &job);
}

static void every_allocation_that_fails_is_reported(void **state)
{
    (void)state;
    expect_every_failure_reported(learn_alone, 40);
}

static void *simulated(const char *name)
{
    void *library = dlopen(getenv("DUALPIPE_DEVICE_CUDA_LIBRARY"), RTLD_NOW);
    void *function = library ? dlsym(library, name) : NULL;

    assert_non_null(function);
    return function;
}

/* Alone, with checkpoints. */
static int learn_on_cuda(void)
{
    struct curve curve;
    char folder[SCRATCH_LEN];
    struct job job = {.model = MODEL_TIED, .layout = one, .curve = &curve, .device = "cuda",
                      .folder = folder, .stop = 1};

    make_folder(folder);
    int err = learn(NULL, &job);
    job.stop = 2; /* resumes */
    if (!err)
        err = learn(NULL, &job);
    remove_folder(folder);
    return err;
}

static void every_call_of_the_driver_that_fails_is_reported(void **state)
{
    static const char *const names[] = {"cuMemAlloc_v2", "cuMemHostAlloc",         "cuEventCreate", "cuEventRecord",
                                        "cuMemcpyAsync", "cuStreamWaitValue32_v2", "cuLaunchKernel"};
    enum { NO_MEMORY = 2 };
    void (*break_call)(const char *name, int call, int status);
    int (*calls)(const char *name);

    (void)state;
    if (no_cuda)
        skip_because(no_cuda);
    *(void **)&break_call = simulated("sim_fail");
    *(void **)&calls = simulated("sim_calls");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int n = 1;
        for (bool failed = true; failed; n += 1 + n / 4) {
            break_call(names[i], n, NO_MEMORY);
            const int err = learn_on_cuda();
            failed = calls(names[i]) >= n;
            if (failed != (err != 0))
                fail_msg("call %d of %s failed: %d, but the trainer says %d", n, names[i], failed, err);
        }
        assert_true(n > 4);
        break_call(names[i], 0, 0);
    }
}

struct poor {
    struct job job;
    int failing; /* allocation of rank 1 */
    bool failed; /* there were so many */
};

static int rank_is_poor(struct dp_comm *comm, void *arg)
{
    struct poor *poor = arg;
    const bool own = dp_comm_rank(comm) == 1;

    until_no_memory = own ? poor->failing : -1;
    const int err = learn(comm, &poor->job);
    if (own)
        poor->failed = until_no_memory < 0;
    until_no_memory = -1;
    CHECK(err != DP_ETIMEDOUT && err != DP_ECOMM);
    CHECK(!own || !poor->failed || err);
    return 0;
}

/* Wherever one rank has no memory, none waits for it. */
static void a_rank_without_memory_ends_the_step_on_all(void **state)
{
    (void)state;
    struct curve curve;
    struct poor poor = {.job = {.model = MODEL_TIED, .layout = {DP_SCHEDULE_DUALPIPE, 2, 2, 0, 0}}};

    poor.job.curve = &curve;
    do {
        assert_int_equal(comm_on_threads(4, timeout_ns, rank_is_poor, &poor), 0);
        poor.failing += 1 + poor.failing / 8;
    } while (poor.failed);
    assert_true(poor.failing > 100);
}

/* Each is refused with a sentence that names what is wrong. */
static void what_cannot_be_is_refused_by_name(void **state)
{
    (void)state;
    struct dp_layer bad = {0};
    struct dp_trainer *t = NULL;
    struct test_model m;
    struct dp_trainer_config c;
    const struct dp_trainer_config good = config_of(&(struct job){.layout = one});

    struct dp_device *dev = NULL;
    if (!no_cuda)
        assert_int_equal(dp_device_open("cuda", &dev), 0);

#define REFUSED(change, sentence)                                                                  \
    do {                                                                                           \
        test_model_init(&m, MODEL_TIED);                                                           \
        c = good;                                                                                  \
        change;                                                                                    \
        assert_true(dp_trainer_new(&c, &m.model, NULL, &t) < 0);                                   \
        if (!strstr(dp_last_error(), sentence))                                                    \
            fail_msg("'%s' does not say '%s'", dp_last_error(), sentence);                         \
    } while (0)
    REFUSED(c.rows = 0, "rows: 0");
    REFUSED(c.rows = 7, "microbatches: 8");
    REFUSED(c.stream = (void *)&c, "stream: set, expected a device");
    REFUSED(c.dtype = ((DLDataType){kDLFloat, 32, 1}), "dtype: of 32 bits");
    REFUSED(c.nccl = true, "nccl: set, expected a device of CUDA");
    if (dev) {
        REFUSED(c.device = dev; c.offload.optimizer = true, "offload: optimizer or kept_share on");
        REFUSED(c.device = dev; c.delay_update = true, "delay_update: on a device of CUDA");
        REFUSED(c.device = dev; c.optimizer.kind = DP_OPTIMIZER_ACCUM_ADAM,
                "accum-adam of 32 bits on a device");
        c = good;
        c.device = dev;
        test_model_init(&m, MODEL_TIED); /* with losses for the host's memory */
        test_model_use_device(&m, dev);
        m.model.loss = dp_loss_cross_entropy();
        assert_int_equal(dp_trainer_new(&c, &m.model, NULL, &t), 0);
        assert_true(with_batch(t, &(struct job){.model = MODEL_TIED}, 0, NULL, NULL) < 0);
        assert_non_null(strstr(dp_last_error(), "expected a loss with kernels of its own"));
        dp_trainer_free(t);
        dp_device_close(dev);
    }
    REFUSED(c.replicas = 2, "replicas: 2");
    REFUSED(c.clip = NAN, "clip");
    REFUSED(c.offload.parameters = true; c.offload.device_bytes = 100, "offload: rank 0 takes ");
    REFUSED(c.offload.activations = true, "offload.activations: without offload.device_bytes");
    REFUSED(c.offload.optimizer = true; c.offload.kept_share = 0.5, "offload.kept_share: 0.5");
    REFUSED(c.offload.folder = ".", "offload.folder: '.'");
    REFUSED(c.offload.parameters = true; c.offload.layers = 1, "offload.layers: 1, expected 2 or more");
    REFUSED(c.offload.device_bytes = 4096, "offload.device_bytes: 4096, expected offload.parameters");
    REFUSED(c.survive = true; c.sums = DP_SUMS_SHARDS, "survive: with shards");
    REFUSED(c.survive = true, "survive: with one replica");
    REFUSED(c.loss_scale.scale = 2, "loss_scale: 2");
    REFUSED(c.order_blocks = 3, "order_blocks: 3");
    REFUSED(c.checkpoint.resume = true, "checkpoint.resume");
    REFUSED(c.rate.kind = DP_RATE_STEP, "period");
    REFUSED(c.schedule.skip_count = 1; c.schedule.microbatches = 2, "schedule: microbatches");
    REFUSED(c.balance = DP_BALANCE_GIVEN, "layers_of_stage: NULL");
    REFUSED(m.model.layer_count = 0, "layers: 0");
    REFUSED(m.model.loss = NULL, "loss");
    REFUSED(m.list[4] = &bad, "layer 4: no forward");
    REFUSED(m.model.input = NULL, "input: NULL");
    REFUSED(m.parameters[2][1].dtype.bits = 16, "layer 2, parameter 'b'");
    REFUSED(m.parameters[2][1].name = "b[0]", "'b[0]': expected a name without [");
    REFUSED(c.survive = true; c.schedule.rank_map = (const int[]){0}, "survive: with schedule.rank_map");
    REFUSED(m.parameters[7][0].tied = "nothing", "tied to 'nothing'");
    REFUSED(m.parameters[7][0].shape[0] = 3, "'layer 7 w': of another type");
    REFUSED(m.layers[3].name = "table", "a parameter 'table w' already");
    REFUSED(m.skips[0] = ((struct dp_layer_skip){"s", 3, 3, m.labels.tensors[0]}); m.model.skip_count = 1,
            "skip 's': from layer 3 to 3");
    c = good;
    c.schedule.ranks = 1;
    test_model_init(&m, MODEL_TIED);
    size_t bytes;
    assert_int_equal(dp_trainer_measure(&c, &m.model, 1, &bytes), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "rank: 1, expected 0 to 0"));
    test_model_init(&m, MODEL_SKIPS);
    m.users[4].pop = "far";
    assert_int_equal(dp_trainer_new(&good, &m.model, NULL, &t), 0);
    assert_true(with_batch(t, &(struct job){.model = MODEL_SKIPS}, 0, NULL, NULL) < 0);
    assert_non_null(strstr(dp_last_error(), "layer 4: skip 'far'"));
    dp_trainer_free(t);
}

int main(void)
{
    no_cuda = use_sim_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_learns_the_same),
        cmocka_unit_test(a_device_learns_what_the_host_learns),
        cmocka_unit_test(rounded_values_follow_the_values),
        cmocka_unit_test(loaders_cuts_and_frozen_parameters_change_no_number),
        cmocka_unit_test(a_schedule_that_is_made_before_changes_no_number),
        cmocka_unit_test(late_updates_are_the_same_in_every_layout),
        cmocka_unit_test(uneven_micro_batches_count_by_their_rows),
        cmocka_unit_test(replicas_that_mix_learn_the_same_in_every_pipeline),
        cmocka_unit_test(what_one_layout_saves_another_goes_on_from),
        cmocka_unit_test(what_a_device_saves_another_goes_on_from),
        cmocka_unit_test(replicas_that_mix_go_on_as_they_were),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused_on_every_rank),
        cmocka_unit_test(mirrors_need_reduces_where_replicas_sum),
        cmocka_unit_test(a_folder_without_a_checkpoint_leaves_no_rank_waiting),
        cmocka_unit_test(a_cut_by_measured_time_changes_no_number),
        cmocka_unit_test(layouts_are_ranked_by_their_predicted_step),
        cmocka_unit_test(a_model_larger_than_the_device_learns_the_same),
        cmocka_unit_test(a_checkpoint_does_not_know_of_offload),
        cmocka_unit_test(a_loss_scale_changes_no_number),
        cmocka_unit_test(an_overflow_skips_the_step_on_all_ranks),
        cmocka_unit_test(a_signal_saves_on_all_ranks),
        cmocka_unit_test(the_programs_own_handler_stays),
        cmocka_unit_test(a_failed_layer_is_named_on_every_rank),
        cmocka_unit_test(every_allocation_that_fails_is_reported),
        cmocka_unit_test(every_call_of_the_driver_that_fails_is_reported),
        cmocka_unit_test(a_rank_without_memory_ends_the_step_on_all),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
