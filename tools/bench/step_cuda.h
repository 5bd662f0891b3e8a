/* SPDX-License-Identifier: Apache-2.0
 *
 * step_cuda.h - steps of `dualpipe bench step --device cuda`: the stages are those that `dualpipe
 * train` trains, and events around each callback measure on the device how long its kernels take.
 */
#ifndef DP_TOOLS_BENCH_STEP_CUDA_H
#define DP_TOOLS_BENCH_STEP_CUDA_H

#include <dualpipe/comm.h>
#include <dualpipe/schedule.h>

#include <stdbool.h>
#include <stdint.h>

struct step_cuda_config {
    const struct dp_schedule *schedule; /* must outlive it, as comm */
    struct dp_comm *comm;
    const char *device; /* "cuda" or "cuda:N" */
    const void *image;  /* of the kernels */
    bool nccl;          /* messages go from GPU to GPU */
    bool bf16, graphs;
    int layers; /* of each stage */
    int width, context, batch;
};

struct step_cuda;

/* false, after one line: no device of that name or no model of that size; else *image is the kernels
 * of `file`, or those built in where that is NULL. *read is to be freed. */
bool step_cuda_prepare(const struct step_cuda_config *config, const char *file, const void **image,
                       void **read);
/* Collective over the comm; before CUDA begins in this process. *out is set even on an error, to be
 * closed. */
int step_cuda_open(const struct step_cuda_config *config, struct step_cuda **out);
/* A step, until the device is done with it. Gradients of mirrors are not summed. */
int step_cuda_run(struct step_cuda *s);
/* What each op of this rank took on the device in the steps since the last call, their mean: that of
 * an overlapped pair at its F, 0 for what is no compute. */
void step_cuda_take_times(struct step_cuda *s, int64_t *op_ns);
/* s may be NULL. */
void step_cuda_close(struct step_cuda *s);

#endif
