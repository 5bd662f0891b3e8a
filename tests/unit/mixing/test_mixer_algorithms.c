/* SPDX-License-Identifier: Apache-2.0
 *
 * The mixer's algorithms on quadratics of which every worker has another one, so that the optimum
 * of their sum is known: which reach it with a constant rate, and what is not sound.
 */
#include "cmocka_all.h"

#include "mixing_worker.h"
#include "unit/comm/comm_cases.h"

/* ---- the optimum ------------------------------------------------------------------------------- */

/* Where the sum of all gradients is 0; each is a line. */
static double optimum(int i)
{
    double at_0 = 0, slope = 0;

    for (int r = 0; r < RANKS; r++) {
        at_0 += gradient_of_worker(r, i, 0);
        slope += gradient_of_worker(r, i, 1) - gradient_of_worker(r, i, 0);
    }
    return -at_0 / slope;
}

static int go_to_the_end(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;
    double mine = 0, all[RANKS], farthest = 0;

    CHECK(!open_worker(&w, comm, job));
    for (int t = 0; t < job->steps; t++)
        CHECK(!iterate_worker(&w, 1));
    CHECK(!dp_mixer_forward(w.mixer, false));
    for (int i = 0; i < TOTAL; i++)
        mine = fmax(mine, fabs(w.memory[i] - optimum(i)));
    CHECK(!dp_comm_allgather(comm, &mine, all, sizeof(mine)));
    for (int r = 0; r < RANKS; r++)
        farthest = fmax(farthest, all[r]);
    if (job->reaches != (farthest < 1e-9) || (!job->reaches && farthest < 0.01)) {
        printf("%s by %s: %g from the optimum\n", dp_name(DP_NAMES_MIXER, job->algorithm),
               job->graph, farthest);
        CHECK(!"as near as expected");
    }
    close_worker(&w);
    return 0;
}

CASE(d_psgd_ends_beside_the_optimum)
{
    struct job job = {.graph = "ring", .steps = 400};

    on_all_kinds(RANKS, SECONDS(20), go_to_the_end, &job);
    job.graph = "one-peer-exp";
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), go_to_the_end, &job), 0);
    job.graph = "torus";
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), go_to_the_end, &job), 0);
}

/* ---- local SGD --------------------------------------------------------------------------------- */

static double mean_of(const double *x)
{
    double sum = 0;

    for (int r = 0; r < RANKS; r++)
        sum += x[r];
    return sum / RANKS;
}

/* An element of all workers, averaged by `complete`. */
static double follow_outer_steps(const struct job *job, int i, int steps)
{
    double x[RANKS] = {0}, anchor = 0, momentum = 0;

    for (int t = 1; t <= steps; t++) {
        for (int r = 0; r < RANKS; r++)
            x[r] -= WORKER_RATE * gradient_of_worker(r, i, x[r]);
        if (t % job->local_steps)
            continue;
        momentum = job->outer_momentum * momentum + anchor - mean_of(x);
        anchor -= job->outer_rate * momentum;
        for (int r = 0; r < RANKS; r++)
            x[r] = anchor;
    }
    return x[0];
}

static int follow_local_sgd(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;

    CHECK(!open_worker(&w, comm, job));
    for (int t = 1; t <= job->steps; t++) {
        CHECK(!iterate_worker(&w, 1));
        CHECK(t < 2 || !dp_mixer_forward(w.mixer, false)); /* buckets are made after iteration 0 */
        for (int i = 0; i < TOTAL && t > 1 && t % job->local_steps == 0; i++)
            CHECK(fabs(w.memory[i] - follow_outer_steps(job, i, t)) < 1e-13);
    }
    close_worker(&w);
    return 0;
}

CASE(local_sgd_takes_outer_steps_with_momentum)
{
    for (int local = 1; local <= 4; local++)
        on_all_kinds(RANKS, SECONDS(20), follow_local_sgd,
                     &(struct job){.algorithm = DP_MIXER_LOCAL_SGD, .graph = "complete", .steps = 26,
                                   .local_steps = local, .outer_rate = 0.75, .outer_momentum = 0.5});
}

CASE(one_local_step_reaches_the_optimum_and_more_do_not)
{
    for (int local = 1; local <= 8; local += 7)
        on_all_kinds(RANKS, SECONDS(20), go_to_the_end,
                     &(struct job){.algorithm = DP_MIXER_LOCAL_SGD, .graph = "complete", .steps = 400,
                                   .local_steps = local, .outer_rate = 1, .outer_momentum = 0.5,
                                   .reaches = local == 1});
}

/* ---- what is wrong ----------------------------------------------------------------------------- */

static const struct wrong {
    struct job job;
    const char *sentence;
    bool compat, mismatch;
    uint8_t bits;
} wrongs[] = {
    {.job = {.algorithm = DP_MIXER_ALGORITHMS, .graph = "ring"},
     .sentence = "algorithm of mixing: 2, expected 0 to 1"},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "ring", .outer_rate = 1},
     .sentence = "0 local steps, expected at least 1"},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "ring", .local_steps = 2},
     .sentence = "outer rate of 0, expected a number above 0"},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "ring", .local_steps = 2, .outer_rate = NAN},
     .sentence = "outer rate of nan"},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "ring", .local_steps = 2, .outer_rate = 1,
             .outer_momentum = 1},
     .sentence = "outer momentum of 1, expected 0 or more"},
    {.job = {.algorithm = DP_MIXER_DPSGD, .graph = "ring", .local_steps = 2},
     .sentence = "d-psgd with 2 local steps, expected 0"},
    {.job = {.algorithm = DP_MIXER_DPSGD, .graph = "ring", .outer_rate = 1},
     .sentence = "d-psgd with an outer rate of 1, expected 0"},
    {.job = {.algorithm = DP_MIXER_DPSGD, .graph = "ring", .outer_momentum = 0.5},
     .sentence = "outer momentum of 0.5, expected 0"},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "directed-exp", .local_steps = 2, .outer_rate = 1},
     .sentence = "over a graph of push-sum"},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "ring", .local_steps = 2, .outer_rate = 1},
     .sentence = "with compat",
     .compat = true},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "ring", .local_steps = 2, .outer_rate = 1},
     .sentence = "parameter 'p0', expected a value and",
     .bits = 16},
    {.job = {.algorithm = DP_MIXER_LOCAL_SGD, .graph = "ring", .local_steps = 2, .outer_rate = 1},
     .sentence = "local_steps: rank 1 has 3, rank 0 has 2",
     .mismatch = true},
};

static int refuse(struct dp_comm *comm, void *arg)
{
    const struct wrong *wrong = arg;
    static _Thread_local struct worker w;

    describe_worker(&w, comm, wrong->bits ? wrong->bits : 64);
    CHECK(!dp_graph_new(
        &(struct dp_graph_spec){.name = wrong->job.graph, .workers = RANKS, .local = 1}, &w.graph));
    struct dp_mixer_config config = config_of_worker(&w, &wrong->job);
    config.compat = wrong->compat;
    if (wrong->mismatch && dp_comm_rank(comm) == 1)
        config.local_steps++;
    int err = dp_mixer_new(&config, &w.mixer);
    if (wrong->mismatch)
        CHECK(err == DP_EMISMATCH);
    else
        CHECK(err == (wrong->bits ? DP_EUNSUPPORTED : DP_EINVAL));
    if (wrong->sentence)
        CHECK_SAYS(wrong->sentence);
    dp_graph_free(w.graph);
    return 0;
}

CASE(what_an_algorithm_cannot_do_is_refused)
{
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
        if (comm_on_threads(RANKS, SECONDS(20), refuse, (void *)&wrongs[i]))
            fail_msg("case %zu", i);
}

RUN_QUIET_CASES(NULL, NULL)
