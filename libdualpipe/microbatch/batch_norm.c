/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/batch_norm.h>

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a channel: mean, and sum of squared deviations from it. */
struct moments {
    double mean, m2;
};

struct dp_batch_norm {
    struct dp_batch_norm_config config;
    struct moments *noted;                                  /* [microbatches * channels] */
    int64_t *rows;                                          /* [microbatches] 0: not noted */
    struct moments *total;                                  /* [channels] scratch of a commit */
    float *running_mean, *running_variance, *sum, *squares; /* [channels]; compat: the last two */
    int64_t commits, compat_rows;
    int32_t compat_seen;
};

static int check(const struct dp_batch_norm_config *c)
{
    if (c->channels < 1 || c->microbatches < 1)
        return dp_fail(DP_EINVAL,
                       "batch normalisation: %d channels and %d micro-batches, expected "
                       "at least 1 of each",
                       c->channels, c->microbatches);
    if (!(c->epsilon >= 0) || !(c->momentum >= 0 && c->momentum <= 1))
        return dp_fail(DP_EINVAL,
                       "batch normalisation: epsilon %g and momentum %g, expected at least 0, "
                       "and 0 to 1",
                       c->epsilon, c->momentum);
    return 0;
}

static bool take_memory(struct dp_batch_norm *bn)
{
    const size_t channels = (size_t)bn->config.channels, mbs = (size_t)bn->config.microbatches;

    bn->noted = calloc(mbs * channels, sizeof(*bn->noted));
    bn->rows = calloc(mbs, sizeof(*bn->rows));
    bn->total = calloc(channels, sizeof(*bn->total));
    bn->running_mean = calloc(4 * channels, sizeof(float));
    if (!bn->noted || !bn->rows || !bn->total || !bn->running_mean)
        return false;
    bn->running_variance = bn->running_mean + channels;
    bn->sum = bn->running_mean + 2 * channels;
    bn->squares = bn->running_mean + 3 * channels;
    for (size_t c = 0; c < channels; c++) {
        bn->running_mean[c] = bn->config.mean ? bn->config.mean[c] : 0;
        bn->running_variance[c] = bn->config.variance ? bn->config.variance[c] : 1;
    }
    bn->commits = bn->config.commits;
    return true;
}

int dp_batch_norm_new(const struct dp_batch_norm_config *config, struct dp_batch_norm **out)
{
    int err = check(config);

    if (err)
        return err;
    struct dp_batch_norm *bn = calloc(1, sizeof(*bn));
    if (bn)
        bn->config = *config;
    if (!bn || !take_memory(bn)) {
        dp_batch_norm_free(bn);
        return dp_fail(DP_ENOMEM, "no memory for the statistics of %d micro-batches of %d channels",
                       config->microbatches, config->channels);
    }
    if (bn->config.epsilon == 0)
        bn->config.epsilon = 1e-5;
    if (bn->config.momentum == 0)
        bn->config.momentum = 0.1;
    *out = bn;
    return 0;
}

void dp_batch_norm_free(struct dp_batch_norm *bn)
{
    if (!bn)
        return;
    free(bn->running_mean);
    free(bn->total);
    free(bn->rows);
    free(bn->noted);
    free(bn);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static struct moments moments_of(const float *x, int64_t rows, int32_t channels, int32_t c)
{
    struct moments m = {0, 0};

    for (int64_t r = 0; r < rows; r++)
        m.mean += x[r * channels + c];
    m.mean /= (double)rows;
    for (int64_t r = 0; r < rows; r++)
        m.m2 += (x[r * channels + c] - m.mean) * (x[r * channels + c] - m.mean);
    return m;
}

/* The moments of n and more rows together. */
static void merge(struct moments *to, double n, const struct moments *from, double more)
{
    const double delta = from->mean - to->mean, all = n + more;

    to->mean += delta * more / all;
    to->m2 += from->m2 + delta * delta * n * more / all;
}

static void update(struct dp_batch_norm *bn, int32_t c, double mean, double variance)
{
    const double share = bn->config.cumulative ? 1 / (double)bn->commits : bn->config.momentum;

    bn->running_mean[c] = (float)((1 - share) * bn->running_mean[c] + share * mean);
    bn->running_variance[c] = (float)((1 - share) * bn->running_variance[c] + share * variance);
}

/* Of all micro-batches noted, in their order, to total; returns the rows. */
static int64_t add_up(const struct dp_batch_norm *bn, struct moments *total)
{
    const int32_t channels = bn->config.channels;
    int64_t rows = 0;

    memset(total, 0, (size_t)channels * sizeof(*total));
    for (int32_t mb = 0; mb < bn->config.microbatches; mb++) {
        for (int32_t c = 0; c < channels && bn->rows[mb]; c++)
            merge(&total[c], (double)rows, &bn->noted[(size_t)mb * (size_t)channels + (size_t)c],
                  (double)bn->rows[mb]);
        rows += bn->rows[mb];
    }
    return rows;
}

static size_t export_len(const struct dp_batch_norm *bn)
{
    return 1 + 2 * (size_t)bn->config.channels;
}

static void export_moments(const struct dp_batch_norm *bn, int64_t rows, const struct moments *m,
                           double *out)
{
    out[0] = (double)rows;
    for (int32_t c = 0; c < bn->config.channels; c++) {
        out[1 + 2 * c] = m[c].mean;
        out[2 + 2 * c] = m[c].m2;
    }
}

void dp_batch_norm_export(const struct dp_batch_norm *bn, int32_t mb, double *out)
{
    if (bn->rows[mb])
        export_moments(bn, bn->rows[mb], &bn->noted[(size_t)mb * (size_t)bn->config.channels], out);
    else
        memset(out, 0, export_len(bn) * sizeof(*out));
}

/* The same of replicas, in their order. */
static int64_t add_up_replicas(struct dp_batch_norm *bn, const double *all, int32_t count)
{
    const int32_t channels = bn->config.channels;
    double rows = 0;

    memset(bn->total, 0, (size_t)channels * sizeof(*bn->total));
    for (int32_t i = 0; i < count; i++, all += export_len(bn)) {
        for (int32_t c = 0; c < channels && all[0] > 0; c++)
            merge(&bn->total[c], rows, &(struct moments){all[1 + 2 * c], all[2 + 2 * c]}, all[0]);
        rows += all[0];
    }
    return (int64_t)rows;
}

void dp_batch_norm_commit(struct dp_batch_norm *bn, const double *all, int32_t count)
{
    if (bn->config.compat)
        return;
    const int64_t rows = all ? add_up_replicas(bn, all, count) : add_up(bn, bn->total);
    const double divisor = bn->config.unbiased && rows > 1 ? (double)rows - 1 : (double)rows;

    bn->commits += rows > 0;
    for (int32_t c = 0; c < bn->config.channels && rows; c++)
        update(bn, c, bn->total[c].mean, bn->total[c].m2 / divisor);
    memset(bn->rows, 0, (size_t)bn->config.microbatches * sizeof(*bn->rows));
}

void dp_batch_norm_forget(struct dp_batch_norm *bn)
{
    const size_t channels = (size_t)bn->config.channels;

    memset(bn->rows, 0, (size_t)bn->config.microbatches * sizeof(*bn->rows));
    memset(bn->sum, 0, 2 * channels * sizeof(*bn->sum)); /* and the squares, behind them */
    bn->compat_seen = 0;
    bn->compat_rows = 0;
}

/* ---- as fairscale does ----------------------------------------------------------------------- */

static void note_compat(struct dp_batch_norm *bn, int64_t rows, const float *x)
{
    const int32_t channels = bn->config.channels;

    for (int64_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < channels; c++) {
            bn->sum[c] += x[r * channels + c];
            bn->squares[c] += x[r * channels + c] * x[r * channels + c];
        }
    bn->compat_rows += rows;
    if (++bn->compat_seen < bn->config.microbatches)
        return;
    bn->commits++;
    for (int32_t c = 0; c < channels; c++) {
        const float mean = bn->sum[c] / (float)bn->compat_rows;
        update(bn, c, mean, bn->squares[c] / (float)bn->compat_rows - mean * mean);
        bn->sum[c] = bn->squares[c] = 0;
    }
    bn->compat_seen = 0;
    bn->compat_rows = 0;
}

/* ---- the layer ------------------------------------------------------------------------------- */

static int note(struct dp_batch_norm *bn, int32_t mb, int64_t rows, const float *x)
{
    if (bn->config.compat) {
        note_compat(bn, rows, x);
        return 0;
    }
    if (bn->rows[mb])
        return dp_fail(DP_EINVAL,
                       "batch normalisation: micro-batch %d has come twice, expected a "
                       "commit at the end of the step",
                       mb);
    bn->rows[mb] = rows;
    return 0;
}

static void normalise(int64_t rows, int32_t channels, int32_t c, const float *x, double mean,
                      double rstd, const float *gain, const float *bias, float *y, float *xhat)
{
    const double g = gain ? gain[c] : 1, b = bias ? bias[c] : 0;

    for (int64_t at = c; at < rows * channels; at += channels) {
        const double value = (x[at] - mean) * rstd;
        if (xhat)
            xhat[at] = (float)value;
        y[at] = (float)(value * g + b);
    }
}

int dp_batch_norm_forward(struct dp_batch_norm *bn, enum dp_batch_norm_mode mode, int32_t mb,
                          int64_t rows, const float *x, const float *gain, const float *bias,
                          float *y, float *xhat, float *rstd)
{
    const int32_t channels = bn->config.channels;

    if (rows < 1 || mb < 0 || mb >= bn->config.microbatches)
        return dp_fail(DP_EINVAL,
                       "batch normalisation: micro-batch %d of %lld rows, expected 0 to %d "
                       "of at least 1",
                       mb, (long long)rows, bn->config.microbatches - 1);
    int err = mode == DP_BATCH_NORM_TRAIN ? note(bn, mb, rows, x) : 0;
    for (int32_t c = 0; c < channels && !err; c++) {
        struct moments m = {bn->running_mean[c], bn->running_variance[c] * (double)rows};
        if (mode != DP_BATCH_NORM_EVALUATE)
            m = moments_of(x, rows, channels, c);
        if (mode == DP_BATCH_NORM_TRAIN)
            bn->noted[(size_t)mb * (size_t)channels + (size_t)c] = m;
        const double r = 1 / sqrt(m.m2 / (double)rows + bn->config.epsilon);
        normalise(rows, channels, c, x, m.mean, r, gain, bias, y, xhat);
        if (rstd)
            rstd[c] = (float)r;
    }
    return err;
}

/* dx = gain rstd (dy - mean(dy) - xhat mean(dy xhat)) */
void dp_batch_norm_backward(const struct dp_batch_norm *bn, int64_t rows, const float *dy,
                            const float *gain, const float *xhat, const float *rstd, float *dx)
{
    const int32_t channels = bn->config.channels;

    for (int32_t c = 0; c < channels; c++) {
        double mean = 0, along = 0;
        for (int64_t at = c; at < rows * channels; at += channels) {
            mean += dy[at];
            along += (double)dy[at] * xhat[at];
        }
        mean /= (double)rows;
        along /= (double)rows;
        for (int64_t at = c; at < rows * channels; at += channels)
            dx[at] = (float)((gain ? gain[c] : 1) * rstd[c] * (dy[at] - mean - xhat[at] * along));
    }
}

void dp_batch_norm_weight(const struct dp_batch_norm *bn, int64_t rows, const float *dy,
                          const float *xhat, float *dgain, float *dbias)
{
    const int32_t channels = bn->config.channels;

    for (int32_t c = 0; c < channels; c++) {
        double gain = 0, bias = 0;
        for (int64_t at = c; at < rows * channels; at += channels) {
            gain += (double)dy[at] * xhat[at];
            bias += dy[at];
        }
        if (dgain)
            dgain[c] += (float)gain;
        if (dbias)
            dbias[c] += (float)bias;
    }
}

void dp_batch_norm_kept(struct dp_batch_norm *bn, struct dp_batch_norm_state *out)
{
    *out = (struct dp_batch_norm_state){bn->running_mean, bn->running_variance, &bn->commits};
}

