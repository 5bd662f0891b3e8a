/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixing with bounded staleness: a worker that is held up does not hold the others up before the bound,
 * none goes beyond it, and whatever is left out, the mean of all workers is what it must be.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_cases.h"
#include "mixing_worker.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { STEPS = 24, HELD = RANKS - 1, HOLD_AT = 6 };

/* Seen by all workers: iterations of which each has begun the backward. */
struct board {
    atomic_int begun[RANKS];
};

struct held {
    struct job job;
    struct board *board;
    bool hold;
};

static struct board *make_board(void)
{
    struct board *b =
        mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(b != MAP_FAILED);
    return b;
}

/* The one that is held goes on once all others are as far ahead as they may be. */
static int hold(const struct held *held, struct dp_comm *comm, int t)
{
    int32_t word = 0;
    int err = 0;

    if (!held->hold)
        return 0;
    if (dp_comm_rank(comm) == HELD && t == HOLD_AT)
        for (int peer = 0; peer < HELD && !err; peer++)
            err = blocking_receive(comm, peer, DP_CHANNEL_CONTROL, 0, &word, sizeof(word));
    return err;
}

static int tell(const struct held *held, struct dp_comm *comm, int t)
{
    const int32_t word = 0;

    if (!held->hold || dp_comm_rank(comm) == HELD || t != HOLD_AT + held->job.staleness)
        return 0;
    return blocking_send(comm, HELD, DP_CHANNEL_CONTROL, 0, &word, sizeof(word));
}

static double gradient_of(const struct worker *w, int i)
{
    const int r = dp_comm_rank(w->comm);

    return (0.25 + 0.5 * ((r + i) % RANKS)) * (get_value(w, i) - ((r * 37 + i * 11) % 17 / 8.0 - 1));
}

/* An iteration, with the sum of all gradients so far. */
static int iterate(const struct held *held, struct worker *w, int t, double *sums)
{
    const int self = dp_comm_rank(w->comm);
    int err = dp_mixer_forward(w->mixer, true);

    atomic_store(&held->board->begun[self], t);
    if (!err)
        err = hold(held, w->comm, t);
    for (int i = 0; i < TOTAL && !err; i++) {
        const double g = gradient_of(w, i);
        ((double *)w->grads[i / ELEMENTS].data)[i % ELEMENTS] += g;
        sums[i] += g;
    }
    for (int p = PARAMETERS - 1; p >= 0 && !err; p--)
        err = dp_mixer_ready(w->mixer, p);
    if (!err)
        err = dp_mixer_step(w->mixer);
    return err ? err : tell(held, w->comm, t);
}

/* Where the mean is by the gradients that were taken, from a start of 0. */
static int compare_mean(struct worker *w, const double *sums)
{
    for (int i = 0; i < TOTAL; i += 13) {
        double all[RANKS], sum = 0;
        int err = dp_comm_allgather(w->comm, &sums[i], all, sizeof(*all));
        for (int r = 0; r < RANKS; r++)
            sum += all[r];
        if (err || !(fabs(get_value(w, i) + 0.1 * sum / RANKS) < 1e-12))
            return -1;
    }
    return 0;
}

static int run_held(struct dp_comm *comm, void *arg)
{
    const struct held *held = arg;
    struct worker *w = calloc(1, sizeof(*w));
    double *sums = calloc(TOTAL, sizeof(*sums));
    struct dp_mixer_report counts;

    CHECK(w && sums && !open_worker(w, comm, &held->job));
    for (int t = 0; t < STEPS; t++) {
        CHECK(!iterate(held, w, t, sums));
        /* Only where all are neighbors in every round. */
        for (int r = 0; held->hold && r < RANKS; r++)
            CHECK(atomic_load(&held->board->begun[r]) >= t - held->job.staleness - 1);
    }
    dp_mixer_report(w->mixer, &counts);
    CHECK(counts.longest <= held->job.staleness);
    if (held->hold && dp_comm_rank(comm) != HELD)
        CHECK(counts.longest == held->job.staleness);
    CHECK(!dp_mixer_average(w->mixer, NULL));
    CHECK(!compare_mean(w, sums));
    close_worker(w);
    free(w);
    free(sums);
    return 0;
}

CASE(a_worker_that_is_held_up_holds_the_others_up_at_the_bound_only)
{
    struct held held = {.job = {.graph = "complete"}, .board = make_board(), .hold = true};

    for (held.job.staleness = 1; held.job.staleness <= 4; held.job.staleness += 3)
        on_all_kinds(RANKS, SECONDS(20), run_held, &held);
    munmap(held.board, sizeof(*held.board));
}

/* Any of them may be late. */
CASE(the_mean_is_exact_whatever_is_left_out)
{
    static const char *const graphs[] = {"ring", "one-peer-exp", "torus", "star"};
    struct held held = {.job = {.staleness = 2}, .board = make_board()};

    for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++) {
        held.job.graph = graphs[i];
        held.job.factor = i % 2 ? 0.5 : 1;
        if (comm_on_threads(RANKS, SECONDS(20), run_held, &held))
            fail_msg("%s", graphs[i]);
    }
    munmap(held.board, sizeof(*held.board));
}

/* ---- together, and from a state ---------------------------------------------------------------- */

static int come_together(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct worker *w = calloc(1, sizeof(*w));
    struct dp_mixer_average what = {.distance = true, .revert = true};

    CHECK(w && !open_worker(w, comm, job));
    for (int t = 0; t < job->steps; t++)
        CHECK(!iterate_worker(w, t < 5));
    CHECK(!dp_mixer_average(w->mixer, &what));
    CHECK(what.l2 < 1e-9);
    CHECK(!dp_mixer_revert(w->mixer));
    CHECK(!iterate_worker(w, 1));
    close_worker(w);
    free(w);
    return 0;
}

CASE(workers_come_together_all_the_same)
{
    on_all_kinds(RANKS, SECONDS(20), come_together,
                 &(struct job){.graph = "complete", .staleness = 3, .steps = 200});
}

static int go_on_elsewhere(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct worker *w = calloc(2, sizeof(*w));

    CHECK(w && !open_worker(&w[0], comm, job) && !open_worker(&w[1], comm, job));
    for (int t = 0; t < job->steps; t++)
        CHECK(!iterate_worker(&w[0], 1));
    CHECK(!copy_worker_state(&w[0], &w[1]));
    for (int k = 0; k < 2; k++)
        CHECK(!dp_mixer_average(w[k].mixer, NULL));
    CHECK(!memcmp(w[0].memory, w[1].memory, sizeof(w[0].memory)));
    for (int k = 0; k < 2; k++)
        CHECK(!iterate_worker(&w[k], 1));
    close_worker(&w[0]);
    close_worker(&w[1]);
    free(w);
    return 0;
}

CASE(the_state_has_what_is_late)
{
    on_all_kinds(RANKS, SECONDS(20), go_on_elsewhere,
                 &(struct job){.graph = "ring", .staleness = 2, .steps = 9});
}

/* ---- what is wrong ----------------------------------------------------------------------------- */

static const char one_way[] =
    "mixing one-way workers=4\n"
    "round 0: 0>0*0.5 0>1*0.5 1>1*0.5 1>2*0.5 2>2*0.5 2>3*0.5 3>3*0.5 3>0*0.5\n";

static const struct wrong {
    const char *graph, *file, *sentence;
    int32_t staleness;
    enum dp_mixer_algorithm algorithm;
    enum dp_mixer_compression compression;
    bool compat, mismatch;
} wrongs[] = {
    {.graph = "ring", .staleness = -1, .sentence = "staleness: -1 rounds, expected 0 to 1024"},
    {.graph = "ring", .staleness = 1025, .sentence = "staleness: 1025 rounds"},
    {.graph = "ring", .staleness = 1, .algorithm = DP_MIXER_LOCAL_SGD,
     .sentence = "staleness with local-sgd, expected d-psgd"},
    {.graph = "directed-exp", .staleness = 1, .sentence = "expected one without push-sum"},
    {.graph = "ring", .staleness = 1, .compat = true, .sentence = "staleness with compat"},
    {.graph = "ring", .staleness = 1, .compression = DP_COMPRESSION_INT8,
     .sentence = "staleness with compression int8"},
    {.file = one_way, .staleness = 1, .sentence = "give each other 0.5 and 0 in round 0"},
    {.graph = "ring", .staleness = 1, .mismatch = true},
};

static int refuse(struct dp_comm *comm, void *arg)
{
    const struct wrong *wrong = arg;
    struct worker *w = calloc(1, sizeof(*w));

    CHECK(w);
    describe_worker(w, comm, 64);
    if (wrong->file)
        CHECK(!dp_graph_read(wrong->file, strlen(wrong->file), &w->graph));
    else
        CHECK(!dp_graph_new(
            &(struct dp_graph_spec){.name = wrong->graph, .workers = RANKS, .local = 1}, &w->graph));
    struct dp_mixer_config config = config_of_worker(w, &(struct job){0});
    config.staleness = wrong->staleness + (wrong->mismatch && dp_comm_rank(comm));
    config.algorithm = wrong->algorithm;
    config.local_steps = config.outer_rate = wrong->algorithm == DP_MIXER_LOCAL_SGD;
    config.compression = wrong->compression;
    config.compat = wrong->compat;
    int err = dp_mixer_new(&config, &w->mixer);
    CHECK(err == (wrong->mismatch ? DP_EMISMATCH : DP_EINVAL));
    if (wrong->sentence)
        CHECK_SAYS(wrong->sentence);
    dp_graph_free(w->graph);
    free(w);
    return 0;
}

CASE(what_cannot_be_late_is_refused)
{
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
        if (comm_on_threads(RANKS, SECONDS(20), refuse, (void *)&wrongs[i]))
            fail_msg("case %zu", i);
}

RUN_QUIET_CASES(NULL, NULL)
