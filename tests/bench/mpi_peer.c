/* SPDX-License-Identifier: Apache-2.0
 *
 * mpi_peer.c - mpi-peer: what wire-peers starts by mpirun, twice. The same messages
 * as ours: one there and one back, or one way with as many under way. Rank 0 reads orders, a line
 * each: "latency|stream SIZE TIMES WARMUP", and prints us one way, or GB/s. In between both ranks
 * sleep.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WINDOW = 4, TAG = 1, ORDER_TAG = 2, BIGGEST = 64 << 20 };

struct order {
    int is_stream, size, times, warmup; /* times 0: there are no more */
};

static void ping_pong(int rank, char *out, char *in, int size, int times)
{
    for (int i = 0; i < times; i++) {
        if (rank == 0)
            MPI_Send(out, size, MPI_CHAR, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_CHAR, 1 - rank, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(out, size, MPI_CHAR, 0, TAG, MPI_COMM_WORLD);
    }
}

static void stream(int rank, char *out, char *in, int size, int times)
{
    MPI_Request window[WINDOW];

    for (int i = 0; i < times + WINDOW; i++) {
        if (i >= WINDOW)
            MPI_Wait(&window[i % WINDOW], MPI_STATUS_IGNORE);
        if (i < times && rank == 0)
            MPI_Isend(out, size, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, &window[i % WINDOW]);
        else if (i < times)
            MPI_Irecv(in, size, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, &window[i % WINDOW]);
        else
            window[i % WINDOW] = MPI_REQUEST_NULL;
    }
    ping_pong(rank, out, in, 1, 1);
}

static void carry_out(int rank, struct order o, char *out, char *in)
{
    void (*run)(int, char *, char *, int, int) = o.is_stream ? stream : ping_pong;

    run(rank, out, in, o.size, o.warmup);
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    run(rank, out, in, o.size, o.times);
    const double s = MPI_Wtime() - began;
    if (rank)
        return;
    printf("%.9g\n", o.is_stream ? (double)o.size * o.times / s * 1e-9 : s * 1e6 / 2 / o.times);
    fflush(stdout);
}

/* At the end of the input there are no more. */
static struct order read_order(void)
{
    struct order o = {0};
    char line[128], test[16];

    if (!fgets(line, sizeof(line), stdin))
        return (struct order){0};
    if (sscanf(line, "%15s %d %d %d", test, &o.size, &o.times, &o.warmup) != 4 || o.size <= 0 ||
        o.size > BIGGEST || o.times <= 0 || o.warmup <= 0) {
        fprintf(stderr, "expected: latency|stream SIZE TIMES WARMUP\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    o.is_stream = !strcmp(test, "stream");
    return o;
}

/* MPI waits with its eyes open, which would take the core away from what is measured meanwhile. */
static struct order await_order(void)
{
    struct order o;
    int is_there = 0;

    while (!is_there) {
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
        MPI_Iprobe(0, ORDER_TAG, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
    }
    MPI_Recv(&o, sizeof(o), MPI_CHAR, 0, ORDER_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return o;
}

static struct order next_order(int rank)
{
    struct order o = rank ? await_order() : read_order();

    if (!rank)
        MPI_Send(&o, sizeof(o), MPI_CHAR, 1, ORDER_TAG, MPI_COMM_WORLD);
    return o;
}

int main(int argc, char **argv)
{
    struct order o;
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char *out = malloc(BIGGEST), *in = malloc(BIGGEST);
    if (ranks != 2 || !out || !in) {
        fprintf(stderr, "expected: mpirun -n 2 mpi-peer\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    memset(out, 1, BIGGEST);
    memset(in, 2, BIGGEST);
    while (o = next_order(rank), o.times)
        carry_out(rank, o, out, in);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
