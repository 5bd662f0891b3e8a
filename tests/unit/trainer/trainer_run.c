/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"
#include "microbatch/internal.h"

#include "unit/comm/comm_group.h"
#include "trainer_run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

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

    if (dp_cut_window(DP_CUT_TENSOR_SPLIT, l->all->shape[0], MICROBATCHES, mb, &begin, &size) ||
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

    l->held--;
}

int with_batch(struct dp_trainer *t, const struct job *job, uint64_t step,
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
    const LATER(dp_batch) batch = {{.rows = shape[0],
                                    .inputs = job->loads ? NULL : &inputs,
                                    .labels = job->loads ? NULL : &out,
                                    .input_loader = job->loads ? &load_in : NULL,
                                    .label_loader = job->loads ? &load_out : NULL}, job->unknown};

    make_batch(step, x, y, classes);
    const int err = held_out ? dp_trainer_evaluate_sized(t, &batch.known, held_out, sizeof(batch))
                             : dp_trainer_step_sized(t, &batch.known, result, sizeof(batch),
                                                     sizeof(*result));
    return err || (!loaders[0].held && !loaders[1].held) ? err : DP_ESTATE;
}

struct dp_trainer_config config_of(const struct job *job)
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
    size_t bytes[16];

    config.schedule.ranks = config.list ? 0 : ranks;
    dp_trainer_parts(t, &parts);
    CHECK(ranks <= 16 && !dp_trainer_measure(&config, model, bytes));
    CHECK(bytes[parts.rank] == parts.bytes && parts.schedule && parts.recorder);
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

int learn(struct dp_comm *comm, const struct job *job)
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

struct curve run(struct job job)
{
    struct curve curve = {.tensors = 0};
    const int size = job.layout.ranks * job.layout.replicas;

    job.curve = &curve;
    if (size == 1)
        assert_int_equal(learn(NULL, &job), 0);
    else if (comm_on_threads(size, timeout_ns, rank_learns, &job))
        fail_msg("model %d, %s, P = %d, D = %d, sums %d", job.model,
                 dp_name(DP_NAMES_SCHEDULE, job.layout.kind), job.layout.ranks, job.layout.replicas,
                 job.layout.sums);
    return curve;
}

void assert_same(const struct curve *a, const struct curve *b)
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

void remove_folder(const char *folder)
{
    char command[SCRATCH_LEN + 16];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

void make_folder(char path[SCRATCH_LEN])
{
    assert_true(scratch_directory(path, "trainer"));
}

const struct layout one = {.ranks = 1, .replicas = 1};
const struct layout layouts[LAYOUTS] = {
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
