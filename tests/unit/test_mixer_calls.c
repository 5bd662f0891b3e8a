/* SPDX-License-Identifier: Apache-2.0
 *
 * The mixer by what it is called for beside iterations that are all alike, over every communicator:
 * evaluations, gradients that do not come, averages for good, buffers of all types; and Decent-DP's order,
 * by its formula.
 */
#include "cmocka_all.h"
#include "quiet.h"

#include "comm_cases.h"
#include "mixing_worker.h"

#include "base/fp16.h"

#include <math.h>

enum { ITERATIONS = 7, STEP = 53 };

/* Workers whose values may differ from rank to rank and element to element. */
static double start_value(int rank, int i)
{
    return (rank * 5 + i * 3) % 13 / 4.0 - 1;
}

static int open_by_text(struct worker *w, struct dp_comm *comm, const char *text,
                        void (*change)(struct dp_mixer_config *config))
{
    describe_worker(w, comm, 64);
    int err = dp_graph_read(text, strlen(text), DP_GRAPH_FORMAT_GUESS, 0, 0, &w->graph);
    struct dp_mixer_config config = config_of_worker(w, &(struct job){0});

    for (int i = 0; i < TOTAL; i++)
        w->memory[i] = start_value(0, i);
    if (change)
        change(&config);
    return err ? err : dp_mixer_new(&config, &w->mixer);
}

static int same_bits(const struct worker *w)
{
    for (int i = 0; i < TOTAL; i++)
        if (memcmp(&w[0].memory[i], &w[1].memory[i], sizeof(double)))
            return -1;
    return 0;
}

static const char pairs[] = "mixing pairs workers=4\n"
                            "round 0: {0 1}*0.75 {2 3}*0.6\n"
                            "round 1: {0 2} {1 3}*0.7\n"
                            "round 2: {0 3}*0.9 {1 2}\n";

/* ---- evaluations ------------------------------------------------------------------------------- */

static void set_compat(struct dp_mixer_config *config)
{
    config->compat = true;
}

static void set_local_sgd(struct dp_mixer_config *config)
{
    config->algorithm = DP_MIXER_LOCAL_SGD;
    config->local_steps = 2;
    config->outer_rate = 0.5;
}

/* The second worker evaluates before, between and after all iterations. */
static int evaluate(struct dp_comm *comm, void *arg)
{
    void (*const *change)(struct dp_mixer_config *config) = arg;
    static _Thread_local struct worker w[2];

    for (int k = 0; k < 2; k++) {
        CHECK(!open_by_text(&w[k], comm, pairs, *change));
        for (int t = 0; t < ITERATIONS; t++) {
            CHECK(!k || !dp_mixer_forward(w[k].mixer, false));
            CHECK(!iterate_worker(&w[k], 1));
            CHECK(dp_mixer_iterations(w[k].mixer) == t + 1);
        }
    }
    CHECK(!dp_mixer_average(w[0].mixer, NULL));
    CHECK(!dp_mixer_forward(w[1].mixer, false));
    CHECK(!dp_mixer_average(w[1].mixer, NULL));
    CHECK(!same_bits(w));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

static void evaluations_count_and_change_nothing(void **state)
{
    (void)state;
    void (*const changes[])(struct dp_mixer_config *config) = {NULL, set_compat, set_local_sgd};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), evaluate, (void *)(uintptr_t)&changes[i]);
}

/* ---- gradients that do not come ---------------------------------------------------------------- */

/* An iteration in which the first parameter has no gradient; or a gradient of zero. */
static int iterate_without(struct worker *w, bool zero)
{
    int err = dp_mixer_forward(w->mixer, true);

    for (int i = 0; i < ELEMENTS; i++)
        w->gradient[ELEMENTS + i] += gradient_of_worker(dp_comm_rank(w->comm), i, w->memory[ELEMENTS + i]);
    if (!err)
        err = dp_mixer_ready(w->mixer, 1);
    if (!err && zero)
        err = dp_mixer_ready(w->mixer, 0);
    return err ? err : dp_mixer_step(w->mixer);
}

/* As in a branch of a model that is not always taken. */
static int leave_out_later(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w[2];

    (void)arg;
    for (int k = 0; k < 2; k++) {
        CHECK(!open_by_text(&w[k], comm, pairs, NULL));
        for (int t = 0; t < ITERATIONS; t++)
            CHECK(!(t == 2 || t == 5 ? iterate_without(&w[k], k == 1) : iterate_worker(&w[k], 1)));
    }
    CHECK(!same_bits(w));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

/* Without a gradient in iteration 0 a parameter is of no bucket. */
static int leave_out_always(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;

    (void)arg;
    CHECK(!open_by_text(&w, comm, pairs, NULL));
    for (int t = 0; t < ITERATIONS; t++)
        CHECK(!iterate_without(&w, t > 3));
    CHECK(dp_mixer_bucket_count(w.mixer) == 1);
    CHECK(!dp_mixer_average(w.mixer, NULL));
    for (int i = 0; i < ELEMENTS; i++) {
        const double was = start_value(0, i);
        CHECK(!memcmp(&w.memory[i], &was, sizeof(was)));
    }
    close_worker(&w);
    return 0;
}

static void a_gradient_that_does_not_come_is_none(void **state)
{
    (void)state;
    on_all_kinds(RANKS, SECONDS(20), leave_out_later, NULL);
    on_all_kinds(RANKS, SECONDS(20), leave_out_always, NULL);
}

/* ---- averages for good ------------------------------------------------------------------------- */

static double mean_of_starts(int i)
{
    double sum = 0;

    for (int r = 0; r < RANKS; r++)
        sum += start_value(r, i);
    return sum / RANKS;
}

static void set_starts(struct worker *w)
{
    for (int i = 0; i < TOTAL; i++)
        w->memory[i] = start_value(dp_comm_rank(w->comm), i);
}

/* Before there are buckets; then again in the middle of a run: what was in flight is not mixed. */
static int average_for_good(struct dp_comm *comm, void *arg)
{
    const int rank = dp_comm_rank(comm);
    static _Thread_local struct worker w;
    double average[TOTAL];

    CHECK(!open_by_text(&w, comm, pairs, arg ? set_compat : NULL));
    set_starts(&w);
    CHECK(!dp_mixer_average(w.mixer, NULL));
    for (int i = 0; i < TOTAL; i += STEP)
        CHECK(fabs(w.memory[i] - mean_of_starts(i)) < 1e-14);
    for (int t = 0; t < ITERATIONS; t++)
        CHECK(!iterate_worker(&w, 1));
    CHECK(!dp_mixer_average(w.mixer, NULL));
    memcpy(average, w.memory, sizeof(average));
    CHECK(!iterate_worker(&w, 1));
    for (int i = 0; i < TOTAL; i++)
        CHECK(fabs(w.memory[i] - (average[i] - 0.1 * gradient_of_worker(rank, i, average[i]))) < 1e-14);
    CHECK(!iterate_worker(&w, 1)); /* and mixing has begun again */
    close_worker(&w);
    return 0;
}

static void an_average_for_good_drops_what_was_in_flight(void **state)
{
    (void)state;
    on_all_kinds(RANKS, SECONDS(20), average_for_good, NULL);
    on_all_kinds(RANKS, SECONDS(20), average_for_good, "compat");
}

/* Rows do not sum to one: a worker's values are its sums divided by a weight of its own. */
static const char lossy[] = "mixing lossy workers=4 local=1 push-sum\n"
                            "round 0: 0>0*0.25 0>1*0.25 0>2*0.5 1>1*0.5 1>2*0.5 2>3*1 3>0*0.5 3>3*0.5\n";

static void set_separate(struct dp_mixer_config *config)
{
    config->separate = true;
}

static void set_views(struct dp_mixer_config *config)
{
    config->separate = false;
}

/* The mean that push-sum keeps is that of all values by these weights. */
static int average_push_sum(struct dp_comm *comm, void *arg)
{
    void (*const *change)(struct dp_mixer_config *config) = arg;
    static _Thread_local struct worker w;
    struct dp_mixer_average what = {.revert = true};

    CHECK(!open_by_text(&w, comm, lossy, *change));
    set_starts(&w);
    for (int t = 0; t < ITERATIONS; t++) {
        CHECK(!iterate_worker(&w, 0));
        CHECK(!dp_mixer_average(w.mixer, &what));
        for (int i = 0; i < TOTAL; i += STEP)
            CHECK(fabs(get_value(&w, i) - mean_of_starts(i)) < 1e-13);
        CHECK(!dp_mixer_revert(w.mixer));
    }
    CHECK(!dp_mixer_average(w.mixer, NULL));
    for (int t = 0; t < 3; t++)
        CHECK(!iterate_worker(&w, 0));
    for (int i = 0; i < TOTAL; i += STEP)
        CHECK(fabs(get_value(&w, i) - mean_of_starts(i)) < 1e-13);
    close_worker(&w);
    return 0;
}

static void an_average_is_of_what_push_sum_keeps(void **state)
{
    (void)state;
    void (*const changes[])(struct dp_mixer_config *config) = {set_separate, set_views};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), average_push_sum, (void *)(uintptr_t)&changes[i]);
}

/* ---- buffers ----------------------------------------------------------------------------------- */

struct buffers {
    double real;
    float single;
    uint16_t half, brain;
    int64_t count;
    DLTensor tensors[5];
    DLTensor *all[5];
};

static void describe_buffers(struct buffers *b, int rank)
{
    static int64_t one = 1;
    void *const at[5] = {&b->real, &b->single, &b->half, &b->brain, &b->count};
    static const DLDataType types[5] = {
        {kDLFloat, 64, 1}, {kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}, {kDLInt, 64, 1}};

    *b = (struct buffers){.real = rank, .single = (float)(2 * rank), .half = dp_float16_store((float)rank),
                          .brain = dp_bfloat16_store((float)rank), .count = rank};
    for (int i = 0; i < 5; i++) {
        b->tensors[i] = (DLTensor){.data = at[i], .device = {kDLCPU, 0}, .ndim = 1, .dtype = types[i],
                                   .shape = &one};
        b->all[i] = &b->tensors[i];
    }
}

static int average_buffers(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;
    const int rank = dp_comm_rank(comm);
    struct dp_mixer_average what = {.revert = true};
    struct buffers b;

    (void)arg;
    describe_worker(&w, comm, 64);
    describe_buffers(&b, rank);
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = "ring", .workers = RANKS, .local = 1}, &w.graph));
    struct dp_mixer_config config = config_of_worker(&w, &(struct job){0});
    config.buffers = b.all;
    config.buffer_count = 5;
    config.average_buffers = true;
    CHECK(!dp_mixer_new(&config, &w.mixer));
    CHECK(b.count == rank && dp_float16_load(b.half) - (float)rank < 0.5f); /* not sent at the start */
    CHECK(!iterate_worker(&w, 1));
    CHECK(!dp_mixer_average(w.mixer, &what));
    CHECK(!dp_mixer_revert(w.mixer)); /* which leaves buffers as they are */
    CHECK(fabs(b.real - 1.5) < 1e-15 && fabsf(b.single - 3) < 1e-6f);
    CHECK(fabsf(dp_float16_load(b.half) - 1.5f) < 1e-3f && fabsf(dp_bfloat16_load(b.brain) - 1.5f) < 2e-2f);
    CHECK(b.count == rank);
    close_worker(&w);
    return 0;
}

static void buffers_of_real_numbers_are_averaged(void **state)
{
    (void)state;
    on_all_kinds(RANKS, SECONDS(20), average_buffers, NULL);
}

/* ---- Decent-DP's order -------------------------------------------------------------------------- */

struct decent_case {
    const char *graph;
    double factor, clip;
    bool separate;
};

enum { WIDEST = RANKS };

/* All workers, each parameter a bucket. */
struct decent {
    double x[WIDEST][TOTAL], sent[WIDEST][TOTAL];
};

static void decent_update(struct decent *d, const struct decent_case *c, double grads[WIDEST][TOTAL])
{
    for (int r = 0; r < RANKS; r++)
        for (int p = 0; p < PARAMETERS; p++) {
            double squares = 0;
            for (int i = p * ELEMENTS; i < (p + 1) * ELEMENTS; i++)
                squares += grads[r][i] * grads[r][i];
            const double scale = c->clip > 0 ? fmin(1, c->clip / (sqrt(squares) + 1e-6)) : 1;
            for (int i = p * ELEMENTS; i < (p + 1) * ELEMENTS; i++)
                d->x[r][i] -= 0.1 * scale * grads[r][i];
        }
}

/* What a member of a group gives each of the others, and itself. */
static double share_of(const struct dp_graph *g, int64_t t, int r)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, r);

    return (1 - group->self) / (group->count - 1);
}

static void decent_send(struct decent *d, const struct dp_graph *g, int64_t t)
{
    memset(d->sent, 0, sizeof(d->sent));
    for (int r = 0; r < RANKS; r++) {
        const struct dp_mix_group *group = dp_graph_group(g, t, r);
        for (int k = 0; k < group->count; k++)
            for (int i = 0; i < TOTAL; i++)
                d->sent[r][i] += share_of(g, t, r) * d->x[g->members[group->first + (size_t)k]][i];
    }
}

static void decent_mix(struct decent *d, const struct decent_case *c, const struct dp_graph *g, int64_t t)
{
    const double a = c->factor > 0 ? c->factor : 1;

    for (int r = 0; r < RANKS; r++) {
        const double keep = (1 - a) + a * (dp_graph_group(g, t, r)->self - share_of(g, t, r));
        for (int i = 0; i < TOTAL; i++)
            d->x[r][i] = keep * d->x[r][i] + a * d->sent[r][i];
    }
}

static void decent_grads(const struct decent *d, double grads[WIDEST][TOTAL])
{
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < TOTAL; i++)
            grads[r][i] = gradient_of_worker(r, i, d->x[r][i]);
}

/* In the words of Decent-DP: its counter is 1 when the first exchange begins, and t + 1 in the backward of
 * iteration t. */
static int follow_decent_dp(struct dp_comm *comm, void *arg)
{
    const struct decent_case *c = arg;
    static _Thread_local struct decent d;
    static _Thread_local struct worker w;
    static _Thread_local double grads[WIDEST][TOTAL];
    const int rank = dp_comm_rank(comm);

    describe_worker(&w, comm, 64);
    CHECK(!dp_graph_read(c->graph, strlen(c->graph), DP_GRAPH_FORMAT_GUESS, 0, 0, &w.graph));
    struct dp_mixer_config config = config_of_worker(&w, &(struct job){.factor = c->factor});
    config.compat = true;
    config.clip_norm = c->clip;
    config.separate = c->separate;
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < TOTAL; i++)
            d.x[r][i] = w.memory[i] = start_value(0, i);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    for (int t = 0; t < 2 * ITERATIONS; t++) {
        decent_grads(&d, grads);
        CHECK(!iterate_worker(&w, 1));
        if (t == 0) {
            decent_update(&d, c, grads);
            decent_send(&d, w.graph, 1);
            decent_grads(&d, grads);
            continue;
        }
        decent_mix(&d, c, w.graph, t + 1);
        decent_update(&d, c, grads);
        decent_send(&d, w.graph, t + 2);
        for (int i = 0; i < TOTAL; i++)
            CHECK(fabs(get_value(&w, i) - d.x[rank][i]) < 1e-13);
    }
    close_worker(&w);
    return 0;
}

static void compat_is_decent_dps_order(void **state)
{
    (void)state;
    static const char ring[] = "mixing ring workers=4\nround 0: {0 1} {2 3}\nround 1: {0 3} {1 2}\n";
    static const char groups[] = "mixing groups workers=4\nround 0: {0 1 2 3}*0.4\nround 1: {0 1} {2 3}*0.3\n"
                                 "round 2: {0 2 1 3}\n";
    static const struct decent_case cases[] = {
        {.graph = ring},
        {.graph = ring, .clip = 0.5, .separate = true},
        {.graph = pairs, .factor = 0.6, .clip = 0.5},
        {.graph = groups, .factor = 0.8, .separate = true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), follow_decent_dp, (void *)(uintptr_t)&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_count_and_change_nothing),
        cmocka_unit_test(a_gradient_that_does_not_come_is_none),
        cmocka_unit_test(an_average_for_good_drops_what_was_in_flight),
        cmocka_unit_test(an_average_is_of_what_push_sum_keeps),
        cmocka_unit_test(buffers_of_real_numbers_are_averaged),
        cmocka_unit_test(compat_is_decent_dps_order),
    };

    log_nothing();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
