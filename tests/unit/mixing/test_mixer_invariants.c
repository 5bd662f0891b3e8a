/* SPDX-License-Identifier: Apache-2.0
 *
 * What holds of every mixing step, over every communicator and on every rank: the sum of all values,
 * how fast rounds bring workers together, where the mean goes; and graphs that cannot be.
 */
#include "cmocka_all.h"
#include "mixing/internal.h"

#include "unit/comm/comm_cases.h"
#include "mixing_worker.h"

enum { MOST = 6, PIECE = 8 }; /* elements that are looked at */

struct step_case {
    const char *graph, *file;
    int workers, local;
    double factor;
    bool integers;
};

static int make_graph(const struct step_case *c, struct dp_graph **out)
{
    if (c->file)
        return dp_graph_read(c->file, strlen(c->file), out);
    return dp_graph_new(
        &(struct dp_graph_spec){
            .name = c->graph, .workers = c->workers, .local = c->local ? c->local : 1},
        out);
}

static int open_case(struct worker *w, struct dp_comm *comm, const struct step_case *c)
{
    describe_worker(w, comm, 64);
    int err = make_graph(c, &w->graph);
    if (err)
        return err;
    const struct dp_mixer_config config = config_of_worker(w, &(struct job){.factor = c->factor});
    return dp_mixer_new(&config, &w->mixer);
}

static double value_of(const struct step_case *c, int rank, int i)
{
    return c->integers ? 1024 * ((rank * 37 + i * 11) % 17) : (rank * 37 + i * 11) % 17 / 7.0 + rank;
}

static void set_values(struct worker *w, const struct step_case *c)
{
    for (int i = 0; i < TOTAL; i++)
        w->memory[i] = value_of(c, dp_comm_rank(w->comm), i);
}

/* The values of all workers, [PIECE][workers]. */
static int look(struct worker *w, double all[PIECE][MOST])
{
    int err = 0;

    for (int i = 0; i < PIECE && !err; i++) {
        const double mine = get_value(w, i * 79);
        err = dp_comm_allgather(w->comm, &mine, all[i], sizeof(mine));
    }
    return err;
}

static double mean_of(const double *x, int count)
{
    double sum = 0;

    for (int r = 0; r < count; r++)
        sum += x[r];
    return sum / count;
}

static double distance_of(double all[PIECE][MOST], int count)
{
    double squares = 0;

    for (int i = 0; i < PIECE; i++)
        for (int r = 0; r < count; r++)
            squares += pow(all[i][r] - mean_of(all[i], count), 2);
    return sqrt(squares);
}

/* ---- sums and distances ------------------------------------------------------------------------ */

/* Of iterations without gradients the first begins the first exchange; each other one mixes. */
static int mix_for_a_period(struct dp_comm *comm, void *arg)
{
    const struct step_case *c = arg;
    static _Thread_local struct worker w;
    double before[PIECE][MOST], after[PIECE][MOST], sigma = 1;

    CHECK(!open_case(&w, comm, c));
    set_values(&w, c);
    CHECK(!look(&w, before));
    CHECK(!dp_graph_contraction(w.graph, 0, w.graph->period, &sigma));
    for (int t = 0; t <= w.graph->period; t++) {
        CHECK(!iterate_worker(&w, 0));
        CHECK(!look(&w, after));
        for (int i = 0; i < PIECE; i++) {
            const double was = mean_of(before[i], c->workers), is = mean_of(after[i], c->workers);
            CHECK(c->integers ? is == was : fabs(is - was) <= 1e-12 * fabs(was));
        }
    }
    CHECK(distance_of(after, c->workers) <= (sigma + 1e-12) * distance_of(before, c->workers));
    close_worker(&w);
    return 0;
}

CASE(sums_stay_and_distances_shrink_as_graphs_say)
{
    static const struct step_case cases[] = {
        {.graph = "one-peer-exp", .workers = 4, .integers = true},
        {.graph = "complete", .workers = 4, .integers = true},
        {.graph = "ring", .workers = 6},
        {.graph = "alternating-exp-ring", .workers = 4, .local = 2},
        {.graph = "torus", .workers = 6},
        {.graph = "star", .workers = 5},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        on_all_kinds(cases[i].workers, SECONDS(20), mix_for_a_period, (void *)(uintptr_t)&cases[i]);
}

/* mean(t + 1) = mean(t) - rate mean(g(t)) */
static int follow_the_mean(struct dp_comm *comm, void *arg)
{
    const struct step_case *c = arg;
    static _Thread_local struct worker w;
    double before[PIECE][MOST], after[PIECE][MOST];

    CHECK(!open_case(&w, comm, c));
    for (int t = 0; t < 7; t++) {
        CHECK(!look(&w, before));
        CHECK(!iterate_worker(&w, 1));
        CHECK(!look(&w, after));
        for (int i = 0; i < PIECE && t > 1; i++) { /* the first two update together */
            double grads[MOST];
            for (int r = 0; r < c->workers; r++)
                grads[r] = gradient_of_worker(r, i * 79, before[i][r]);
            CHECK(fabs(mean_of(after[i], c->workers) - mean_of(before[i], c->workers) +
                       0.1 * mean_of(grads, c->workers)) < 1e-12);
        }
    }
    close_worker(&w);
    return 0;
}

CASE(the_mean_follows_the_mean_gradient)
{
    static const struct step_case cases[] = {
        {.graph = "ring", .workers = 4},
        {.graph = "one-peer-exp", .workers = 4, .factor = 0.4},
        {.graph = "torus", .workers = 6},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        on_all_kinds(cases[i].workers, SECONDS(20), follow_the_mean, (void *)(uintptr_t)&cases[i]);
}

/* ---- the factor -------------------------------------------------------------------------------- */

static const double signs[4] = {1, -1, 1, -1};

/* Values along an eigenvector of W with the eigenvalue l shrink by 1 - a + a l in each round. */
static int shrink_by_eigenvalue(struct dp_comm *comm, void *arg)
{
    enum { ROUNDS = 4 };
    const struct step_case *c = arg;
    const int rank = dp_comm_rank(comm);
    static _Thread_local struct worker w;
    double l = 0;

    CHECK(!open_case(&w, comm, c));
    for (int j = 0; j < 4; j++)
        l += dp_graph_weight(w.graph, 0, rank, j) * signs[j] / signs[rank];
    for (int i = 0; i < TOTAL; i++)
        w.memory[i] = signs[rank];
    for (int t = 0; t <= ROUNDS; t++)
        CHECK(!iterate_worker(&w, 0));
    CHECK(fabs(get_value(&w, 7) - pow(1 - c->factor + c->factor * l, ROUNDS) * signs[rank]) < 1e-14);
    close_worker(&w);
    return 0;
}

CASE(a_factor_moves_eigenvalues_as_it_should)
{
    static const struct step_case cases[] = {
        {.graph = "complete", .workers = 4, .factor = 0.3},
        {.graph = "torus", .workers = 4, .factor = 0.7},
        {.file = "mixing circle workers=4\n"
                 "round 0: 0>0*0.5 0>1*0.25 0>3*0.25 1>1*0.5 1>0*0.25 1>2*0.25 2>2*0.5 2>1*0.25 "
                 "2>3*0.25 3>3*0.5 3>2*0.25 3>0*0.25\n",
         .workers = 4, .factor = 0.45},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        on_all_kinds(4, SECONDS(20), shrink_by_eigenvalue, (void *)(uintptr_t)&cases[i]);
}

/* ---- groups of one ----------------------------------------------------------------------------- */

/* What mixes with nobody is plain gradient descent. */
static int descend_alone(struct dp_comm *comm, void *arg)
{
    const struct step_case *c = arg;
    static _Thread_local struct worker w;

    CHECK(!open_case(&w, comm, c));
    double x = get_value(&w, 5);
    for (int t = 0; t < 6; t++) {
        CHECK(!iterate_worker(&w, 1));
        for (int k = t == 1 ? 2 : t > 1; k > 0; k--) /* the first two update together */
            x -= 0.1 * gradient_of_worker(dp_comm_rank(comm), 5, x);
        CHECK(fabs(get_value(&w, 5) - x) < 1e-14);
    }
    close_worker(&w);
    return 0;
}

CASE(a_group_of_one_mixes_nothing)
{
    static const struct step_case alone[] = {{.graph = "complete", .workers = 1},
                                             {.graph = "one-peer-exp", .workers = 1},
                                             {.graph = "hypercube", .workers = 1}};
    struct step_case each = {.graph = "alternating-exp-ring", .workers = 4, .local = 1};

    for (size_t i = 0; i < sizeof(alone) / sizeof(alone[0]); i++)
        on_all_kinds(1, SECONDS(20), descend_alone, (void *)(uintptr_t)&alone[i]);
    on_all_kinds(4, SECONDS(20), mix_for_a_period, &each);
    on_all_kinds(4, SECONDS(20), follow_the_mean, &each);
}

/* ---- what cannot be ---------------------------------------------------------------------------- */

static const struct step_case refused[] = {
    {.graph = "complete", .workers = 4, .local = 3}, /* nodes of unequal size */
    {.graph = "rign", .workers = 4},
    {.graph = "ring", .workers = 3},
    {.graph = "one-peer-exp", .workers = 6},
    {.graph = "alternating-exp-ring", .workers = 6, .local = 2},
    {.graph = "alternating-exp-ring", .workers = 4, .local = 4},
    {.file = "mixing twice workers=4\nround 0: {0 1} {1 2 3}\n"},
    {.file = "mixing missing workers=4\nround 0: {0 1} {2}\n"},
    {.file = "mixing apart workers=4\nround 0: {0 1} {2 3}\n"},
    {.file = "mixing other workers=2\nround 0: {0 1}\n"},
};

static int refuse(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;
    int err = open_case(&w, comm, arg);

    CHECK(err == DP_EINVAL || err == DP_EABORTED);
    dp_graph_free(w.graph);
    return 0;
}

CASE(graphs_that_cannot_be_are_refused_on_all_ranks)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        on_all_kinds(4, SECONDS(20), refuse, (void *)(uintptr_t)&refused[i]);
}

RUN_QUIET_CASES(NULL, NULL)
