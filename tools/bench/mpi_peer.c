/* SPDX-License-Identifier: Apache-2.0
 *
 * mpi_peer.c - mpi-peer latency|stream SIZE TIMES: what `dualpipe bench wire --peers` starts by
 * mpirun, twice. The same messages as ours: one there and one back, or one way with as many under
 * way. Rank 0 prints us one way, or GB/s.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 4, TAG = 1 };

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

static void measure(int rank, const char *test, char *out, char *in, int size, int times)
{
    const int is_latency = !strcmp(test, "latency");
    void (*run)(int, char *, char *, int, int) = is_latency ? ping_pong : stream;

    run(rank, out, in, size, 1 + times / 8);
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    run(rank, out, in, size, times);
    const double s = MPI_Wtime() - began;
    if (rank == 0)
        printf("%.9g\n", is_latency ? s * 1e6 / 2 / times : (double)size * times / s * 1e-9);
}

int main(int argc, char **argv)
{
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int size = argc == 4 ? atoi(argv[2]) : 0, times = argc == 4 ? atoi(argv[3]) : 0;
    if (ranks != 2 || size <= 0 || times <= 0) {
        fprintf(stderr, "expected: mpirun -n 2 mpi-peer latency|stream SIZE TIMES\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char *out = malloc((size_t)size), *in = malloc((size_t)size);
    if (!out || !in)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(out, 1, (size_t)size);
    memset(in, 2, (size_t)size);
    measure(rank, argv[1], out, in, size, times);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
