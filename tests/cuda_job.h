/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_job.h - the job of pipeline_job.h on the stand-in for CUDA. The model's "kernels" are host
 * functions in the pipeline's stream (cuLaunchHostFunc) that reach device memory the stand-in's
 * way; gradients and batches are in device memory. A rank is a thread, and rank r uses device
 * r % FAKE_CUDA_DEVICES.
 */
#ifndef DP_TESTS_CUDA_JOB_H
#define DP_TESTS_CUDA_JOB_H

#include "fakes/fake_cuda.h"
#include "pipeline_job.h"

/* Point the library at the stand-in. NULL, with the reason printed, if it is not there. */
const struct fake_cuda *cuda_job_init(void);
/* Use the driver that the library is pointed at: one device, whose memory the CPU reaches. */
void cuda_job_init_reachable(void);

/* For a job: its ops and its edit. */
extern const struct dp_stage_ops cuda_job_ops;
void cuda_job_edit(void *user, int rank, struct dp_pipeline_config *config);

/* The calling thread's jobs are on this device, which stays open; not on one of their own. */
void cuda_job_use_device(struct dp_device *dev);

/* Like job_rank_open, _step and _close, in the rank's thread. */
int cuda_job_open(struct job_rank *r, const struct job *job, struct dp_comm *comm);
int cuda_job_step(struct job_rank *r);
void cuda_job_close(struct job_rank *r);
/* What the calling thread's job has on the host to the device, or back. */
int cuda_job_copy(bool up);
/* From now on cuda_job_step calls it right before dp_pipeline_step. */
void cuda_job_before_step(void (*fn)(void));
/* The second part of close, after job_rank_close. */
void cuda_job_leave(void);

/* The n-th callback from now in this thread fails with DP_EINVAL. */
void cuda_job_fail_callback(int n);
/* Take that much of this rank's device memory, until close. */
void cuda_job_take_memory(size_t bytes);

/* After all ranks have closed: wait for the stand-in's streams, forget its faults, free kernels. */
void cuda_job_fini(void);

#endif
