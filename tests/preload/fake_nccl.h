/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_nccl.h - NCCL's declarations, as far as the fake one has them.
 */
#ifndef DP_TESTS_PRELOAD_FAKE_NCCL_H
#define DP_TESTS_PRELOAD_FAKE_NCCL_H

#include <stddef.h>

struct nccl_comm;
struct nccl_id {
    char bytes[128];
};
enum { NCCL_INT8 = 0, NCCL_FLOAT32 = 7 };
/* As the op of an all-reduce: meanwhile another thread aborts the communicator. Its memory stays, to tell
 * whether it is used afterwards. */
enum { FAKE_ABORTED_BESIDE = 77 };

int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclCommInitRank(struct nccl_comm **out, int ranks, struct nccl_id id, int rank);
int ncclCommInitAll(struct nccl_comm **out, int count, const int *devices);
int ncclCommSplit(struct nccl_comm *comm, int color, int key, struct nccl_comm **out, void *config);
int ncclCommCount(const struct nccl_comm *comm, int *out);
int ncclCommUserRank(const struct nccl_comm *comm, int *out);
int ncclCommDestroy(struct nccl_comm *comm);
int ncclCommAbort(struct nccl_comm *comm);
int ncclSend(const void *from, size_t count, int type, int peer, struct nccl_comm *comm,
             void *stream);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                  struct nccl_comm *comm, void *stream);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                  struct nccl_comm *comm, void *stream);
int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct nccl_comm *comm,
                 void *stream);
int ncclGather(const void *from, void *to, size_t count, int type, int root,
               struct nccl_comm *comm, void *stream);
int ncclScatter(const void *from, void *to, size_t count, int type, int root,
                struct nccl_comm *comm, void *stream);
int ncclBcast(void *at, size_t count, int type, int root, struct nccl_comm *comm, void *stream);

#endif
