/* SPDX-License-Identifier: Apache-2.0
 *
 * The mixer's algorithms on quadratics of which every worker has another one, so that the optimum
 * of their sum is known: which reach it with a constant rate, and what is not sound.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_cases.h"

#include <dualpipe/mixer.h>

#define SECONDS(n) ((n)*INT64_C(1000000000))

enum { RANKS = 4, PARAMETERS = 2, ELEMENTS = 3, TOTAL = PARAMETERS * ELEMENTS };

struct job {
    enum dp_mixer_algorithm algorithm;
    const char *graph;
    int steps, local_steps;
    double outer_rate, outer_momentum;
    bool reaches; /* the optimum, as far as doubles go */
};

struct worker {
    struct dp_comm *comm;
    struct dp_graph *graph;
    struct dp_mixer *mixer;
    struct dp_parameter parameters[PARAMETERS];
    DLTensor values[PARAMETERS], grads[PARAMETERS];
    int64_t shape[1];
    double memory[TOTAL], gradient[TOTAL];
};

static const double rate = 0.1;

/* Worker r has the sum over i of h (x_i - b)^2 / 2. */
static double curvature(int r, int i)
{
    return 0.25 + 0.5 * ((r + i) % RANKS);
}

static double minimum(int r, int i)
{
    return (r * 37 + i * 11) % 17 / 8.0 - 1;
}

static double optimum(int i)
{
    double above = 0, below = 0;

    for (int r = 0; r < RANKS; r++) {
        above += curvature(r, i) * minimum(r, i);
        below += curvature(r, i);
    }
    return above / below;
}

static double gradient(int r, int i, double x)
{
    return curvature(r, i) * (x - minimum(r, i));
}

/* ---- a worker ---------------------------------------------------------------------------------- */

static void describe(struct worker *w, struct dp_comm *comm, uint8_t bits)
{
    static const char *const names[PARAMETERS] = {"p0", "p1"};

    *w = (struct worker){.comm = comm, .shape = {ELEMENTS}};
    for (int p = 0; p < PARAMETERS; p++) {
        w->values[p] = (DLTensor){.data = w->memory + p * ELEMENTS, .device = {kDLCPU, 0},
                                  .ndim = 1, .dtype = {bits == 16 ? kDLBfloat : kDLFloat, bits, 1},
                                  .shape = w->shape};
        w->grads[p] = w->values[p];
        w->grads[p].data = w->gradient + p * ELEMENTS;
        w->parameters[p] =
            (struct dp_parameter){.name = names[p], .value = &w->values[p], .grad = &w->grads[p]};
    }
}

static struct dp_mixer_config config_of(struct worker *w, const struct job *job)
{
    return (struct dp_mixer_config){
        .parameters = w->parameters, .count = PARAMETERS,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_SGD), .rate = rate, .graph = w->graph,
        .comm = w->comm, .bucket_bytes = 1, .separate = true, .algorithm = job->algorithm,
        .local_steps = job->local_steps, .outer_rate = job->outer_rate,
        .outer_momentum = job->outer_momentum,
    };
}

static int open_worker(struct worker *w, struct dp_comm *comm, const struct job *job)
{
    describe(w, comm, 64);
    int err = dp_graph_new(
        &(struct dp_graph_spec){.name = job->graph, .workers = RANKS, .local = 1}, &w->graph);
    const struct dp_mixer_config config = config_of(w, job);
    return err ? err : dp_mixer_new(&config, &w->mixer);
}

static int iterate(struct worker *w)
{
    int err = dp_mixer_forward(w->mixer, true);

    for (int i = 0; i < TOTAL && !err; i++)
        w->gradient[i] += gradient(dp_comm_rank(w->comm), i, w->memory[i]);
    for (int p = PARAMETERS - 1; p >= 0 && !err; p--)
        err = dp_mixer_ready(w->mixer, p);
    return err ? err : dp_mixer_step(w->mixer);
}

static void close_worker(struct worker *w)
{
    dp_mixer_free(w->mixer);
    dp_graph_free(w->graph);
}

/* ---- the optimum ------------------------------------------------------------------------------- */

static int go_to_the_end(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct worker w;
    double mine = 0, all[RANKS], farthest = 0;

    CHECK(!open_worker(&w, comm, job));
    for (int t = 0; t < job->steps; t++)
        CHECK(!iterate(&w));
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
    struct job job = {DP_MIXER_DPSGD, "ring", .steps = 400};

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
            x[r] -= rate * gradient(r, i, x[r]);
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
    struct worker w;

    CHECK(!open_worker(&w, comm, job));
    for (int t = 1; t <= job->steps; t++) {
        CHECK(!iterate(&w));
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
                     &(struct job){DP_MIXER_LOCAL_SGD, "complete", 26, local, 0.75, 0.5, false});
}

CASE(one_local_step_reaches_the_optimum_and_more_do_not)
{
    on_all_kinds(RANKS, SECONDS(20), go_to_the_end,
                 &(struct job){DP_MIXER_LOCAL_SGD, "complete", 400, 1, 1, 0.5, true});
    on_all_kinds(RANKS, SECONDS(20), go_to_the_end,
                 &(struct job){DP_MIXER_LOCAL_SGD, "complete", 400, 8, 1, 0.5, false});
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
    {.job = {DP_MIXER_LOCAL_SGD, "directed-exp", .local_steps = 2, .outer_rate = 1},
     .sentence = "over a graph of push-sum"},
    {.job = {DP_MIXER_LOCAL_SGD, "ring", .local_steps = 2, .outer_rate = 1},
     .sentence = "with compat",
     .compat = true},
    {.job = {DP_MIXER_LOCAL_SGD, "ring", .local_steps = 2, .outer_rate = 1},
     .sentence = "parameter 'p0', expected a value and",
     .bits = 16},
    {.job = {DP_MIXER_LOCAL_SGD, "ring", .local_steps = 2, .outer_rate = 1},
     .sentence = "local_steps: rank 1 has 3, rank 0 has 2",
     .mismatch = true},
};

static int refuse(struct dp_comm *comm, void *arg)
{
    const struct wrong *wrong = arg;
    struct worker w;

    describe(&w, comm, wrong->bits ? wrong->bits : 64);
    CHECK(!dp_graph_new(
        &(struct dp_graph_spec){.name = wrong->job.graph, .workers = RANKS, .local = 1}, &w.graph));
    struct dp_mixer_config config = config_of(&w, &wrong->job);
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
