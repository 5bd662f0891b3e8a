/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of `dualpipe train` learns exactly the same, to the last bit, by the library's trainer under
 * every schedule, with every number of ranks and over every communicator as in a plain loop: losses,
 * gradient norms, held-out losses and, in the end, all weights. Replicas of a pipeline that mix their
 * weights keep the mean of each.
 */
#include "cmocka_all.h"

#include "gpt_sequential.h"
#include "unit/comm/comm_group.h"

#include <dualpipe/trainer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STEPS = 5, MICROBATCHES = 8, SEQUENCES = 16, MAX_WEIGHTS = 40000 };

static const struct gpt_config config = {
    .layers = 8, .width = 8, .heads = 2, .context = 6, .batch = SEQUENCES / MICROBATCHES,
    .dropout = 0.2f, .seed = 42};
static const uint64_t warmup = 2;
static const double peak = 0.01, decay = 0.1, clip = 0.5;

/* What a run came to; in memory that processes share. */
struct curve {
    double losses[STEPS], norms[STEPS], held_out;
    size_t weights_len;
    real weights[MAX_WEIGHTS];
};

static struct curve *curve_new(void)
{
    void *map = mmap(NULL, sizeof(struct curve), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    return map;
}

static void curve_free(struct curve *c)
{
    munmap(c, sizeof(*c));
}

static struct data make_data(void)
{
    struct data d = {.len = 3000, .window = (size_t)config.context + 1, .seed = config.seed,
                     .chunks = 1, .chunk_len = 3000, .held_len = 300};

    d.bytes = malloc(d.len);
    for (size_t i = 0; i < d.len; i++)
        d.bytes[i] = (uint8_t)("to be or not to be, that is the question: "[i * i % 41]);
    return d;
}

static double mean_of(const double *losses)
{
    double sum = 0;

    for (int mb = 0; mb < MICROBATCHES; mb++)
        sum += losses[mb];
    return sum / MICROBATCHES;
}

/* Of the whole gradient, which is added up layer by layer. */
static double norm_of(const struct sequential *s)
{
    const struct dp_model *model = gpt_layers_model(s->gpt);
    const struct dp_parameter *at = s->model.parameters;
    double squares[DP_LAYER_PARAMETERS], sum = 0;
    bool all[DP_LAYER_PARAMETERS];

    memset(all, true, sizeof(all));
    for (int32_t i = 0; i < model->layer_count; i++) {
        const int32_t count = model->layers[i]->parameter_count;
        assert_int_equal(dp_gradient_squares(at, count, squares), 0);
        sum += dp_gradient_sum(at, count, all, squares);
        at += count;
    }
    return sqrt(sum);
}

static void learn_sequentially(struct curve *curve)
{
    const struct dp_optimizer_config adamw = gpt_optimizer(decay);
    uint8_t tokens[SEQUENCES * 6], labels[SEQUENCES * 6];
    struct batch batch = {tokens, labels};
    double losses[MICROBATCHES], sum = 0;
    struct data data = make_data();
    struct dp_optimizer *o;
    struct sequential *s;

    assert_int_equal(sequential_new(&config, MICROBATCHES, 2, &s), 0);
    assert_int_equal(
        dp_optimizer_new(&adamw, s->model.parameters, s->model.parameter_count, &o), 0);
    for (uint64_t step = 0; step < STEPS; step++) {
        data_batch(&data, DATA_TRAIN, step, SEQUENCES, &batch);
        assert_int_equal(sequential_train(s, &batch, losses), 0);
        curve->losses[step] = mean_of(losses);
        curve->norms[step] = norm_of(s);
        const struct dp_optimizer_step how = {.rate = gpt_rate(step, STEPS, warmup, peak),
                                              .scale = dp_clip_factor(curve->norms[step], clip, 0),
                                              .zero_grads = true};
        assert_int_equal(dp_optimizer_step(o, &how), 0);
    }
    for (uint64_t i = 0; i < HELD_OUT_BATCHES; i++) {
        data_batch(&data, DATA_HELD_OUT, i, SEQUENCES, &batch);
        assert_int_equal(sequential_evaluate(s, &batch, losses), 0);
        sum += mean_of(losses);
    }
    curve->held_out = sum / HELD_OUT_BATCHES;
    assert_true(gpt_parameter_count(&config) <= MAX_WEIGHTS);
    curve->weights_len = sequential_read(&s->model, false, curve->weights);
    dp_optimizer_free(o);
    sequential_free(s);
    free(data.bytes);
}

struct setup {
    enum dp_schedule_kind kind;
    int ranks;
    bool any_order;
    struct curve *curve;
};

/* One after the other, in the order of layers. */
static int take_weights(struct dp_comm *comm, struct dp_trainer *t, struct curve *curve)
{
    struct dp_named_tensor *tensors;
    int32_t count;
    size_t at = 0;

    CHECK(!dp_trainer_gather(t, 0, &tensors, &count));
    for (int32_t i = 0; i < count; i++) {
        const size_t len = (size_t)(tensors[i].tensor.shape[0] * tensors[i].tensor.shape[1]);
        CHECK(at + len <= MAX_WEIGHTS);
        memcpy(curve->weights + at, tensors[i].tensor.data, len * sizeof(real));
        at += len;
    }
    if (tensors)
        curve->weights_len = at;
    dp_trainer_gathered_free(tensors);
    return 0;
}

static int take_steps(struct dp_comm *comm, struct dp_trainer *t, double rate, struct curve *curve)
{
    uint8_t tokens[SEQUENCES * 6], labels[SEQUENCES * 6];
    int64_t shape[] = {SEQUENCES, config.context};
    struct batch batch = {tokens, labels};
    const DLTensor views[] = {{tokens, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0},
                              {labels, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0}};
    const struct dp_tree in = dp_tuple(1, (struct dp_tree[]){dp_tensor(&views[0])}),
                         out = dp_tuple(1, (struct dp_tree[]){dp_tensor(&views[1])});
    const struct dp_batch all = {.inputs = &in, .labels = &out};
    struct data data = make_data();
    struct dp_trainer_result r;
    double loss, sum = 0;

    CHECK(config.context == 6);
    for (uint64_t step = 0; step < STEPS; step++) {
        data_batch(&data, DATA_TRAIN, step, SEQUENCES, &batch);
        dp_trainer_set_rate(t, gpt_rate(step, STEPS, warmup, rate));
        CHECK(!dp_trainer_step(t, &all, &r));
        curve->losses[step] = r.loss;
        curve->norms[step] = r.norm;
    }
    for (uint64_t i = 0; i < HELD_OUT_BATCHES; i++) {
        data_batch(&data, DATA_HELD_OUT, i, SEQUENCES, &batch);
        CHECK(!dp_trainer_evaluate(t, &all, &loss));
        sum += loss;
    }
    curve->held_out = sum / HELD_OUT_BATCHES;
    free(data.bytes);
    return 0;
}

/* One rank of the library's trainer; curves are the same on all. */
static int learn_pipelined(struct dp_comm *comm, void *arg)
{
    const struct setup *s = arg;
    struct dp_trainer_config how = {.schedule.kind = s->kind,
                                    .microbatches = MICROBATCHES,
                                    .rows = SEQUENCES,
                                    .optimizer = gpt_optimizer(decay),
                                    .clip = clip,
                                    .fixed_order = !s->any_order,
                                    .order_blocks = 2,
                                    .seed = config.seed};
    struct curve *curve = dp_comm_rank(comm) ? curve_new() : s->curve;
    struct gpt_layers *layers;
    struct dp_trainer *t;

    CHECK(!gpt_layers_new(&config, NULL, false, &layers));
    CHECK(!dp_trainer_new(&how, gpt_layers_model(layers), comm, &t));
    CHECK(!take_steps(comm, t, peak, curve) && !take_weights(comm, t, curve));
    dp_trainer_free(t);
    gpt_layers_free(layers);
    if (dp_comm_rank(comm))
        curve_free(curve);
    return 0;
}

static void run(const struct comm_kind *kind, enum dp_schedule_kind schedule, int ranks,
                bool any_order, struct curve *curve)
{
    struct setup setup = {schedule, ranks, any_order, curve};
    int killed;

    memset(curve, 0, sizeof(*curve));
    assert_int_equal(kind->run(kind, ranks, INT64_C(20000000000), learn_pipelined, &setup, &killed),
                     0);
}

static void assert_same(const struct curve *a, const struct curve *b)
{
    for (int i = 0; i < STEPS; i++) {
        assert_memory_equal(&a->losses[i], &b->losses[i], sizeof(double));
        assert_memory_equal(&a->norms[i], &b->norms[i], sizeof(double));
    }
    assert_memory_equal(&a->held_out, &b->held_out, sizeof(double));
    assert_int_equal(a->weights_len, b->weights_len);
    assert_memory_equal(a->weights, b->weights, a->weights_len * sizeof(real));
}

CASE(every_schedule_learns_what_the_plain_loop_learns)
{
    static const struct { enum dp_schedule_kind kind; int ranks; } cases[] = {
        {DP_SCHEDULE_DUALPIPE, 2}, {DP_SCHEDULE_DUALPIPE, 4}, {DP_SCHEDULE_DUALPIPEV, 2},
        {DP_SCHEDULE_DUALPIPEV, 4}, {DP_SCHEDULE_ZB1P, 2}, {DP_SCHEDULE_ZB1P, 4},
        {DP_SCHEDULE_1F1B, 2}, {DP_SCHEDULE_1F1B, 4}, {DP_SCHEDULE_GPIPE, 4},
        {DP_SCHEDULE_GPIPE, 8},
    };
    struct curve *expected = curve_new(), *curve = curve_new();

    learn_sequentially(expected);
    for (const struct comm_kind *comm = comm_kinds; comm->name; comm++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            printf("%s, %s, P = %d\n", comm->name, dp_name(DP_NAMES_SCHEDULE, cases[i].kind),
                   cases[i].ranks);
            run(comm, cases[i].kind, cases[i].ranks, false, curve);
            assert_same(expected, curve);
        }
    curve_free(expected);
    curve_free(curve);
}

CASE(gradients_in_any_order_learn_nearly_the_same)
{
    struct curve *expected = curve_new(), *curve = curve_new();

    learn_sequentially(expected);
    run(&comm_kinds[0], DP_SCHEDULE_DUALPIPEV, 2, true, curve);
    for (int i = 0; i < STEPS; i++)
        assert_float_equal(curve->losses[i], expected->losses[i], 1e-4);
    curve_free(expected);
    curve_free(curve);
}

CASE(learning_lowers_the_loss)
{
    struct curve *curve = curve_new();

    learn_sequentially(curve);
    assert_true(curve->losses[STEPS - 1] < curve->losses[0]);
    curve_free(curve);
}

/* ---- replicas that mix ------------------------------------------------------------------------- */

struct mixing {
    enum dp_schedule_kind kind;
    int ranks, replicas;
    const char *graph;
    double clip;
};

/* Replicas become their mean, after steps and maybe others that only mix, without a learning rate. */
static int take_mean(struct dp_comm *comm, const struct mixing *m, bool mix_on, struct curve *mean)
{
    struct dp_trainer_config how = {.schedule.kind = m->kind,
                                    .replicas = m->replicas,
                                    .microbatches = MICROBATCHES,
                                    .rows = SEQUENCES,
                                    .sums = DP_SUMS_MIXING,
                                    .mixing.graph.name = m->graph,
                                    .optimizer = gpt_optimizer(decay),
                                    .clip = m->clip,
                                    .fixed_order = true,
                                    .seed = config.seed};
    struct gpt_layers *layers;
    struct dp_trainer *t;

    CHECK(!gpt_layers_new(&config, NULL, false, &layers));
    CHECK(!dp_trainer_new(&how, gpt_layers_model(layers), comm, &t));
    CHECK(!take_steps(comm, t, peak, mean));
    CHECK(!mix_on || !take_steps(comm, t, 0, mean));
    CHECK(!dp_trainer_finish(t) && !take_weights(comm, t, mean));
    dp_trainer_free(t);
    gpt_layers_free(layers);
    return 0;
}

static int mix_in_pipelines(struct dp_comm *comm, void *arg)
{
    struct curve *before = curve_new(), *after = curve_new();

    CHECK(!take_mean(comm, arg, false, before) && !take_mean(comm, arg, true, after));
    for (size_t w = 0; w < before->weights_len; w++) /* float32: rounding adds up */
        CHECK(fabs(before->weights[w] - after->weights[w]) < 1e-5);
    curve_free(before);
    curve_free(after);
    return 0;
}

CASE(mixing_keeps_the_mean_of_every_stage)
{
    static const struct mixing cases[] = {
        {DP_SCHEDULE_1F1B, 2, 2, "one-peer-exp", 0},
        {DP_SCHEDULE_1F1B, 2, 4, "ring", 0.5},
        {DP_SCHEDULE_DUALPIPE, 2, 2, "ring", 0.5},
        {DP_SCHEDULE_DUALPIPEV, 2, 2, "complete", 0},
        {DP_SCHEDULE_ZB1P, 4, 2, "one-peer-exp", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (comm_on_threads(cases[i].ranks * cases[i].replicas, INT64_C(60000000000),
                            mix_in_pipelines, (void *)&cases[i]))
            fail_msg("case %zu: %s, P = %d, D = %d, %s", i, dp_name(DP_NAMES_SCHEDULE, cases[i].kind),
                     cases[i].ranks, cases[i].replicas, cases[i].graph);
}
