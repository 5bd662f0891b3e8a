/* SPDX-License-Identifier: Apache-2.0
 *
 * The trainer on ranks that are processes with a simulated GPU each, over the real libnccl: messages, sums,
 * shards and mixing from GPU to GPU. Every rank trains the same model twice, on the host and on its GPU, and
 * the numbers are the same to the last bit (norms, which are added up in another order, to rounding). While
 * a step is queued the host waits for nothing; with shards and mixing it asks what the step before has sent.
 */
#include "simcuda/nccl_ranks.h"
#include "unit/trainer/trainer_models.h"

#include "cmocka_all.h"

#include <dualpipe/trainer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, ROWS = 16, MICROBATCHES = 8, MAX_VALUES = 600 };
static const char *why_not;

struct layout {
    enum model_kind model;
    enum dp_schedule_kind kind;
    int ranks, replicas;
    enum dp_sums sums;
    bool fails; /* a layer, in the second step */
    enum dp_mixer_algorithm algorithm;
};

struct curve {
    double losses[STEPS], norms[STEPS], held_out;
    float values[MAX_VALUES];
};

static int with_batch(struct dp_trainer *t, enum model_kind model, uint64_t step,
                      struct dp_trainer_result *r, double *held_out)
{
    static const DLDataType f32 = {kDLFloat, 32, 1}, u8 = {kDLUInt, 8, 1};
    static float x[ROWS][MODEL_WIDTH], y[ROWS][MODEL_WIDTH];
    static uint8_t classes[ROWS];
    int64_t shape[] = {step == 1 ? ROWS - 3 : ROWS, MODEL_WIDTH};
    const DLDevice cpu = {kDLCPU, 0};
    const DLTensor in = {x, cpu, 2, f32, shape, NULL, 0}, wanted = {y, cpu, 2, f32, shape, NULL, 0},
                   labels = {classes, cpu, 1, u8, shape, NULL, 0};
    const struct dp_tree inputs = dp_tuple(1, (struct dp_tree[]){dp_tensor(&in)});
    const struct dp_tree out =
        dp_tuple(1, (struct dp_tree[]){dp_tensor(model == MODEL_TIED ? &labels : &wanted)});
    const struct dp_batch batch = {.rows = shape[0], .inputs = &inputs, .labels = &out};

    for (int i = 0; i < ROWS * MODEL_WIDTH; i++) {
        x[i / MODEL_WIDTH][i % MODEL_WIDTH] = sinf((float)(3 * i + 1) * (float)(step + 1));
        y[i / MODEL_WIDTH][(i + 1) % MODEL_WIDTH] = x[i / MODEL_WIDTH][i % MODEL_WIDTH];
        classes[i / MODEL_WIDTH] = (uint8_t)(i * (int)(step + 3) % MODEL_WIDTH);
    }
    return held_out ? dp_trainer_evaluate(t, &batch, held_out) : dp_trainer_step(t, &batch, r);
}

static int take_values(struct dp_trainer *t, struct curve *curve)
{
    struct dp_named_tensor *all = NULL;
    int32_t count;
    float *at = curve->values;
    const int err = dp_trainer_gather(t, 0, &all, &count);

    for (int32_t i = 0; !err && i < count; i++) {
        size_t n = 1;
        for (int k = 0; k < all[i].tensor.ndim; k++)
            n *= (size_t)all[i].tensor.shape[k];
        memcpy(at, all[i].tensor.data, n * sizeof(float));
        at += n;
    }
    dp_trainer_gathered_free(all);
    return err;
}

/* device NULL: on the host. */
static int learn(const struct layout *l, struct dp_comm *comm, struct dp_device *device,
                 struct curve *curve)
{
    const struct dp_trainer_config config = {
        .schedule.kind = l->kind,
        .replicas = l->replicas,
        .microbatches = MICROBATCHES,
        .rows = ROWS,
        .sums = l->sums,
        .mixing.graph.name = "complete",
        .mixing.algorithm = l->algorithm,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW),
        .rate = {.peak = 0.02},
        .fixed_order = true,
        .seed = 5,
        .device = device,
        .nccl = device,
    };
    struct dp_trainer_result r;
    struct dp_trainer *t = NULL;
    struct test_model m;

    *curve = (struct curve){.held_out = 0};
    test_model_init(&m, l->model);
    if (device)
        test_model_use_device(&m, device);
    int err = dp_trainer_new(&config, &m.model, comm, &t);
    for (int i = 0; i < MODEL_LAYERS; i++)
        m.users[i].waits = device && l->sums == DP_SUMS_ALL ? nccl_ranks_waits : NULL;
    for (uint64_t step = 0; step < STEPS && !err; step++) {
        nccl_ranks_count_waits();
        m.users[6].fail_mb = l->fails && step == 1 ? 4 : 0;
        err = with_batch(t, l->model, step, &r, NULL);
        curve->losses[step] = r.loss;
        curve->norms[step] = r.norm;
    }
    nccl_ranks_count_waits();
    if (!err)
        err = with_batch(t, l->model, STEPS, NULL, &curve->held_out);
    if (!err)
        err = dp_trainer_finish(t);
    if (!err)
        err = take_values(t, curve);
    dp_trainer_free(t);
    return err;
}

static int learn_twice(struct dp_comm *comm, void *arg)
{
    static struct curve host, gpu;
    const struct layout *l = arg;
    struct dp_device *device;

    CHECK(!learn(l, comm, NULL, &host));
    CHECK(!dp_device_cuda_open(0, &device));
    CHECK(!learn(l, comm, device, &gpu));
    dp_device_close(device);
    for (int i = 0; i < STEPS; i++) {
        CHECK(host.losses[i] == gpu.losses[i]);
        CHECK(fabs(host.norms[i] - gpu.norms[i]) <= 1e-14 * host.norms[i]);
    }
    CHECK(host.held_out == gpu.held_out);
    CHECK(!memcmp(host.values, gpu.values, sizeof(host.values)));
    return 0;
}

static int learn_in_vain(struct dp_comm *comm, void *arg)
{
    static struct curve gpu;
    struct dp_device *device;

    CHECK(!dp_device_cuda_open(0, &device));
    CHECK(learn(arg, comm, device, &gpu));
    CHECK_SAYS("layer 6: it was to fail at micro-batch 3");
    CHECK(gpu.losses[0] > 0);
    dp_device_close(device);
    return 0;
}

/* Others have queued what waits for it by then. */
static void a_failed_layer_is_named_on_every_rank(void **state)
{
    struct layout l = {MODEL_MLP, DP_SCHEDULE_DUALPIPE, 2, 1, DP_SUMS_ALL, true, 0};
    int killed;

    (void)state;
    if (why_not)
        skip_because(why_not);
    assert_int_equal(nccl_ranks_run_hosts(2, learn_in_vain, &l, &killed), 0);
}

static void learn_on_gpus(const struct layout *layouts, int count)
{
    int killed;

    if (why_not)
        skip_because(why_not);
    for (int i = 0; i < count; i++) {
        struct layout l = layouts[i];
        if (i > 1 && !getenv("DP_TEST_FULL"))
            break;
        if (nccl_ranks_run_hosts(l.ranks * l.replicas, learn_twice, &l, &killed))
            fail_msg("model %d, %s, P = %d, D = %d, sums %d", l.model, dp_name(DP_NAMES_SCHEDULE, l.kind),
                     l.ranks, l.replicas, l.sums);
    }
}

static void pipelines_learn_what_the_host_learns(void **state)
{
    static const struct layout layouts[] = {
        {MODEL_SKIPS, DP_SCHEDULE_DUALPIPE, 2, 1, DP_SUMS_ALL, false, 0},
        {MODEL_TIED, DP_SCHEDULE_DUALPIPE, 2, 1, DP_SUMS_SHARDS, false, 0},
        {MODEL_TIED, DP_SCHEDULE_ZBV, 2, 1, DP_SUMS_ALL, false, 0},
    };

    (void)state;
    learn_on_gpus(layouts, 3);
}

static void replicas_learn_what_the_host_learns(void **state)
{
    static const struct layout layouts[] = {
        {MODEL_TIED, DP_SCHEDULE_GPIPE, 1, 2, DP_SUMS_ALL, false, 0},
        {MODEL_SKIPS, DP_SCHEDULE_1F1B, 2, 2, DP_SUMS_SHARDS, false, 0},
        {MODEL_MLP, DP_SCHEDULE_GPIPE, 1, 2, DP_SUMS_SHARDS, false, 0},
        {MODEL_TIED, DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_ALL, false, 0},
    };

    (void)state;
    learn_on_gpus(layouts, 4);
}

static void replicas_that_mix_learn_what_the_host_learns(void **state)
{
    static const struct layout layouts[] = {
        {MODEL_SKIPS, DP_SCHEDULE_1F1B, 1, 2, DP_SUMS_MIXING, false, 0},
        {MODEL_TIED, DP_SCHEDULE_1F1B, 1, 2, DP_SUMS_MIXING, false, DP_MIXER_LOCAL_SGD},
        {MODEL_MLP, DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_MIXING, false, 0},
    };

    (void)state;
    learn_on_gpus(layouts, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelines_learn_what_the_host_learns),
        cmocka_unit_test(replicas_learn_what_the_host_learns),
        cmocka_unit_test(replicas_that_mix_learn_what_the_host_learns),
        cmocka_unit_test(a_failed_layer_is_named_on_every_rank),
    };

    why_not = nccl_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
