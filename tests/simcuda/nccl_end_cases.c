/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_end_cases.c - how a job ends badly, and that NCCL hears of it.
 */
#include "simcuda/nccl_job.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Start an all-reduce and wait until it is done or NCCL says that something is wrong. */
static int reduce_or_fail(struct nccl_job *job)
{
    int err = NCCL_SUCCESS;

    NCCL_TRY(job, AllReduce(job->in, job->out, job->bytes / 4, NCCL_FLOAT32, NCCL_OP_SUM, job->comm,
                            job->stream));
    while (!err && cudaStreamQuery(job->stream)) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        NCCL_TRY(job, CommGetAsyncError(job->comm, &err));
    }
    return err;
}

static void abort_all(struct nccl_job *job)
{
    NCCL_TRY(job, CommAbort(job->comm));
    cudaStreamSynchronize(job->stream);
    job->comm = NULL;
}

/* The last rank goes on when all others have come here: what they still wanted of it has
 * arrived. */
static void meet_last(struct nccl_job *job)
{
    char here = 0;

    if (job->rank < job->count - 1 && write(job->id_pipe[1], &here, 1) != 1)
        nccl_job_fail(job, "cannot tell the last rank");
    for (int i = 1; job->rank == job->count - 1 && i < job->count; i++)
        if (read(job->id_pipe[0], &here, 1) != 1)
            nccl_job_fail(job, "cannot hear of the others");
}

/* The last rank dies in the middle of an operation; the others hear of it and can give up. The
 * parent's deadline is the limit. */
static void peer_death(struct nccl_job *job)
{
    int err = reduce_or_fail(job);

    if (err)
        nccl_job_fail(job, "error %d although nobody has died yet", err);
    meet_last(job);
    if (job->rank == job->count - 1) {
        NCCL_TRY(job, AllReduce(job->in, job->out, job->bytes / 4, NCCL_FLOAT32, NCCL_OP_SUM,
                                job->comm, job->stream));
        raise(SIGKILL);
    }
    while (!err)
        err = reduce_or_fail(job);
    printf("rank %d: heard of it: %s\n", job->rank, job->nccl->GetErrorString(err));
    abort_all(job);
}

/* Rank 0 gives up an operation that nobody else has joined. */
static void give_up(struct nccl_job *job)
{
    if (job->rank == 0)
        NCCL_TRY(job, AllReduce(job->in, job->out, job->bytes / 4, NCCL_FLOAT32, NCCL_OP_SUM,
                                job->comm, job->stream));
    abort_all(job);
}

const struct nccl_case nccl_end_cases[] = {
    {"peer-death", peer_death},
    {"abort", give_up},
    {NULL, NULL},
};
