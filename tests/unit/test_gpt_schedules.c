/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of `dualpipe train` learns exactly the same, to the last bit, by the library's trainer under
 * every schedule, with every number of ranks and over every communicator as in a plain loop: losses, gradient norms, held-out losses and, in the end, all weights. Replicas of a pipeline that
 * mix their weights keep the mean of each.
 */
#include "cmocka_all.h"

#include "gpt_sequential.h"
#include "comm_group.h"
#include "train/gpt_layers.h"
#include "train/trainer.h"

#include <dualpipe/trainer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STEPS = 5, MICROBATCHES = 8, SEQUENCES = 16, MAX_WEIGHTS = 40000 };

static const struct gpt_config config = {
    .layers = 8, .width = 8, .heads = 2, .context = 6, .batch = SEQUENCES / MICROBATCHES,
    .dropout = 0.2f, .seed = 42};
static const struct trainer_config training = {
    .sequences = SEQUENCES, .steps = STEPS, .warmup = 2, .rate = 0.01, .decay = 0.1, .clip = 0.5};

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

static int learn(struct engine *e, bool first, struct curve *curve)
{
    struct data data = make_data();
    struct step_result r;
    struct trainer t;
    double held_out;

    int err = trainer_init(&t, &training, &data, e);
    for (uint64_t step = 0; !err && step < STEPS; step++) {
        err = trainer_step(&t, step, &r);
        if (!err && first) {
            curve->losses[step] = r.loss;
            curve->norms[step] = r.norm;
        }
    }
    if (!err)
        err = trainer_held_out(&t, &held_out);
    if (!err)
        err = e->ops->gather(e, first ? curve->weights : NULL);
    if (!err && first) {
        curve->held_out = held_out;
        curve->weights_len = params_count(&config, 0, config.layers + 2);
    }
    trainer_fini(&t);
    free(data.bytes);
    return err;
}

static void learn_sequentially(struct curve *curve, int order_blocks, bool bf16)
{
    struct engine *e;

    assert_int_equal(
        sequential_new(
            &(struct sequential_config){config, MICROBATCHES, order_blocks, {0}, bf16}, &e), 0);
    assert_int_equal(learn(e, true, curve), 0);
    e->ops->free(e);
}

struct setup {
    enum dp_schedule_kind kind;
    int ranks;
    bool any_order;
    struct curve *curve;
};

/* As an array of the model's parameters in one stage, in which a tied one is twice. */
static int take_weights(struct dp_comm *comm, struct dp_trainer *t, struct curve *curve)
{
    struct dp_named_tensor *tensors;
    struct gpt_stage *whole;
    int32_t count;

    CHECK(!dp_trainer_gather(t, 0, &tensors, &count));
    if (!tensors)
        return 0;
    CHECK(!gpt_stage_new_bare(&config, 0, 1, &whole));
    CHECK((size_t)count == whole->params.tensors_len);
    for (int32_t i = 0; i < count; i++) {
        const struct tensor *at = &whole->params.tensors[i];
        CHECK(!strcmp(tensors[i].name, whole->tensors[i].name));
        memcpy(curve->weights + at->offset, tensors[i].tensor.data,
               tensor_count(at) * sizeof(real));
    }
    curve->weights_len = whole->params.count;
    gpt_stage_free(whole);
    dp_trainer_gathered_free(tensors);
    return 0;
}

static int take_steps(struct dp_comm *comm, struct dp_trainer *t, struct curve *curve)
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
        dp_trainer_set_rate(t, trainer_rate(step, STEPS, training.warmup, training.rate));
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
                                    .optimizer = trainer_optimizer(training.decay),
                                    .clip = training.clip,
                                    .fixed_order = !s->any_order,
                                    .order_blocks = 2,
                                    .seed = config.seed};
    struct curve *curve = dp_comm_rank(comm) ? curve_new() : s->curve;
    struct gpt_layers *layers;
    struct dp_trainer *t;

    CHECK(!gpt_layers_new(&config, NULL, false, &layers));
    CHECK(!dp_trainer_new(&how, gpt_layers_model(layers), comm, &t));
    CHECK(!take_steps(comm, t, curve) && !take_weights(comm, t, curve));
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

static void every_schedule_learns_what_the_plain_loop_learns(void **state)
{
    (void)state;
    static const struct { enum dp_schedule_kind kind; int ranks; } cases[] = {
        {DP_SCHEDULE_DUALPIPE, 2}, {DP_SCHEDULE_DUALPIPE, 4}, {DP_SCHEDULE_DUALPIPEV, 2},
        {DP_SCHEDULE_DUALPIPEV, 4}, {DP_SCHEDULE_ZB1P, 2}, {DP_SCHEDULE_ZB1P, 4},
        {DP_SCHEDULE_1F1B, 2}, {DP_SCHEDULE_1F1B, 4}, {DP_SCHEDULE_GPIPE, 4},
        {DP_SCHEDULE_GPIPE, 8},
    };
    struct curve *expected = curve_new(), *curve = curve_new();

    learn_sequentially(expected, 2, false);
    for (const struct comm_kind *comm = comm_kinds; comm->name; comm++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            printf("%s, %s, P = %d\n", comm->name, dp_schedule_kind_name(cases[i].kind),
                   cases[i].ranks);
            run(comm, cases[i].kind, cases[i].ranks, false, curve);
            assert_same(expected, curve);
        }
    curve_free(expected);
    curve_free(curve);
}

static void gradients_in_any_order_learn_nearly_the_same(void **state)
{
    (void)state;
    struct curve *expected = curve_new(), *curve = curve_new();

    learn_sequentially(expected, 2, false);
    run(&comm_kinds[0], DP_SCHEDULE_DUALPIPEV, 2, true, curve);
    for (int i = 0; i < STEPS; i++)
        assert_float_equal(curve->losses[i], expected->losses[i], 1e-4);
    curve_free(expected);
    curve_free(curve);
}

static void learning_lowers_the_loss(void **state)
{
    (void)state;
    struct curve *curve = curve_new();

    learn_sequentially(curve, 2, false);
    assert_true(curve->losses[STEPS - 1] < curve->losses[0]);
    curve_free(curve);
}

/* ---- replicas that mix ------------------------------------------------------------------------- */

enum { BEFORE = 3, AFTER = 4 }; /* steps with a learning rate, and without */

struct mixing {
    enum dp_schedule_kind kind;
    int ranks, replicas;
    const char *graph;
    double clip;
};

/* A weight of a stage over the replicas. */
struct spread {
    double mean, width;
};

static struct spread spread_of(const real *all, int replicas, size_t count, size_t i)
{
    double sum = 0, least = all[i], most = all[i];

    for (int k = 0; k < replicas; k++) {
        const double x = all[(size_t)k * count + i];
        sum += x;
        least = fmin(least, x);
        most = fmax(most, x);
    }
    return (struct spread){sum / replicas, most - least};
}

static int collect(struct dp_comm *data, const struct gpt_stage *stage, real *all)
{
    return dp_comm_allgather(data, stage->weights, all, stage->params.count * sizeof(real));
}

/* Without a learning rate weights are only mixed: before and after, of every stage of this rank. */
static int keep_means(struct dp_comm *comm, struct dp_comm *data, struct engine *e,
                      struct trainer *t, const struct mixing *m)
{
    real *all[DP_MAX_SLOTS][2] = {{NULL}};
    struct step_result r;
    double widest[2] = {0};

    for (uint64_t step = 0; step < BEFORE; step++)
        CHECK(!trainer_step(t, step, &r));
    t->config.rate = 0;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < e->stage_count; i++) {
            all[i][k] = calloc((size_t)m->replicas * e->stages[i]->params.count, sizeof(real));
            CHECK(!collect(data, e->stages[i], all[i][k]));
        }
        for (uint64_t step = BEFORE; step < BEFORE + AFTER && k == 0; step++)
            CHECK(!trainer_step(t, step, &r));
    }
    for (int i = 0; i < e->stage_count; i++) {
        const size_t count = e->stages[i]->params.count;
        for (size_t w = 0; w < count; w++) {
            const struct spread before = spread_of(all[i][0], m->replicas, count, w);
            const struct spread after = spread_of(all[i][1], m->replicas, count, w);
            CHECK(fabs(before.mean - after.mean) <
                  1e-5); /* of float32, in which rounding adds up */
            widest[0] = fmax(widest[0], before.width);
            widest[1] = fmax(widest[1], after.width);
        }
        free(all[i][0]);
        free(all[i][1]);
    }
    CHECK(widest[0] > 1e-3); /* they did differ */
    return 0;
}

static int mix_in_pipelines(struct dp_comm *comm, void *arg)
{
    const struct mixing *m = arg;
    const struct dp_comm_axis axes[] = {{"data", m->replicas}, {"pipe", m->ranks}};
    struct dp_schedule_spec spec = {.kind = m->kind,
                                    .ranks = m->ranks,
                                    .microbatches = MICROBATCHES / m->replicas,
                                    .reduce_all = true};
    struct dp_comm *groups[2];
    struct dp_schedule *both[2];
    struct dp_graph *graph;
    struct trainer_config how = training;
    struct data text = make_data();
    struct trainer t;
    struct engine *e;

    CHECK(!dp_comm_grid(comm, axes, 2, groups));
    CHECK(!dp_schedule_new(&spec, &both[0]));
    spec.forward_only = true;
    spec.reduce_all = false;
    CHECK(!dp_schedule_new(&spec, &both[1]));
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = m->graph, .workers = m->replicas}, &graph));
    const struct replica replica = {dp_comm_rank(groups[0]), m->replicas, true};
    CHECK(!pipelined_new(&(struct pipelined_config){.model = config,
                                                    .training = both[0],
                                                    .forward = both[1],
                                                    .comm = groups[1],
                                                    .reduce = &train_reduce_ops,
                                                    .reduce_user = &t,
                                                    .replica = replica},
                         &e));
    how.kind = DATA_PARALLEL_MIX;
    how.all = comm;
    how.data = groups[0];
    how.graph = graph;
    how.how = &(struct dp_trainer_config){0}; /* D-PSGD */
    how.clip = m->clip;
    CHECK(!trainer_init(&t, &how, &text, e));
    CHECK(!keep_means(comm, groups[0], e, &t, m));
    trainer_fini(&t);
    e->ops->free(e);
    dp_graph_free(graph);
    dp_schedule_free(both[0]);
    dp_schedule_free(both[1]);
    dp_comm_close(groups[0]);
    dp_comm_close(groups[1]);
    free(text.bytes);
    return 0;
}

static void mixing_keeps_the_mean_of_every_stage(void **state)
{
    (void)state;
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
            fail_msg("case %zu: %s, P = %d, D = %d, %s", i, dp_schedule_kind_name(cases[i].kind),
                     cases[i].ranks, cases[i].replicas, cases[i].graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_learns_what_the_plain_loop_learns),
        cmocka_unit_test(gradients_in_any_order_learn_nearly_the_same),
        cmocka_unit_test(learning_lowers_the_loss),
        cmocka_unit_test(mixing_keeps_the_mean_of_every_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
