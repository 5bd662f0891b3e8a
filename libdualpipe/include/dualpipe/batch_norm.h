/* SPDX-License-Identifier: Apache-2.0
 *
 * batch_norm.h - batch normalisation under micro-batches: each micro-batch is normalised with its
 * own mean and variance, and the running statistics are those of the whole mini-batch (deferred
 * batch normalisation).
 *
 *      forward   mb 0   mean, M2, count -.
 *                mb 1   mean, M2, count -+-> commit: one mean and variance -> running statistics
 *                ...                     |
 *                other replicas ---------'
 *
 * Statistics are kept for each micro-batch and merged in their order (Chan et al., 1979), in
 * double, so that they do not depend on the order in which a schedule, or messages, bring the
 * micro-batches, and sums of squares do not cancel. With `compat` they are what fairscale's
 * DeferredBatchNorm has.
 *
 * Values are float32 in host memory, rows after rows of `channels`; a convolution's pixels are
 * rows. Threads: one at a time for each struct.
 *
 * Source: GPipe (Huang et al., 2019); torchgpipe's and fairscale's DeferredBatchNorm.
 */
#ifndef DUALPIPE_BATCH_NORM_H
#define DUALPIPE_BATCH_NORM_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_batch_norm_config {
    int32_t channels;     /* >= 1 */
    int32_t microbatches; /* most of a step; with compat: exactly that many make a commit */
    double epsilon;       /* added to variances; 0: 1e-5 */
    double momentum;      /* share of the new statistics, 0 .. 1; 0: 0.1 */
    bool cumulative;      /* the mean over all commits instead: a share of 1 / their number */
    bool unbiased; /* running variance by count - 1, as ordinary batch normalisation has it */
    bool compat;   /* sums of x and x * x in float32; a commit as soon as `microbatches` have come,
                    * so that fewer are left over for the next step; biased */
    const float *mean, *variance; /* [channels] running statistics to begin with, copied; NULL: 0, 1 */
    int64_t commits;              /* so far */
};

struct dp_batch_norm;

/* DP_EINVAL naming the member; DP_ENOMEM. The caller frees. */
DP_PUBLIC int dp_batch_norm_new(const struct dp_batch_norm_config *config,
                                struct dp_batch_norm **out);
DP_PUBLIC void dp_batch_norm_free(struct dp_batch_norm *bn);

enum dp_batch_norm_mode {
    DP_BATCH_NORM_TRAIN,     /* by its own statistics, which are noted */
    DP_BATCH_NORM_RECOMPUTE, /* the same, noted before (dp_stage_call.recomputing) */
    DP_BATCH_NORM_EVALUATE   /* by the running statistics */
};

/* y = xhat * gain + bias of micro-batch mb, x[rows * channels]; xhat[rows * channels] and
 * rstd[channels] are what the backward needs. x may be y, and xhat may be NULL where no
 * backward follows. gain or
 * bias NULL: 1, 0. DP_EINVAL: rows < 1, mb outside, a micro-batch that was noted twice in a step.
 */
DP_PUBLIC int dp_batch_norm_forward(struct dp_batch_norm *bn, enum dp_batch_norm_mode mode,
                                    int32_t mb, int64_t rows, const float *x, const float *gain,
                                    const float *bias, float *y, float *xhat, float *rstd);
/* dx of TRAIN, through the statistics; dx may be dy. */
DP_PUBLIC void dp_batch_norm_backward(const struct dp_batch_norm *bn, int64_t rows, const float *dy,
                                      const float *gain, const float *xhat, const float *rstd,
                                      float *dx);
/* Adds to dgain[channels] and dbias[channels]; either may be NULL. */
DP_PUBLIC void dp_batch_norm_weight(const struct dp_batch_norm *bn, int64_t rows, const float *dy,
                                    const float *xhat, float *dgain, float *dbias);

/* The end of a step: the statistics of all micro-batches noted since the last commit, whatever
 * their number, become part of the running ones. None: nothing changes. With compat a commit has
 * been made by the forward, and this does nothing.
 *
 * all[count]: what dp_batch_norm_export gave of each micro-batch of each replica, in the same order
 * everywhere (dp_comm_allgather): then all replicas get the same running statistics. NULL: this one
 * alone. */
DP_PUBLIC void dp_batch_norm_commit(struct dp_batch_norm *bn, const double *all, int32_t count);
/* Forget what was noted since the last commit: after a step that has failed. */
DP_PUBLIC void dp_batch_norm_forget(struct dp_batch_norm *bn);
/* out[1 + 2 * channels] of micro-batch mb: the number of rows, 0 if it was not noted here, then mean
 * and sum of squared deviations of each channel. A commit of those of all micro-batches, in their
 * order, is to the last bit that of a process that has noted all of them.
 * mb: 0 .. microbatches - 1; not with compat, which keeps sums only. */
DP_PUBLIC void dp_batch_norm_export(const struct dp_batch_norm *bn, int32_t mb, double *out);

/* What it keeps, to be read and saved, or written after loading. */
struct dp_batch_norm_state {
    float *mean, *variance; /* [channels] the running statistics */
    int64_t *commits;       /* so far */
};
DP_PUBLIC void dp_batch_norm_kept(struct dp_batch_norm *bn, struct dp_batch_norm_state *out);

static inline float *dp_batch_norm_running_mean(struct dp_batch_norm *bn)
{
    struct dp_batch_norm_state state;

    dp_batch_norm_kept(bn, &state);
    return state.mean;
}

static inline float *dp_batch_norm_running_variance(struct dp_batch_norm *bn)
{
    struct dp_batch_norm_state state;

    dp_batch_norm_kept(bn, &state);
    return state.variance;
}

static inline int64_t *dp_batch_norm_commits(struct dp_batch_norm *bn)
{
    struct dp_batch_norm_state state;

    dp_batch_norm_kept(bn, &state);
    return state.commits;
}

#ifdef __cplusplus
}
#endif
#endif
