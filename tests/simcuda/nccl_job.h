/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_job.h - one rank of a job, and what a case may use of it.
 */
#ifndef DP_TESTS_SIMCUDA_NCCL_JOB_H
#define DP_TESTS_SIMCUDA_NCCL_JOB_H

#include "simcuda/nccl_api.h"

#include <stdbool.h>

struct nccl_job {
    const struct nccl_api *nccl;
    int rank, count;
    int id_pipe[2]; /* rank 0 sends the others what identifies a communicator */
    size_t bytes;   /* of each buffer */
    int type;
    void *comm; /* over all ranks; the case's own: it was opened for it */
    struct sim_stream *stream;
    char *in, *out; /* on the GPU */
    unsigned round;
};

/* Says what failed and ends the process; it is the rank's last act. */
#define NCCL_TRY(job, call) nccl_job_try(job, (job)->nccl->call, #call)
void nccl_job_try(const struct nccl_job *job, int result, const char *what);
_Noreturn void nccl_job_fail(const struct nccl_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A communicator over all ranks, which all open at the same time. */
void *nccl_job_open(struct nccl_job *job);
/* Close it when all that was started is done. */
void nccl_job_close(struct nccl_job *job, void *comm);

struct nccl_case {
    const char *name;
    void (*run)(struct nccl_job *job);
};
extern const struct nccl_case nccl_cases[];     /* nccl_cases.c: NULL ends it */
extern const struct nccl_case nccl_end_cases[]; /* nccl_end_cases.c: they end the job */

#endif
