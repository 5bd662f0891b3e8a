/* SPDX-License-Identifier: Apache-2.0
 *
 * preload_nccl.c - a job that uses NCCL: `preload-nccl RANKS RANK`, for tests/preload/preload.sh.
 * Rank r sends 1000 (r + 1) bytes to the next one, and they reduce 4096 bytes together; then some
 * communicators more. `preload-nccl RANKS RANK messages`: operations that are messages to all others,
 * or to one.
 */
#include "preload/fake_nccl.h"

#include <stdio.h>
#include <stdlib.h>

static int use_world(struct nccl_comm *world, int ranks, int rank)
{
    const size_t bytes = 1000 * (size_t)(rank + 1);

    return ncclSend(NULL, bytes, NCCL_INT8, (rank + 1) % ranks, world, NULL) ||
           ncclSend(NULL, bytes, NCCL_INT8, ranks, world, NULL) != 4 ||
           ncclAllReduce(NULL, NULL, 1024, NCCL_FLOAT32, 0, world, NULL) ||
           ncclBcast(NULL, 100, NCCL_INT8, 0, world, NULL);
}

static int use_others(struct nccl_comm *world, int rank)
{
    struct nccl_comm *split, *none, *late, *aborted, *all[2];
    const struct nccl_id id = {"of a group"};

    ncclCommSplit(world, rank % 2, 0, &split, NULL);
    ncclCommSplit(world, -1, 0, &none, NULL);
    ncclGroupStart();
    ncclCommInitRank(&late, 2, id, rank % 2);
    ncclGroupEnd();
    ncclCommInitAll(all, 2, NULL);
    int failed = !split || none || !late;
    for (int i = 0; i < 2; i++)
        failed |= ncclSend(NULL, 7, NCCL_INT8, 1 - i, all[i], NULL);
    failed |= ncclAllReduce(NULL, NULL, 10, NCCL_INT8, 0, split, NULL) ||
              ncclSend(NULL, 50, NCCL_INT8, 1 - rank % 2, late, NULL);
    failed |= ncclCommInitRank(&aborted, 2, id, 0) ||
              ncclAllReduce(NULL, NULL, 10, NCCL_INT8, FAKE_ABORTED_BESIDE, aborted, NULL);
    free(aborted);
    return failed || ncclCommDestroy(split) || ncclCommDestroy(late) || ncclCommDestroy(all[0]) ||
           ncclCommDestroy(all[1]);
}

static int use_messages(struct nccl_comm *world)
{
    return ncclAlltoAll(NULL, NULL, 10, NCCL_FLOAT32, world, NULL) ||
           ncclGather(NULL, NULL, 1, NCCL_INT8, 1, world, NULL) ||
           ncclScatter(NULL, NULL, 200, NCCL_INT8, 2, world, NULL);
}

int main(int argc, char **argv)
{
    const int ranks = argc >= 3 ? atoi(argv[1]) : 0, rank = argc >= 3 ? atoi(argv[2]) : 0;
    const struct nccl_id id = {"of all ranks"};
    struct nccl_comm *world;

    if (rank < 0 || rank >= ranks) {
        fprintf(stderr, "preload-nccl: expected RANKS RANK [messages]\n");
        return 2;
    }
    if (argc == 4)
        return ncclCommInitRank(&world, ranks, id, rank) || use_messages(world) ||
               ncclCommDestroy(world);
    return ncclCommInitRank(&world, ranks, id, rank) || use_world(world, ranks, rank) ||
           use_others(world, rank) || ncclCommDestroy(world);
}
