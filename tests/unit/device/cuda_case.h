/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_case.h - what tests of pipelines on the simulated CUDA share.
 */
#ifndef DP_TESTS_CUDA_CASE_H
#define DP_TESTS_CUDA_CASE_H

#include "cuda_job.h"
#include "unit/pipeline/pipeline_case.h"

static inline int cuda_case_clean_up(void **state)
{
    cuda_job_fini();
    return 0;
}

/* A rank's part, once it is open: the n-th callback of rank 1 fails, n being the job's user data;
 * then all ranks reset and take the step again. comm is that of the pipeline. */
static inline int cuda_case_fail_then_train(struct job_rank *r, struct dp_comm *comm,
                                            const struct fake_cuda *fake)
{
    const int *n = r->job->user;

    cuda_job_fail_callback(dp_comm_rank(comm) == 1 ? *n : 0);
    int err = cuda_job_step(r);
    CHECK(err == (dp_comm_rank(comm) == 1 ? DP_ECALLBACK : DP_EABORTED));
    CHECK(!dp_comm_reset(comm));
    CHECK(!fake->busy()); /* of all ranks: none has begun again */
    CHECK(!dp_comm_barrier(comm));
    CHECK(!cuda_job_step(r));
    return 0;
}

#endif
