/* SPDX-License-Identifier: Apache-2.0
 *
 * What fails on one rank of the trainer, or in one layer, every rank gets to know; and what cannot be is
 * refused by name.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "unit/base/failing_memory.h"
#include "trainer_run.h"
#include "use_sim_cuda.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *no_cuda; /* why there is no simulated CUDA */

static int rank_hears_of_it(struct dp_comm *comm, void *arg)
{
    CHECK(learn(comm, arg));
    CHECK_SAYS("micro-batch 5");
    CHECK_SAYS("layer 6: it was to fail at micro-batch 5");
    if (dp_comm_size(comm) > 1)
        CHECK_SAYS("rank ");
    return 0;
}

CASE(a_failed_layer_is_named_on_every_rank)
{
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

CASE(every_allocation_that_fails_is_reported)
{
    expect_every_failure_reported(learn_alone, 40);
}

static int plan_two_ranks(void)
{
    const struct dp_trainer_machine machine = {.ranks = 2};
    const struct dp_trainer_config config = config_of(&(struct job){.layout = layouts[0]});
    struct dp_trainer_plan *plans;
    struct test_model m;
    int32_t count;

    test_model_init(&m, MODEL_SKIPS);
    const int err = dp_trainer_plan(&config, &m.model, &machine, &plans, &count);
    if (!err)
        dp_trainer_plan_free(plans, count);
    return err;
}

CASE(a_plan_of_what_cannot_be_trained_is_refused)
{
    const struct dp_trainer_config good = config_of(&(struct job){.layout = layouts[0]});
    struct dp_trainer_config config[4] = {good, good, good, good};
    static const char *const said[] = {"list: set", "schedule: microbatches", "rows: 1",
                                       "no layout of 2 ranks"};
    struct dp_trainer_machine machine = {.ranks = 2};
    struct dp_trainer_plan *plans;
    struct dp_schedule *list;
    struct test_model m;
    int32_t count;

    test_model_init(&m, MODEL_SKIPS);
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 2}, &list), 0);
    config[0].list = list;
    config[1].schedule.microbatches = 4;
    config[2].rows = 1;
    config[3].schedule.kind = DP_SCHEDULE_DUALPIPE;
    config[3].microbatches = 3;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(dp_trainer_plan(&config[i], &m.model, &machine, &plans, &count), DP_EINVAL);
        if (!strstr(dp_last_error(), said[i]))
            fail_msg("%s, expected %s", dp_last_error(), said[i]);
    }
    dp_schedule_free(list);
}

CASE(every_allocation_of_a_plan_that_fails_is_reported)
{
    expect_every_failure_reported(plan_two_ranks, 40);
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

CASE(every_call_of_the_driver_that_fails_is_reported)
{
    static const char *const names[] = {"cuMemAlloc_v2", "cuMemHostAlloc",         "cuEventCreate", "cuEventRecord",
                                        "cuMemcpyAsync", "cuStreamWaitValue32_v2", "cuLaunchKernel"};
    enum { NO_MEMORY = 2 };
    void (*break_call)(const char *name, int call, int status);
    int (*calls)(const char *name);

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

/* ---- layers without a trainer ---------------------------------------------------------------- */

CASE(a_run_of_no_layers_is_refused)
{
    static const struct { int32_t first, end; } runs[] = {
        {-1, 1}, {0, 0}, {2, 1}, {0, MODEL_LAYERS + 1}, {MODEL_LAYERS, MODEL_LAYERS + 1}};
    struct dp_layers *layers;
    struct dp_stage stage;
    struct test_model m;

    test_model_init(&m, MODEL_MLP);
    struct dp_layers_config config = {.model = &m.model};
    assert_int_equal(dp_layers_new(&config, &layers), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "0 rows, expected at least 1"));
    config.rows = 2;
    assert_int_equal(dp_layers_new(&(struct dp_layers_config){.rows = 2}, &layers), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "no model"));
    assert_int_equal(dp_layers_new(&config, &layers), 0);
    assert_int_equal(dp_layers_add(layers, 0, 1, NULL), DP_EINVAL);
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++)
        assert_int_equal(dp_layers_add(layers, runs[i].first, runs[i].end, &stage), DP_EINVAL);
    assert_int_equal(dp_layers_add(layers, 0, MODEL_LAYERS, &stage), 0);
    dp_layers_free(layers);
    m.model.layer_count = 0;
    assert_int_equal(dp_layers_new(&config, &layers), DP_EINVAL);
    test_model_init(&m, MODEL_TIED);
    assert_int_equal(dp_layers_new(&config, &layers), 0);
    assert_int_equal(dp_layers_add(layers, 0, MODEL_LAYERS, &stage), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "batch norms"));
    dp_layers_free(layers);
}

/* Bare ones are as the others, but for the memory. */
CASE(layers_without_memory_are_an_error)
{
    struct dp_layers *layers;
    struct dp_stage stage, bare = {0};
    struct test_model m;
    int err, failures = 0;

    test_model_init(&m, MODEL_SKIPS);
    struct dp_layers_config config = {
        .model = &m.model, .rows = 2, .bare = true, .dtype = {kDLBfloat, 16, 1}};
    assert_int_equal(dp_layers_new(&config, &layers), 0);
    assert_int_equal(dp_layers_add(layers, 1, MODEL_LAYERS, &bare), 0);
    assert_null(bare.parameters[0].value->data);
    dp_layers_free(layers);
    config.bare = false;
    do {
        layers = NULL;
        until_no_memory = failures++;
        err = dp_layers_new(&config, &layers);
        err = err ? err : dp_layers_add(layers, 1, MODEL_LAYERS, &stage);
        until_no_memory = -1;
        assert_true(!err || err == DP_ENOMEM);
        if (!err) {
            assert_int_equal(stage.save_bytes, bare.save_bytes);
            assert_int_equal(stage.parameter_count, bare.parameter_count);
            assert_non_null(stage.parameters[0].value->data);
        }
        dp_layers_free(layers);
    } while (err);
    assert_true(failures > 10);
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
CASE(a_rank_without_memory_ends_the_step_on_all)
{
    struct curve curve;
    struct poor poor = {.job = {.model = MODEL_TIED, .layout = {DP_SCHEDULE_DUALPIPE, 2, 2, 0, 0}}};

    poor.job.curve = &curve;
    do {
        assert_int_equal(comm_on_threads(4, timeout_ns, rank_is_poor, &poor), 0);
        poor.failing += 1 + poor.failing / 8;
    } while (poor.failed);
    assert_true(poor.failing > 100);
}

/* One rank asks for what this release does not know: in the config, a batch to learn, one to evaluate. */
static int ask_for_what_is_not_known(struct dp_comm *comm, void *arg)
{
    struct job job = {.model = MODEL_TIED, .layout = layouts[0]};
    const bool asks = dp_comm_rank(comm) == 1;
    LATER(dp_trainer_config) config = {config_of(&job), asks};
    struct dp_trainer *t = NULL;
    struct test_model m;
    double loss;

    test_model_init(&m, job.model);
    CHECK(dp_trainer_new_sized(&config.known, &m.model, comm, &t, sizeof(config)) == DP_EINVAL && !t);
    CHECK_SAYS("struct dp_trainer_config of");
    job.unknown = asks;
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        /* The other one may still be in there when the batch ends the run. */
        t = NULL;
        int err = dp_trainer_new(&config.known, &m.model, comm, &t);
        CHECK(!err || (!asks && err == DP_EABORTED));
        err = err ? err : with_batch(t, &job, 0, NULL, evaluates ? &loss : NULL);
        CHECK(err == (asks ? DP_EINVAL : DP_EABORTED));
        CHECK_SAYS("struct dp_batch of");
        dp_trainer_free(t);
        CHECK(!dp_comm_reset(comm));
    }
    CHECK(!dp_trainer_new(&config.known, &m.model, comm, &t));
    job.unknown = false;
    CHECK(!with_batch(t, &job, 0, NULL, NULL) && !with_batch(t, &job, 0, NULL, &loss));
    dp_trainer_free(t);
    return 0;
}

CASE(what_is_not_known_of_a_config_or_batch_fails_on_all_ranks)
{
    assert_int_equal(comm_on_threads(2, timeout_ns, ask_for_what_is_not_known, NULL), 0);
}

/* Each is refused with a sentence that names what is wrong. */
CASE(what_cannot_be_is_refused_by_name)
{
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
    c.rows = 0;
    test_model_init(&m, MODEL_TIED);
    size_t bytes;
    assert_int_equal(dp_trainer_measure(&c, &m.model, &bytes), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "rows: 0, expected"));
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
    return run_cases(NULL, NULL);
}
