/* SPDX-License-Identifier: Apache-2.0
 *
 * What a mixer sends: compressed differences lead where whole blocks lead, keep the mean, take the bytes
 * that they should, and are part of the state.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_cases.h"
#include "mixing/exchange.h"
#include "mixer_now.h"
#include "mixing_worker.h"

/* ---- where they lead --------------------------------------------------------------------------- */

static int compare_with_whole(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct job whole = {.graph = job->graph, .factor = job->factor, .steps = job->steps};
    struct worker *w = calloc(2, sizeof(*w));
    double farthest = 0;

    CHECK(w && !open_worker(&w[0], comm, job) && !open_worker(&w[1], comm, &whole));
    for (int t = 0; t < job->steps; t++)
        for (int k = 0; k < 2; k++)
            CHECK(!iterate_worker(&w[k], 1));
    for (int i = 0; i < TOTAL; i++)
        farthest = fmax(farthest, fabs(get_value(&w[0], i) - get_value(&w[1], i)));
    if (!(farthest < 1e-9)) {
        printf("%s: %g from where whole blocks lead\n", job->graph, farthest);
        CHECK(!"the same point");
    }
    close_worker(&w[0]);
    close_worker(&w[1]);
    free(w);
    return 0;
}

CASE(compressed_differences_lead_where_whole_blocks_lead)
{
    static const char *const graphs[] = {"ring", "one-peer-exp", "torus", "complete", "star"};
    struct job job = {.compression = DP_COMPRESSION_INT8, .factor = 1, .steps = 300};

    for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++) {
        job.graph = graphs[i];
        assert_int_equal(comm_on_threads(RANKS, SECONDS(20), compare_with_whole, &job), 0);
    }
    job.graph = "ring";
    on_all_kinds(RANKS, SECONDS(20), compare_with_whole, &job);
}

/* ---- the mean ---------------------------------------------------------------------------------- */

static int keep_the_mean(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct worker *w = calloc(1, sizeof(*w));
    double before[16], after, apart = 0;

    CHECK(w && !open_worker(w, comm, job));
    for (int t = 0; t < 6; t++) /* they differ now */
        CHECK(!iterate_worker(w, 1));
    for (int k = 0; k < 16; k++)
        CHECK(!sum_over_workers(w, k * 37, &before[k]));
    for (int t = 0; t < job->steps; t++)
        CHECK(!iterate_worker(w, 0));
    for (int k = 0; k < 16; k++) {
        CHECK(!sum_over_workers(w, k * 37, &after));
        CHECK(fabs(after - before[k]) < (job->float32 ? 1e-5 : 1e-13));
        apart = fmax(apart, fabs(get_value(w, k * 37) - after / RANKS));
    }
    CHECK(apart < (job->float32 ? 1e-5 : 1e-7)); /* and all come to it */
    close_worker(w);
    free(w);
    return 0;
}

CASE(the_mean_of_all_workers_stays)
{
    static const char *const graphs[] = {"ring", "complete", "torus"};
    struct job job = {.compression = DP_COMPRESSION_INT8, .steps = 400};

    for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++) {
        job.graph = graphs[i];
        job.float32 = i % 2;
        if (i)
            assert_int_equal(comm_on_threads(RANKS, SECONDS(20), keep_the_mean, &job), 0);
        else
            on_all_kinds(RANKS, SECONDS(20), keep_the_mean, &job);
    }
}

/* ---- bytes ------------------------------------------------------------------------------------- */

static int count_bytes(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct worker *w = calloc(1, sizeof(*w));
    struct dp_mixer_report counts;
    int64_t message = 0, elements;
    const int32_t *numbers;

    CHECK(w && !open_worker(w, comm, job));
    for (int t = 0; t < job->steps; t++)
        CHECK(!iterate_worker(w, 1));
    for (int32_t b = 0; b < mixer_now(w->mixer).buckets; b++) {
        (void)dp_mixer_bucket(w->mixer, b, &numbers, &elements);
        if (job->compression == DP_COMPRESSION_INT8)
            message += elements + 4 * ((elements + 255) / 256);
        else
            message += elements * (job->float32 ? 4 : 8);
    }
    dp_mixer_report(w->mixer, &counts);
    /* Of the first two iterations one begins an exchange each; ring: a message each. */
    CHECK(counts.sent_bytes == message * job->steps);
    close_worker(w);
    free(w);
    return 0;
}

CASE(compressed_blocks_take_the_bytes_that_they_should)
{
    for (int float32 = 0; float32 < 2; float32++) {
        struct job job = {.graph = "ring", .steps = 9, .float32 = float32};
        on_all_kinds(RANKS, SECONDS(20), count_bytes, &job);
        job.compression = DP_COMPRESSION_INT8;
        on_all_kinds(RANKS, SECONDS(20), count_bytes, &job);
    }
}

/* ---- state ------------------------------------------------------------------------------------- */

static int go_on_elsewhere(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct worker *w = calloc(2, sizeof(*w));

    CHECK(w && !open_worker(&w[0], comm, job) && !open_worker(&w[1], comm, job));
    for (int t = 0; t < job->steps; t++)
        CHECK(!iterate_worker(&w[0], 1));
    CHECK(!copy_worker_state(&w[0], &w[1]));
    for (int t = 0; t < job->steps; t++)
        for (int k = 0; k < 2; k++)
            CHECK(!iterate_worker(&w[k], 1));
    CHECK(!memcmp(w[0].memory, w[1].memory, sizeof(w[0].memory)));
    close_worker(&w[0]);
    close_worker(&w[1]);
    free(w);
    return 0;
}

CASE(what_workers_know_of_each_other_is_part_of_the_state)
{
    struct job job = {.graph = "ring", .compression = DP_COMPRESSION_INT8, .steps = 7};
    on_all_kinds(RANKS, SECONDS(20), go_on_elsewhere, &job);
    job.graph = "torus";
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), go_on_elsewhere, &job), 0);
}

/* ---- the codec --------------------------------------------------------------------------------- */

CASE(int8_is_off_by_half_a_step_at_most_and_nan_spreads)
{
    enum { COUNT = 700 };
    static double x[COUNT], reference[COUNT];
    static char message[2048];
    const struct dp_codec c = dp_codec_of((DLDataType){kDLFloat, 64, 1}, COUNT);

    for (int i = 0; i < COUNT; i++)
        x[i] = sin(i) * (i < 256 ? 1e-3 : 10);
    assert_int_equal(c.bytes, COUNT + 3 * 4);
    dp_codec_write(&c, x, reference, message);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(x[i] - reference[i]) <= (i < 256 ? 1e-3 : 10) / 127 * 0.5001);
    for (int turn = 0; turn < 10; turn++)
        dp_codec_write(&c, x, reference, message);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(x[i] - reference[i]) < 1e-14);
    x[300] = NAN;
    dp_codec_write(&c, x, reference, message);
    for (int i = 0; i < COUNT; i++)
        assert_true(isnan(reference[i]) == (i / 256 == 1));
}

/* ---- what is wrong ----------------------------------------------------------------------------- */

static const struct wrong {
    const char *graph, *sentence;
    int compression;
    enum dp_mixer_algorithm algorithm;
    bool compat, mismatch;
    int bits;
} wrongs[] = {
    {.graph = "ring", .sentence = "compression: 2, expected 0 or 1", .compression = 2},
    {.graph = "ring", .sentence = "compression int8 with local-sgd, expected d-psgd",
     .compression = DP_COMPRESSION_INT8,
     .algorithm = DP_MIXER_LOCAL_SGD},
    {.graph = "directed-exp",
     .sentence = "mixing graph directed-exp, expected one without push-sum",
     .compression = DP_COMPRESSION_INT8},
    {.graph = "ring", .sentence = "compression int8 with compat",
     .compression = DP_COMPRESSION_INT8,
     .compat = true},
    {.graph = "ring", .sentence = "compression int8 of parameter 'p0', expected float32 or float64",
     .compression = DP_COMPRESSION_INT8,
     .bits = 16},
    {.graph = "ring", .sentence = "compression (0: none, 1: int8): rank 1 has 0, rank 0 has 1",
     .compression = DP_COMPRESSION_INT8,
     .mismatch = true},
};

static int refuse(struct dp_comm *comm, void *arg)
{
    const struct wrong *wrong = arg;
    struct worker *w = calloc(1, sizeof(*w));

    CHECK(w);
    describe_worker(w, comm, wrong->bits ? wrong->bits : 64);
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = wrong->graph, .workers = RANKS, .local = 1},
                        &w->graph));
    struct dp_mixer_config config = config_of_worker(w, &(struct job){0});
    config.compression = (enum dp_mixer_compression)wrong->compression;
    config.algorithm = wrong->algorithm;
    config.local_steps = config.outer_rate = wrong->algorithm == DP_MIXER_LOCAL_SGD;
    config.compat = wrong->compat;
    if (wrong->mismatch && dp_comm_rank(comm) == 1)
        config.compression = DP_COMPRESSION_NONE;
    int err = dp_mixer_new(&config, &w->mixer);
    CHECK(err == (wrong->mismatch ? DP_EMISMATCH : wrong->bits ? DP_EUNSUPPORTED : DP_EINVAL));
    if (wrong->sentence)
        CHECK_SAYS(wrong->sentence);
    dp_graph_free(w->graph);
    free(w);
    return 0;
}

CASE(what_cannot_be_compressed_is_refused)
{
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
        if (comm_on_threads(RANKS, SECONDS(20), refuse, (void *)&wrongs[i]))
            fail_msg("case %zu", i);
}

RUN_QUIET_CASES(NULL, NULL)
