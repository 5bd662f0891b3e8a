/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_links.h - which GPU a rank computes on, and its messages to other GPUs by NCCL.
 */
#ifndef DP_TRAIN_CUDA_LINKS_H
#define DP_TRAIN_CUDA_LINKS_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/schedule.h>

enum { CUDA_DEVICE_NAME = 32 };

/* The device of a rank: what was asked for, or, where that is "cuda" without a number, the GPU whose
 * number is that of the process among those of its host (of the job, if no launcher told it), over and
 * over again where there are fewer GPUs. *shared: processes of this host have the same one. Errors of
 * dp_device_cuda_count, dp_process_from_env. */
int cuda_device_of_rank(const char *asked, int rank, int ranks, char name[static CUDA_DEVICE_NAME],
                        bool *shared);

/* Before CUDA begins in this process, and there are other threads: hardware queues for all streams;
 * and, where ranks share a GPU, a name of a host for each, as NCCL refuses two of a host on one GPU.
 * What the environment says already stays. */
void cuda_links_prepare(int rank, bool shared);

struct cuda_links_config {
    struct dp_comm *host; /* the ranks of the pipeline */
    struct dp_device *device;
    const struct dp_schedule *schedules[2]; /* of steps that train and that do not */
    int rank;                               /* of the pipeline */
    bool tied;                              /* parameters of the first and the last stage */
};
/* NCCL communicators for what the schedules send. Collective; errors of dp_comm_nccl_open. */
int cuda_links_open(const struct cuda_links_config *config, struct dp_comm **out);

#endif
