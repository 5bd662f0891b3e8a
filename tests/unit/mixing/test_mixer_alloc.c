/* SPDX-License-Identifier: Apache-2.0
 *
 * Iterations of a mixer allocate nothing once all rounds have been used; and a mixer that gets no memory
 * says so.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_cases.h"
#include "unit/base/failing_memory.h"
#include "mixing_worker.h"

/* ---- iterations --------------------------------------------------------------------------------- */

struct alloc_case {
    const char *graph;
    enum dp_mixer_algorithm algorithm;
    enum dp_mixer_compression compression;
    enum dp_mixer_clip clip;
    bool scaled, views;
    int staleness;
};

static const struct dp_loss_scale scale = {
    .scale = 8, .growth = 2, .backoff = 0.5, .interval = 1000, .least = 1, .most = 1024};

static int open_case(struct worker *w, struct dp_comm *comm, const struct alloc_case *c)
{
    const bool local = c->algorithm == DP_MIXER_LOCAL_SGD;

    describe_worker(w, comm, 64);
    int err = dp_graph_new(
        &(struct dp_graph_spec){.name = c->graph, .workers = dp_comm_size(comm), .local = 1}, &w->graph);
    struct dp_mixer_config config = config_of_worker(
        w, &(struct job){.compression = c->compression, .staleness = c->staleness});
    config.algorithm = c->algorithm;
    config.local_steps = local ? 2 : 0;
    config.outer_rate = local ? 1 : 0;
    config.clip_norm = 1;
    config.clip = c->clip;
    config.loss_scale = c->scaled ? &scale : NULL;
    config.separate = !c->views;
    return err ? err : dp_mixer_new(&config, &w->mixer);
}

static int count_allocations(struct dp_comm *comm, void *arg)
{
    enum { WARM = 6, MORE = 6 };
    static _Thread_local struct worker w;

    CHECK(!open_case(&w, comm, arg));
    for (int t = 0; t < WARM; t++)
        CHECK(!iterate_worker(&w, 1));
    allocations = 0;
    for (int t = 0; t < MORE; t++)
        CHECK(!iterate_worker(&w, 1));
    CHECK(allocations == 0);
    close_worker(&w);
    return 0;
}

CASE(iterations_allocate_nothing)
{
    static const struct alloc_case cases[] = {
        {.graph = "one-peer-exp", .views = true},
        {.graph = "complete", .clip = DP_CLIP_GLOBAL},
        {.graph = "torus", .scaled = true},
        {.graph = "directed-exp"},
        {.graph = "complete", .algorithm = DP_MIXER_LOCAL_SGD},
        {.graph = "one-peer-exp", .compression = DP_COMPRESSION_INT8},
        {.graph = "ring", .staleness = 2},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), count_allocations, (void *)(uintptr_t)&cases[i]);
}

/* ---- without memory ----------------------------------------------------------------------------- */

/* A mixer and its first update, of which allocation number `fail` fails. */
static int mix_alone(const struct alloc_case *c, int fail, bool *failed)
{
    static struct worker w;
    struct dp_comm *comm;

    assert_int_equal(dp_comm_threads_new(1, &comm), 0);
    until_no_memory = fail;
    int err = open_case(&w, comm, c);
    for (int t = 0; t < 2 && !err; t++)
        err = iterate_worker(&w, 1);
    *failed = until_no_memory < 0;
    until_no_memory = -1;
    close_worker(&w);
    dp_comm_close(comm);
    return err;
}

static void every_failure_is_reported(const struct alloc_case *c)
{
    bool failed = true;
    int fail = 0;

    for (; failed; fail++) {
        const int err = mix_alone(c, fail, &failed);
        assert_int_equal(err, failed ? DP_ENOMEM : 0);
    }
    assert_in_range(fail, 20, 1000);
}

CASE(a_mixer_that_gets_no_memory_says_so)
{
    every_failure_is_reported(&(struct alloc_case){.graph = "complete", .views = true});
    every_failure_is_reported(&(struct alloc_case){.graph = "torus", .algorithm = DP_MIXER_LOCAL_SGD});
    every_failure_is_reported(&(struct alloc_case){.graph = "complete", .compression = DP_COMPRESSION_INT8});
    every_failure_is_reported(&(struct alloc_case){.graph = "complete", .staleness = 1});
}

RUN_QUIET_CASES(NULL, NULL)
