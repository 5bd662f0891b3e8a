/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated runs: times that can be computed by hand, means that are preserved, workers that fail.
 */
#include "cmocka_all.h"

#include <dualpipe/mixing.h>

static struct dp_graph *build(const char *name, int workers)
{
    struct dp_graph *g;

    if (dp_graph_new(&(struct dp_graph_spec){.name = name, .workers = workers, .local = 1}, &g))
        fail_msg("%s", dp_last_error());
    return g;
}

static struct dp_mixing_run simulate(const char *name, int workers, struct dp_mixing_scenario s)
{
    struct dp_graph *g = build(name, workers);
    struct dp_mixing_run run;

    if (dp_mixing_simulate(g, &s, &run))
        fail_msg("%s", dp_last_error());
    dp_graph_free(g);
    return run;
}

static const struct dp_mixing_sample *last_of(const struct dp_mixing_run *run)
{
    return &run->samples[run->sample_count - 1];
}

static void assert_near(double value, double right, double tolerance)
{
    if (!(fabs(value - right) <= tolerance))
        fail_msg("%.12g, expected %.12g", value, right);
}

CASE(an_exchange_shorter_than_a_step_costs_nothing_when_it_overlaps)
{
    const struct dp_mixing_scenario s = {.compute_ns = 1000, .latency_ns = 100, .bytes_per_ns = 2,
                                         .message_bytes = 400, .steps = 100};
    struct dp_mixing_run run = simulate("ring", 8, s);
    assert_near(run.step_ns, 1000, 1e-6);
    assert_near(run.waited, 0, 1e-12);
    dp_mixing_run_fini(&run);

    struct dp_mixing_scenario turn = s;
    turn.in_turn = true;
    run = simulate("ring", 8, turn);
    assert_near(run.step_ns, 1300, 1e-6);
    dp_mixing_run_fini(&run);

    struct dp_mixing_scenario all = s;
    all.all_reduce = true; /* of 8: 6 latencies, and 14 times 50 bytes */
    run = simulate("ring", 8, all);
    assert_near(run.step_ns, 1000 + 6 * 100 + 14 * 25, 1e-6);
    dp_mixing_run_fini(&run);

    struct dp_mixing_scenario slow = s;
    slow.message_bytes = 4000;
    run = simulate("one-peer-exp", 8, slow); /* but for the first, which has nothing to wait for */
    assert_near(run.step_ns, 2100, 21);
    dp_mixing_run_fini(&run);
}

CASE(the_mean_stays_and_overlap_hides_stragglers)
{
    static const char *const names[] = {"one-peer-exp", "ring", "torus", "directed-exp", "hierarchical"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_mixing_run run = simulate(names[i], 256, (struct dp_mixing_scenario){.sigma = 0.2});
        assert_true(run.mean_error < 1e-13);
        assert_in_range(run.step_ns / run.ideal_ns * 1000, 1000, 1100);
        dp_mixing_run_fini(&run);
        run = simulate(names[i], 256, (struct dp_mixing_scenario){.sigma = 0.2, .all_reduce = true});
        assert_in_range(run.step_ns / run.ideal_ns * 1000, 1500, 2500);
        dp_mixing_run_fini(&run);
    }
}

CASE(the_mean_converges)
{
    const struct dp_mixing_scenario s = {.steps = 1000, .rate = 0.02};
    struct dp_mixing_scenario all = s;
    all.all_reduce = true;
    struct dp_mixing_run run = simulate("one-peer-exp", 64, s);
    struct dp_mixing_run exact = simulate("one-peer-exp", 64, all);

    assert_true(last_of(&run)->loss < 0.9 * run.samples[0].loss);
    assert_near(last_of(&run)->loss / last_of(&exact)->loss, 1, 0.01);
    assert_true(last_of(&exact)->consensus < 1e-9);
    dp_mixing_run_fini(&run);
    dp_mixing_run_fini(&exact);
}

CASE(mixing_alone_reaches_consensus_and_a_factor_slows_it)
{
    struct dp_mixing_run run =
        simulate("ring", 16, (struct dp_mixing_scenario){.rate = 0.05, .steps = 400});
    struct dp_mixing_run damped =
        simulate("ring", 16, (struct dp_mixing_scenario){.rate = 0.05, .steps = 400, .factor = 0.1});
    assert_true(last_of(&damped)->consensus > last_of(&run)->consensus);
    dp_mixing_run_fini(&run);
    dp_mixing_run_fini(&damped);
}

CASE(survivors_keep_their_mean)
{
    static const char *const names[] = {"one-peer-exp", "complete", "torus", "star",
                                        "directed-exp"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_mixing_run run =
            simulate(names[i], 64, (struct dp_mixing_scenario){.deaths = 20, .sigma = 0.1});
        assert_int_equal(last_of(&run)->alive, 64 - 19);
        assert_true(run.mean_error < 1e-13);
        dp_mixing_run_fini(&run);
    }
}

CASE(workers_that_leave_rounds_out_keep_the_mean_and_wait_less)
{
    static const char *const names[] = {"one-peer-exp", "ring", "torus", "complete"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct dp_mixing_scenario s = {.sigma = 0.5, .deaths = 4, .steps = 400};
        struct dp_mixing_scenario stale = s;
        stale.staleness = 3;
        struct dp_mixing_run waits = simulate(names[i], 64, s), goes = simulate(names[i], 64, stale);
        assert_true(goes.mean_error < 1e-13);
        assert_true(goes.passed > 0 && goes.passed < 0.75 && waits.passed == 0);
        assert_true(goes.step_ns < waits.step_ns);
        assert_near(last_of(&goes)->loss / last_of(&waits)->loss, 1, 0.05);
        dp_mixing_run_fini(&waits);
        dp_mixing_run_fini(&goes);
    }
}

CASE(the_same_seed_is_the_same_run)
{
    const struct dp_mixing_scenario s = {.sigma = 0.3, .latency_ns = 1e6, .seed = 5};
    struct dp_mixing_run one = simulate("torus", 60, s), two = simulate("torus", 60, s);
    struct dp_mixing_scenario other = s;
    other.seed = 6;
    struct dp_mixing_run third = simulate("torus", 60, other);

    assert_true(one.step_ns == two.step_ns && last_of(&one)->loss == last_of(&two)->loss);
    assert_true(one.step_ns != third.step_ns);
    dp_mixing_run_fini(&one);
    dp_mixing_run_fini(&two);
    dp_mixing_run_fini(&third);
}

CASE(scenarios_that_cannot_be_are_refused)
{
    static const struct dp_mixing_scenario wrong[] = {
        {.sigma = -1},      {.compute_ns = NAN}, {.latency_ns = -1}, {.factor = 2},
        {.dimensions = 65}, {.deaths = 8},       {.deaths = -1},      {.rate = INFINITY},
        {.steps = -1},      {.samples = -1},     {.staleness = -1},   {.staleness = 1, .in_turn = true},
    };
    struct dp_graph *g = build("ring", 8), *push = build("directed-exp", 8);
    struct dp_mixing_run run;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(dp_mixing_simulate(g, &wrong[i], &run), DP_EINVAL);
    assert_int_equal(dp_mixing_simulate(push, &(struct dp_mixing_scenario){.staleness = 1}, &run),
                     DP_EINVAL);
    dp_graph_free(g);
    dp_graph_free(push);
}

RUN_QUIET_CASES(NULL, NULL)
