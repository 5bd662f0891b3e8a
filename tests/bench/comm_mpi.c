/* SPDX-License-Identifier: Apache-2.0
 *
 * comm_mpi.c - MPI_Allreduce of float32, for comm.sh: "BYTES OpenMPI US" a line, medians of 5 turns.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double time_one(float *values, size_t count, int times)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    for (int i = 0; i < times; i++)
        MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    return (MPI_Wtime() - began) / times * 1e6;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {8,       1 << 10, 8 << 10,  64 << 10, 512 << 10,
                                   1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};
    float *values = calloc((size_t)64 << 20, sizeof(*values));
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (size_t i = 0; values && i < (size_t)64 << 20; i++)
        values[i] = 0;
    for (size_t s = 0; values && s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        double us[5], first = time_one(values, sizes[s] / sizeof(float), 3);
        MPI_Bcast(&first, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        const int times = first > 1e5 ? 1 : (int)(1e5 / first) + 1;
        for (int i = 0; i < 5; i++)
            us[i] = time_one(values, sizes[s] / sizeof(float), times);
        qsort(us, 5, sizeof(us[0]), compare);
        if (!rank)
            printf("%zu OpenMPI %.3f\n", sizes[s], us[2]);
    }
    MPI_Finalize();
    return 0;
}
