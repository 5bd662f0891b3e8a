/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of `dualpipe train` learns exactly the same, to the last bit, under every schedule,
 * with every number of ranks and over every communicator as in the plain loop of sequential.c:
 * losses, gradient norms, held-out losses and, in the end, all weights.
 */
#include "cmocka_all.h"

#include "comm_group.h"
#include "train/offloaded.h"
#include "train/trainer.h"

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
        err = trainer_evaluate(&t, &held_out);
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

static void learn_sequentially(struct curve *curve, int order_blocks)
{
    struct engine *e;

    assert_int_equal(
        sequential_new(&(struct sequential_config){config, MICROBATCHES, order_blocks, {0}}, &e), 0);
    assert_int_equal(learn(e, true, curve), 0);
    e->ops->free(e);
}

struct setup {
    enum dp_schedule_kind kind;
    int ranks;
    bool any_order;
    struct curve *curve;
};

/* One rank. */
static int learn_pipelined(struct dp_comm *comm, void *arg)
{
    const struct setup *s = arg;
    struct dp_schedule_spec spec = {.kind = s->kind, .ranks = s->ranks,
                                    .microbatches = MICROBATCHES, .mirror_reduce = true};
    struct pipelined_config c = {.model = config, .comm = comm, .any_order = s->any_order};
    struct dp_schedule *both[2];
    struct engine *e;

    CHECK(!dp_schedule_new(&spec, &both[0]));
    spec.forward_only = true;
    spec.mirror_reduce = false;
    CHECK(!dp_schedule_new(&spec, &both[1]));
    c.training = both[0];
    c.forward = both[1];
    CHECK(!pipelined_new(&c, &e));
    CHECK(!learn(e, dp_comm_rank(comm) == 0, s->curve));
    e->ops->free(e);
    dp_schedule_free(both[0]);
    dp_schedule_free(both[1]);
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

    learn_sequentially(expected, 2);
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

/* false: no cut of the model fits. Otherwise how it was cut. */
static bool learn_offloaded(size_t device_bytes, int order_blocks, struct curve *curve,
                            struct offloaded_figures *figures)
{
    struct engine *e;
    int err = offloaded_new(&(struct offloaded_config){.model = config,
                                                       .microbatches = MICROBATCHES,
                                                       .order_blocks = order_blocks,
                                                       .device_bytes = device_bytes,
                                                       .activations = true},
                            &e);

    memset(curve, 0, sizeof(*curve));
    if (err == DP_ENOMEM)
        return false;
    assert_int_equal(err, 0);
    assert_int_equal(learn(e, true, curve), 0);
    assert_true(offloaded_figures(e, figures));
    assert_true(figures->device_bytes <= device_bytes);
    e->ops->free(e);
    return true;
}

/* With less and less memory: from all of the model on the device to one block at a time. */
static void a_model_that_does_not_fit_learns_the_same(void **state)
{
    (void)state;
    struct curve *expected = curve_new(), *curve = curve_new();

    for (int order_blocks = 1; order_blocks <= 8; order_blocks *= 8) {
        struct offloaded_figures f = {0};
        int cuts = 0;
        learn_sequentially(expected, order_blocks);
        for (size_t bytes = 2 << 20; learn_offloaded(bytes, order_blocks, curve, &f);
             bytes = f.device_bytes - 1, cuts++)
            assert_same(expected, curve);
        assert_true(cuts > 2 && f.recomputes && f.boundaries_down && f.slots < f.shards);
    }
    curve_free(expected);
    curve_free(curve);
}

static void gradients_in_any_order_learn_nearly_the_same(void **state)
{
    (void)state;
    struct curve *expected = curve_new(), *curve = curve_new();

    learn_sequentially(expected, 2);
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

    learn_sequentially(curve, 2);
    assert_true(curve->losses[STEPS - 1] < curve->losses[0]);
    curve_free(curve);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_learns_what_the_plain_loop_learns),
        cmocka_unit_test(a_model_that_does_not_fit_learns_the_same),
        cmocka_unit_test(gradients_in_any_order_learn_nearly_the_same),
        cmocka_unit_test(learning_lowers_the_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
