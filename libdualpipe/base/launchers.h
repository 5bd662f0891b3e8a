/* SPDX-License-Identifier: Apache-2.0
 *
 * launchers.h - which variables the launchers of processes tell rank, size and job by.
 */
#ifndef DP_BASE_LAUNCHERS_H
#define DP_BASE_LAUNCHERS_H

#include <stdbool.h>

struct dp_launcher {
    const char *name, *rank, *size;
    const char *local_rank, *local_size; /* among the processes of this host; NULL: not told */
    const char *job[2]; /* what tells one job, and step, of a user from another */
    bool tells_port;    /* MASTER_PORT */
    const char *step;   /* set in its processes only, where others may have its rank; NULL: none has */
};

/* Whose rank is set; under `srun mpirun torchrun ...` the innermost one; NULL: none. get: how to read
 * a variable, NULL if unset; a test has its own. */
const struct dp_launcher *dp_launcher_find(const char *(*get)(const char *name));

/* The number in the machine of the GPU that this rank of the host drives, as torchrun's and srun's
 * jobs choose it: that at its place in CUDA_VISIBLE_DEVICES, or the only one there, as some launchers
 * set it for each rank. list: that variable, or NULL; -1: it does not tell by number. */
int dp_launcher_gpu(int local_rank, const char *list);

#endif
