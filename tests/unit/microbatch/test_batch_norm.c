/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <dualpipe/batch_norm.h>
#include <dualpipe/random.h>

enum { CHANNELS = 3, MBS = 4, MAX_ROWS = 32 };
static const int64_t sizes[MBS] = {5, 1, 7, 3}; /* uneven */

struct data {
    float x[MBS][MAX_ROWS * CHANNELS], y[MAX_ROWS * CHANNELS], xhat[MAX_ROWS * CHANNELS];
    float rstd[CHANNELS];
};

static void fill(struct data *d, float offset)
{
    for (int mb = 0; mb < MBS; mb++) {
        dp_random_normal(dp_random_key(3, (uint64_t)mb, 0, 0), 0, d->x[mb], MAX_ROWS * CHANNELS);
        for (int i = 0; i < MAX_ROWS * CHANNELS; i++)
            d->x[mb][i] = offset + (float)(mb + 1) * d->x[mb][i];
    }
}

static struct dp_batch_norm *make(struct dp_batch_norm_config config)
{
    struct dp_batch_norm *bn = NULL;

    config.channels = CHANNELS;
    if (!config.microbatches)
        config.microbatches = MBS;
    assert_int_equal(dp_batch_norm_new(&config, &bn), 0);
    return bn;
}

static void forward(struct dp_batch_norm *bn, enum dp_batch_norm_mode mode, struct data *d, int mb)
{
    assert_int_equal(dp_batch_norm_forward(bn, mode, mb, sizes[mb], d->x[mb], NULL, NULL, d->y,
                                           d->xhat, d->rstd),
                     0);
}

/* Mean and sum of squared deviations of a channel over micro-batches 0 .. mbs - 1. */
static void whole(const struct data *d, int mbs, int c, double *mean, double *m2, int64_t *count)
{
    *mean = *m2 = 0;
    *count = 0;
    for (int mb = 0; mb < mbs; mb++)
        for (int64_t r = 0; r < sizes[mb]; r++, ++*count)
            *mean += d->x[mb][r * CHANNELS + c];
    *mean /= (double)*count;
    for (int mb = 0; mb < mbs; mb++)
        for (int64_t r = 0; r < sizes[mb]; r++)
            *m2 += pow(d->x[mb][r * CHANNELS + c] - *mean, 2);
}

static void expect_near(double has, double wants)
{
    if (!(fabs(has - wants) <= 1e-5 * (1 + fabs(wants))))
        fail_msg("%.9g, expected %.9g", has, wants);
}

static void expect_running(struct dp_batch_norm *bn, const struct data *d, int mbs, double share,
                           bool unbiased)
{
    for (int c = 0; c < CHANNELS; c++) {
        double mean, m2;
        int64_t count;
        whole(d, mbs, c, &mean, &m2, &count);
        expect_near(dp_batch_norm_running_mean(bn)[c], share * mean);
        expect_near(dp_batch_norm_running_variance(bn)[c],
                    1 - share + share * m2 / (double)(count - unbiased));
    }
}

CASE(running_statistics_are_those_of_the_whole_mini_batch)
{
    struct dp_batch_norm *bn;
    struct data d;

    fill(&d, 0.5f);
    for (int unbiased = 0; unbiased < 2; unbiased++)
        for (int mbs = 1; mbs <= MBS; mbs++) { /* a step may have fewer than there is room for */
            bn = make((struct dp_batch_norm_config){.momentum = 0.25, .unbiased = unbiased});
            for (int mb = 0; mb < mbs; mb++)
                forward(bn, DP_BATCH_NORM_TRAIN, &d, mb);
            dp_batch_norm_commit(bn, NULL, 0);
            dp_batch_norm_commit(bn, NULL, 0); /* nothing since */
            assert_int_equal(*dp_batch_norm_commits(bn), 1);
            expect_running(bn, &d, mbs, 0.25, unbiased);
            dp_batch_norm_free(bn);
        }
}

CASE(running_statistics_begin_as_told)
{
    OWNED(dp_batch_norm) *bn = NULL;
    float mean[CHANNELS], variance[CHANNELS];

    for (int c = 0; c < CHANNELS; c++) {
        mean[c] = (float)c;
        variance[c] = (float)(c + 2);
    }
    bn = make((struct dp_batch_norm_config){.mean = mean, .variance = variance, .commits = 7});
    assert_memory_equal(dp_batch_norm_running_mean(bn), mean, sizeof(mean));
    assert_memory_equal(dp_batch_norm_running_variance(bn), variance, sizeof(variance));
    assert_int_equal(*dp_batch_norm_commits(bn), 7);
}

CASE(squares_of_values_far_from_zero_do_not_cancel)
{
    OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){.momentum = 1});
    struct data d;

    fill(&d, 1e4f);
    for (int mb = 0; mb < MBS; mb++)
        forward(bn, DP_BATCH_NORM_TRAIN, &d, mb);
    dp_batch_norm_commit(bn, NULL, 0);
    expect_running(bn, &d, MBS, 1, false);
}

CASE(a_step_that_failed_is_forgotten)
{
    OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){.momentum = 1});
    struct data d;

    fill(&d, 0);
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 0);
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 3);
    dp_batch_norm_forget(bn);
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 0);
    dp_batch_norm_commit(bn, NULL, 0);
    expect_running(bn, &d, 1, 1, false);
}

CASE(the_order_of_micro_batches_does_not_matter_to_the_last_bit)
{
    static const int orders[][MBS] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
    float first[2][CHANNELS];
    struct data d;

    fill(&d, 2);
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){0});
        for (int k = 0; k < MBS; k++)
            forward(bn, DP_BATCH_NORM_TRAIN, &d, orders[i][k]);
        dp_batch_norm_commit(bn, NULL, 0);
        if (!i) {
            memcpy(first[0], dp_batch_norm_running_mean(bn), sizeof(first[0]));
            memcpy(first[1], dp_batch_norm_running_variance(bn), sizeof(first[1]));
        }
        assert_memory_equal(first[0], dp_batch_norm_running_mean(bn), sizeof(first[0]));
        assert_memory_equal(first[1], dp_batch_norm_running_variance(bn), sizeof(first[1]));
    }
}

/* Micro-batches 0 and 2 on one rank, 1 and 3 on another. */
CASE(a_commit_of_each_micro_batch_is_that_of_one_process_to_the_last_bit)
{
    struct dp_batch_norm *bn[3];
    double all[MBS][1 + 2 * CHANNELS], one[1 + 2 * CHANNELS];
    struct data d;

    fill(&d, 2);
    for (int i = 0; i < 3; i++)
        bn[i] = make((struct dp_batch_norm_config){0});
    for (int mb = 0; mb < MBS; mb++) {
        forward(bn[mb % 2], DP_BATCH_NORM_TRAIN, &d, mb);
        forward(bn[2], DP_BATCH_NORM_TRAIN, &d, mb);
        dp_batch_norm_export(bn[mb % 2], mb, all[mb]);
        dp_batch_norm_export(bn[(mb + 1) % 2], mb, one);
        assert_true(all[mb][0] > 0 && one[0] == 0 && one[1] == 0);
    }
    for (int i = 0; i < 3; i++) {
        dp_batch_norm_commit(bn[i], i < 2 ? all[0] : NULL, MBS);
        assert_memory_equal(dp_batch_norm_running_mean(bn[0]), dp_batch_norm_running_mean(bn[i]),
                            CHANNELS * sizeof(float));
        assert_memory_equal(dp_batch_norm_running_variance(bn[0]),
                            dp_batch_norm_running_variance(bn[i]), CHANNELS * sizeof(float));
    }
    for (int i = 0; i < 3; i++)
        dp_batch_norm_free(bn[i]);
}

CASE(replicas_commit_the_statistics_of_all)
{
    struct dp_batch_norm *bn[2];
    double all[4][1 + 2 * CHANNELS];
    struct data d;

    fill(&d, 0);
    for (int i = 0; i < 2; i++) {
        bn[i] = make((struct dp_batch_norm_config){.momentum = 0.5});
        forward(bn[i], DP_BATCH_NORM_TRAIN, &d, 2 * i);
        forward(bn[i], DP_BATCH_NORM_TRAIN, &d, 2 * i + 1);
        for (int k = 0; k < 2; k++)
            dp_batch_norm_export(bn[i], 2 * i + k, all[2 * i + k]);
    }
    for (int i = 0; i < 2; i++) {
        dp_batch_norm_commit(bn[i], all[0], 4);
        expect_running(bn[i], &d, MBS, 0.5, false);
        dp_batch_norm_free(bn[i]);
    }
}

CASE(a_cumulative_mean_weighs_all_commits_alike)
{
    OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){.cumulative = true});
    double sum[CHANNELS] = {0};
    struct data d;

    fill(&d, 1);
    for (int mb = 0; mb < 3; mb++) {
        forward(bn, DP_BATCH_NORM_TRAIN, &d, mb);
        dp_batch_norm_commit(bn, NULL, 0);
        for (int c = 0; c < CHANNELS; c++) {
            double mean = 0;
            for (int64_t r = 0; r < sizes[mb]; r++)
                mean += d.x[mb][r * CHANNELS + c] / (double)sizes[mb];
            sum[c] += mean;
            expect_near(dp_batch_norm_running_mean(bn)[c], sum[c] / (mb + 1));
        }
    }
}

/* What fairscale does: a commit when the number that was asked for has come, with biased variance;
 * fewer stay for the next step. */
CASE(compat_commits_when_all_chunks_have_come)
{
    OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){
        .compat = true, .microbatches = 3, .momentum = 0.5, .unbiased = true});
    struct data d;

    fill(&d, 0);
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 0);
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 1);
    dp_batch_norm_commit(bn, NULL, 0); /* the step is over, and brought too few */
    assert_int_equal(*dp_batch_norm_commits(bn), 0);
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 2);
    assert_int_equal(*dp_batch_norm_commits(bn), 1);
    expect_running(bn, &d, 3, 0.5, false);
}

/* ---- the layer ------------------------------------------------------------------------------- */

CASE(recomputing_gives_the_same_and_notes_nothing)
{
    OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){.momentum = 1});
    struct data d, again;

    fill(&d, 0);
    again = d;
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 0);
    forward(bn, DP_BATCH_NORM_RECOMPUTE, &again, 0);
    assert_memory_equal(d.y, again.y, (size_t)sizes[0] * CHANNELS * sizeof(float));
    assert_memory_equal(d.xhat, again.xhat, (size_t)sizes[0] * CHANNELS * sizeof(float));
    dp_batch_norm_commit(bn, NULL, 0);
    expect_running(bn, &d, 1, 1, false);
}

CASE(evaluation_takes_the_running_statistics)
{
    OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){.epsilon = 1e-3});
    struct data d;

    fill(&d, 0);
    for (int c = 0; c < CHANNELS; c++) {
        dp_batch_norm_running_mean(bn)[c] = (float)c;
        dp_batch_norm_running_variance(bn)[c] = (float)(c + 1);
    }
    forward(bn, DP_BATCH_NORM_EVALUATE, &d, 2);
    for (int i = 0; i < sizes[2] * CHANNELS; i++) {
        const int c = i % CHANNELS;
        expect_near(d.y[i], (d.x[2][i] - c) / sqrt(c + 1 + 1e-3));
    }
    dp_batch_norm_commit(bn, NULL, 0);
    assert_int_equal(*dp_batch_norm_commits(bn), 0);
}

static const float gain[CHANNELS] = {1.5f, -0.5f, 2}, bias[CHANNELS] = {0.25f, 0, -1};

/* A scalar of the outputs, whose gradient is dy. */
static double scalar(struct dp_batch_norm *bn, const float *x, const float *g, const float *dy)
{
    float y[MAX_ROWS * CHANNELS];
    double sum = 0;

    assert_int_equal(
        dp_batch_norm_forward(bn, DP_BATCH_NORM_RECOMPUTE, 2, sizes[2], x, g, bias, y, NULL, NULL),
        0);
    for (int i = 0; i < sizes[2] * CHANNELS; i++)
        sum += (double)y[i] * dy[i];
    return sum;
}

CASE(gradients_are_those_of_finite_differences)
{
    OWNED(dp_batch_norm) *bn = make((struct dp_batch_norm_config){0});
    float dx[MAX_ROWS * CHANNELS], dgain[CHANNELS] = {0}, dbias[CHANNELS] = {0};
    const float *dy;
    const double step = 1e-2;
    struct data d;

    fill(&d, 0);
    dy = d.x[0];
    assert_int_equal(dp_batch_norm_forward(bn, DP_BATCH_NORM_TRAIN, 2, sizes[2], d.x[2], gain, bias,
                                           d.y, d.xhat, d.rstd),
                     0);
    dp_batch_norm_backward(bn, sizes[2], dy, gain, d.xhat, d.rstd, dx);
    dp_batch_norm_weight(bn, sizes[2], dy, d.xhat, dgain, dbias);
    for (int i = 0; i < sizes[2] * CHANNELS; i++) {
        float up[MAX_ROWS * CHANNELS], down[MAX_ROWS * CHANNELS];
        memcpy(up, d.x[2], sizeof(up));
        memcpy(down, d.x[2], sizeof(down));
        up[i] += (float)step;
        down[i] -= (float)step;
        double slope = (scalar(bn, up, gain, dy) - scalar(bn, down, gain, dy)) / (2 * step);
        assert_true(fabs(slope - dx[i]) < 2e-3 * (1 + fabs(slope)));
    }
    for (int c = 0; c < CHANNELS; c++) {
        double of_gain = 0, of_bias = 0;
        for (int i = c; i < sizes[2] * CHANNELS; i += CHANNELS) {
            of_gain += (double)dy[i] * d.xhat[i];
            of_bias += dy[i];
        }
        expect_near(dgain[c], of_gain);
        expect_near(dbias[c], of_bias);
    }
}

CASE(what_is_wrong_is_named)
{
    OWNED(dp_batch_norm) *bn = NULL;
    struct data d;

    fill(&d, 0);
    assert_int_equal(dp_batch_norm_new(&(struct dp_batch_norm_config){.channels = 2}, &bn),
                     DP_EINVAL);
    assert_string_equal(dp_last_error(), "batch normalisation: 2 channels and 0 micro-batches, "
                                         "expected at least 1 of each");
    assert_int_equal(
        dp_batch_norm_new(
            &(struct dp_batch_norm_config){.channels = 1, .microbatches = 1, .momentum = 2}, &bn),
        DP_EINVAL);
    assert_null(bn);
    bn = make((struct dp_batch_norm_config){0});
    forward(bn, DP_BATCH_NORM_TRAIN, &d, 1);
    assert_int_equal(dp_batch_norm_forward(bn, DP_BATCH_NORM_TRAIN, 1, 1, d.x[1], NULL, NULL, d.y,
                                           d.xhat, d.rstd),
                     DP_EINVAL);
    assert_string_equal(dp_last_error(),
                        "batch normalisation: micro-batch 1 has come twice, expected "
                        "a commit at the end of the step");
    assert_int_equal(dp_batch_norm_forward(bn, DP_BATCH_NORM_TRAIN, MBS, 1, d.x[1], NULL, NULL, d.y,
                                           d.xhat, d.rstd),
                     DP_EINVAL);
    assert_string_equal(dp_last_error(),
                        "batch normalisation: micro-batch 4 of 1 rows, expected 0 to "
                        "3 of at least 1");
    dp_batch_norm_free(NULL);
}

RUN_QUIET_CASES(NULL, NULL)
