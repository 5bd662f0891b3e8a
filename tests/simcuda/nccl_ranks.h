/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_ranks.h - ranks on NCCL communicators: processes, each with the simulated GPU and the real
 * libnccl, that take themselves for hosts of their own.
 */
#ifndef DP_TESTS_SIMCUDA_NCCL_RANKS_H
#define DP_TESTS_SIMCUDA_NCCL_RANKS_H

#include "unit/comm_group.h"

#include <dualpipe/device.h>
#include <dualpipe/nccl.h>
#include <dualpipe/pipeline.h>

/* Load NCCL, with the simulated CUDA below it, for all that is forked from now on. NULL, or why
 * that cannot be. */
const char *nccl_ranks_init(void);

/* Of the calling rank. */
struct dp_comm *nccl_ranks_host(void);
struct dp_device *nccl_ranks_device(void);

/* As sim_count_waits and sim_waits_inside (cuda_api.h, which does not go with cuda.h). */
void nccl_ranks_count_waits(void);
int nccl_ranks_waits(void);

/* Run fn on `size` ranks with a comm of all by NCCL; returns how many did not return 0. A rank that
 * was killed counts, and is counted in *killed too. */
int nccl_ranks_run(int size, rank_fn fn, void *arg, int *killed);
/* The same where the ranks exchange no more than the pipelines of these schedules do. */
int nccl_ranks_run_schedules(const struct dp_schedule *const *schedules, int count, rank_fn fn,
                             void *arg, int *killed);
/* The same with the host's comm, over which fn opens one by NCCL, and no device. */
int nccl_ranks_run_hosts(int size, rank_fn fn, void *arg, int *killed);

#endif
