/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_cases.c - operations whose every byte is checked.
 */
#include "simcuda/nccl_data.h"
#include "simcuda/nccl_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static size_t elements(const struct nccl_job *job)
{
    return job->bytes / nccl_data_type_bytes(job->type);
}

/* Elements a block, if every rank has one. */
static size_t block_elements(const struct nccl_job *job)
{
    return elements(job) / (size_t)job->count;
}

/* A new round: `in` full of our data, `out` of something else. */
static void fill(struct nccl_job *job)
{
    size_t bytes = nccl_data_type_bytes(job->type), count = elements(job);
    char *data = malloc(job->bytes);

    job->round++;
    for (size_t i = 0; i < count; i++)
        nccl_data_store(data + i * bytes, job->type, nccl_data_value(job->rank, i, job->round));
    cudaMemcpy(job->in, data, count * bytes, 0);
    memset(data, 0xa5, job->bytes);
    cudaMemcpy(job->out, data, job->bytes, 0);
    free(data);
}

/* What is to be at an index of `out`. */
typedef double (*expected)(const struct nccl_job *job, size_t index, int arg);

static void check_in(struct nccl_job *job, const char *what, const char *from, size_t count,
                     expected value, int arg)
{
    size_t bytes = nccl_data_type_bytes(job->type);
    char *data = malloc(job->bytes), want[8];

    cudaMemcpy(data, from, count * bytes, 0);
    for (size_t i = 0; i < count; i++) {
        nccl_data_store(want, job->type, value(job, i, arg));
        if (memcmp(data + i * bytes, want, bytes) != 0)
            nccl_job_fail(job, "%s of %zu bytes, type %d: element %zu of %zu is wrong", what,
                          job->bytes, job->type, i, count);
    }
    free(data);
}

static void check(struct nccl_job *job, const char *what, size_t count, expected value, int arg)
{
    cudaStreamSynchronize(job->stream);
    check_in(job, what, job->out, count, value, arg);
}

static double of_rank(const struct nccl_job *job, size_t index, int rank)
{
    return nccl_data_value(rank, index, job->round);
}

static double sum_at(const struct nccl_job *job, size_t index, int shift)
{
    int sum = 0;

    (void)shift;
    for (int r = 0; r < job->count; r++)
        sum += nccl_data_value(r, index, job->round);
    return sum;
}

static double largest_at(const struct nccl_job *job, size_t index, int unused)
{
    int most = 0;

    (void)unused;
    for (int r = 0; r < job->count; r++) {
        int value = nccl_data_value(r, index, job->round);
        most = value > most ? value : most;
    }
    return most;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void all_reduce(struct nccl_job *job)
{
    fill(job);
    NCCL_TRY(job, AllReduce(job->in, job->out, elements(job), job->type, NCCL_OP_SUM, job->comm,
                            job->stream));
    check(job, "all-reduce", elements(job), sum_at, 0);
    fill(job);
    NCCL_TRY(job, AllReduce(job->in, job->out, elements(job), job->type, NCCL_OP_MAX, job->comm,
                            job->stream));
    check(job, "all-reduce of the maximum", elements(job), largest_at, 0);
}

static void broadcast(struct nccl_job *job)
{
    for (int root = 0; root < job->count; root += job->count - 1) {
        fill(job);
        NCCL_TRY(job, Broadcast(job->in, job->out, elements(job), job->type, root, job->comm,
                                job->stream));
        check(job, "broadcast", elements(job), of_rank, root);
    }
}

static void reduce(struct nccl_job *job)
{
    int root = job->count - 1;

    fill(job);
    NCCL_TRY(job, Reduce(job->in, job->out, elements(job), job->type, NCCL_OP_SUM, root, job->comm,
                         job->stream));
    cudaStreamSynchronize(job->stream);
    if (job->rank == root)
        check(job, "reduce", elements(job), sum_at, 0);
}

static double of_block(const struct nccl_job *job, size_t index, int unused)
{
    size_t block = block_elements(job);

    (void)unused;
    return nccl_data_value((int)(index / block), index % block, job->round);
}

static void all_gather(struct nccl_job *job)
{
    size_t block = block_elements(job);

    if (!block)
        return;
    fill(job);
    NCCL_TRY(job, AllGather(job->in, job->out, block, job->type, job->comm, job->stream));
    check(job, "all-gather", block * (size_t)job->count, of_block, 0);
}

static double sum_of_own_block(const struct nccl_job *job, size_t index, int unused)
{
    return sum_at(job, (size_t)job->rank * block_elements(job) + index, unused);
}

static void reduce_scatter(struct nccl_job *job)
{
    size_t block = block_elements(job);

    if (!block)
        return;
    fill(job);
    NCCL_TRY(job, ReduceScatter(job->in, job->out, block, job->type, NCCL_OP_SUM, job->comm,
                                job->stream));
    check(job, "reduce-scatter", block, sum_of_own_block, 0);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void exchange(struct nccl_job *job, int to, int from)
{
    NCCL_TRY(job, GroupStart());
    NCCL_TRY(job, Send(job->in, elements(job), job->type, to, job->comm, job->stream));
    NCCL_TRY(job, Recv(job->out, elements(job), job->type, from, job->comm, job->stream));
    NCCL_TRY(job, GroupEnd());
}

/* Around the ring, and back. */
static void send_recv(struct nccl_job *job)
{
    for (int way = 1; way<job->count; way += job->count> 2 ? job->count - 2 : 1) {
        int to = (job->rank + way) % job->count, from = (job->rank + job->count - way) % job->count;
        fill(job);
        exchange(job, to, from);
        check(job, "send and receive", elements(job), of_rank, from);
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

enum { TIMED = 20 };

/* How long a message takes, once connections are made; for comparisons on one machine only. */
static void timed(struct nccl_job *job)
{
    const int to = (job->rank + 1) % job->count, from = (job->rank + job->count - 1) % job->count;
    double times_us[TIMED];

    send_recv(job);
    fill(job);
    for (int i = 0; i < TIMED; i++) {
        times_us[i] = -now_us();
        exchange(job, to, from);
        cudaStreamSynchronize(job->stream);
        times_us[i] += now_us();
    }
    check(job, "timed send and receive", elements(job), of_rank, from);
    qsort(times_us, TIMED, sizeof(times_us[0]), by_value);
    if (job->rank == 0)
        printf("send and receive of %zu bytes: %.0f us\n", job->bytes, times_us[TIMED / 2]);
}

static double of_others_block(const struct nccl_job *job, size_t index, int unused)
{
    size_t block = block_elements(job);

    (void)unused;
    return nccl_data_value((int)(index / block), (size_t)job->rank * block + index % block,
                           job->round);
}

/* Every rank sends every rank a block, itself too. */
static void all_to_all(struct nccl_job *job)
{
    size_t block = block_elements(job), bytes = block * nccl_data_type_bytes(job->type);

    if (!block)
        return;
    fill(job);
    NCCL_TRY(job, GroupStart());
    for (int p = 0; p < job->count; p++) {
        NCCL_TRY(job,
                 Send(job->in + (size_t)p * bytes, block, job->type, p, job->comm, job->stream));
        NCCL_TRY(job,
                 Recv(job->out + (size_t)p * bytes, block, job->type, p, job->comm, job->stream));
    }
    NCCL_TRY(job, GroupEnd());
    check(job, "all-to-all", block * (size_t)job->count, of_others_block, 0);
}

/* ---- memory and communicators ---------------------------------------------------------------- */

/* Buffers that the network may read and write itself. */
static void registered(struct nccl_job *job)
{
    void *in, *out;

    NCCL_TRY(job, CommRegister(job->comm, job->in, job->bytes, &in));
    NCCL_TRY(job, CommRegister(job->comm, job->out, job->bytes, &out));
    send_recv(job);
    all_to_all(job);
    all_gather(job);
    broadcast(job);
    NCCL_TRY(job, CommDeregister(job->comm, in));
    NCCL_TRY(job, CommDeregister(job->comm, out));
}

/* Even ranks and odd ranks among themselves, then all of them again. */
static void split(struct nccl_job *job)
{
    struct nccl_job half = *job;

    NCCL_TRY(job, CommSplit(job->comm, job->rank % 2, job->rank, &half.comm, NULL));
    fill(&half);
    NCCL_TRY(&half,
             Broadcast(half.in, half.out, elements(job), job->type, 0, half.comm, job->stream));
    check(&half, "broadcast in half of the ranks", elements(job), of_rank, job->rank % 2);
    nccl_job_close(&half, half.comm);
    job->round = half.round;
    all_reduce(job);
}

/* Two communicators at the same time, in two streams. */
static void two_comms(struct nccl_job *job)
{
    struct nccl_job other = *job;

    other.comm = nccl_job_open(&other);
    cudaStreamCreateWithFlags(&other.stream, 0);
    cudaMalloc((void **)&other.out, job->bytes);
    fill(job);
    NCCL_TRY(job, AllReduce(job->in, job->out, elements(job), job->type, NCCL_OP_SUM, job->comm,
                            job->stream));
    NCCL_TRY(job, AllReduce(job->in, other.out, elements(job), job->type, NCCL_OP_MAX, other.comm,
                            other.stream));
    check(job, "all-reduce of the first", elements(job), sum_at, 0);
    cudaStreamSynchronize(other.stream);
    check_in(job, "all-reduce of the second", other.out, elements(job), largest_at, 0);
    nccl_job_close(&other, other.comm);
    cudaFree(other.out);
    cudaStreamDestroy(other.stream);
}

/* NCCL lets go of the plugin when the last communicator is gone, and takes it up again. */
static void reload(struct nccl_job *job)
{
    for (int i = 0; i < 2; i++) {
        nccl_job_close(job, job->comm);
        job->comm = nccl_job_open(job);
        all_reduce(job);
    }
}

/* A communicator is opened and closed, and no kernel runs: also for releases whose kernels'
 * structures are not known. */
static void only_init(struct nccl_job *job)
{
    (void)job;
}

const struct nccl_case nccl_cases[] = {
    {"init", only_init},
    {"all-reduce", all_reduce},
    {"broadcast", broadcast},
    {"reduce", reduce},
    {"all-gather", all_gather},
    {"reduce-scatter", reduce_scatter},
    {"send-recv", send_recv},
    {"all-to-all", all_to_all},
    {"registered", registered},
    {"split", split},
    {"two-comms", two_comms},
    {"reload", reload},
    {"timed", timed},
    {NULL, NULL},
};
