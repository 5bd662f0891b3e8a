/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_ranks.h - ranks on NCCL communicators: processes, each with the simulated GPU and the real
 * libnccl, that take themselves for hosts of their own.
 */
#ifndef DP_TESTS_SIMCUDA_NCCL_RANKS_H
#define DP_TESTS_SIMCUDA_NCCL_RANKS_H

#include "unit/comm/comm_group.h"

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

/* ---- one rank falls out of what the others have queued ----------------------------------------- */

/* It is killed, calls dp_comm_abort, or makes no calls at all. */
enum nccl_fall { NCCL_DIES, NCCL_ABORTS, NCCL_STAYS_AWAY };
enum { NCCL_CULPRIT = 2 };

/* Run fn on four ranks. True if all returned 0, but the culprit where it dies. */
bool nccl_ranks_run_fall(rank_fn fn, enum nccl_fall *how);
/* The culprit's part, of which it does not return where it dies: it falls out when all others have
 * queued, and returns when they have ended. 0 or -1, as of a rank_fn. */
int nccl_ranks_fall_out(struct dp_comm *comm, enum nccl_fall how);
/* The others' part: what is to be ended is queued, here and then on all of them. */
int nccl_ranks_have_queued(struct dp_comm *comm, enum nccl_fall how);
/* err, the result of the call that ended, is that of such a fall, and names the culprit. */
int nccl_ranks_check_end(struct dp_comm *comm, enum nccl_fall how, int err);
/* This rank needs the culprit no more. */
void nccl_ranks_have_ended(void);

#endif
