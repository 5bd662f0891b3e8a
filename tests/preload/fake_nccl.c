/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_nccl.c - the functions of NCCL that the preload library counts, which send nothing: as a
 * release of NCCL without a profiler interface.
 */
#include "preload/fake_nccl.h"

#include <pthread.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

struct nccl_comm {
    int ranks, rank;
};

static struct nccl_comm *make(int ranks, int rank)
{
    struct nccl_comm *comm = malloc(sizeof(*comm));

    *comm = (struct nccl_comm){ranks, rank};
    return comm;
}

/* In a group communicators are there at its end. */
static struct {
    struct nccl_comm **out;
    int ranks, rank;
} later[4];
static int depth, later_count;

EXPORT int ncclGroupStart(void)
{
    depth++;
    return 0;
}

EXPORT int ncclGroupEnd(void)
{
    depth--;
    while (later_count) {
        later_count--;
        *later[later_count].out = make(later[later_count].ranks, later[later_count].rank);
    }
    return 0;
}

EXPORT int ncclCommInitRank(struct nccl_comm **out, int ranks, struct nccl_id id, int rank)
{
    (void)id;
    *out = NULL;
    if (!depth) {
        *out = make(ranks, rank);
        return 0;
    }
    later[later_count].out = out;
    later[later_count].ranks = ranks;
    later[later_count++].rank = rank;
    return 0;
}

EXPORT int ncclCommInitAll(struct nccl_comm **out, int count, const int *devices)
{
    (void)devices;
    for (int i = 0; i < count; i++)
        out[i] = make(count, i);
    return 0;
}

EXPORT int ncclCommSplit(struct nccl_comm *comm, int color, int key, struct nccl_comm **out,
                         void *config)
{
    (void)key, (void)config;
    *out = color < 0 ? NULL : make(1, 0);
    return comm->ranks < 1;
}

EXPORT int ncclCommCount(const struct nccl_comm *comm, int *out)
{
    if (comm->ranks < 0)
        abort(); /* its memory would be another's by now */
    *out = comm->ranks;
    return 0;
}

EXPORT int ncclCommUserRank(const struct nccl_comm *comm, int *out)
{
    *out = comm->rank;
    return 0;
}

EXPORT int ncclCommDestroy(struct nccl_comm *comm)
{
    free(comm);
    return 0;
}

EXPORT int ncclCommAbort(struct nccl_comm *comm)
{
    comm->ranks = -1;
    return 0;
}

static void *abort_it(void *comm)
{
    ncclCommAbort(comm);
    return NULL;
}

EXPORT int ncclSend(const void *from, size_t count, int type, int peer, struct nccl_comm *comm,
                    void *stream)
{
    (void)from, (void)count, (void)type, (void)stream;
    return peer < 0 || peer >= comm->ranks ? 4 : 0; /* ncclInvalidArgument */
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                         struct nccl_comm *comm, void *stream)
{
    pthread_t thread;

    (void)from, (void)to, (void)count, (void)type, (void)stream;
    return op == FAKE_ABORTED_BESIDE && (pthread_create(&thread, NULL, abort_it, comm) ||
                                         pthread_join(thread, NULL));
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                         struct nccl_comm *comm, void *stream)
{
    (void)from, (void)to, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    return 0;
}

EXPORT int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct nccl_comm *comm,
                        void *stream)
{
    (void)from, (void)to, (void)count, (void)type, (void)comm, (void)stream;
    return 0;
}

EXPORT int ncclGather(const void *from, void *to, size_t count, int type, int root,
                      struct nccl_comm *comm, void *stream)
{
    (void)root;
    return ncclAlltoAll(from, to, count, type, comm, stream);
}

EXPORT int ncclScatter(const void *from, void *to, size_t count, int type, int root,
                       struct nccl_comm *comm, void *stream)
{
    return ncclGather(from, to, count, type, root, comm, stream);
}

/* By its global name, as a library without -Bsymbolic does. */
EXPORT int ncclBcast(void *at, size_t count, int type, int root, struct nccl_comm *comm,
                     void *stream)
{
    return ncclBroadcast(at, at, count, type, root, comm, stream);
}
