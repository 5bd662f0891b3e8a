/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_api.h - the functions of NCCL that the tests call, as nccl.h has them, found in a library
 * that is loaded at run time.
 */
#ifndef DP_TESTS_SIMCUDA_NCCL_API_H
#define DP_TESTS_SIMCUDA_NCCL_API_H

#include "simcuda/cuda_api.h"

struct nccl_id {
    char bytes[128];
};

enum nccl_result { NCCL_SUCCESS, NCCL_IN_PROGRESS = 7 };
enum nccl_type {
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_INT64 = 4,
    NCCL_FLOAT32 = 7,
    NCCL_BFLOAT16 = 9
};
enum nccl_op { NCCL_OP_SUM, NCCL_OP_PROD, NCCL_OP_MAX, NCCL_OP_MIN, NCCL_OP_AVG };

/* Result, name, parameters. */
#define NCCL_FUNCTIONS(F)                                                                          \
    F(int, GetVersion, (int *out))                                                                 \
    F(int, GetUniqueId, (struct nccl_id * out))                                                    \
    F(int, CommInitRank, (void **out, int count, struct nccl_id id, int rank))                     \
    F(int, CommSplit, (void *comm, int color, int key, void **out, void *config))                  \
    F(int, CommFinalize, (void *comm))                                                             \
    F(int, CommDestroy, (void *comm))                                                              \
    F(int, CommAbort, (void *comm))                                                                \
    F(int, CommGetAsyncError, (void *comm, int *out))                                              \
    F(int, CommRegister, (void *comm, void *buffer, size_t bytes, void **out))                     \
    F(int, CommDeregister, (void *comm, void *handle))                                             \
    F(const char *, GetErrorString, (int result))                                                  \
    F(const char *, GetLastError, (void *comm))                                                    \
    F(int, GroupStart, (void))                                                                     \
    F(int, GroupEnd, (void))                                                                       \
    F(int, Send,                                                                                   \
      (const void *in, size_t count, int type, int peer, void *comm, struct sim_stream *s))        \
    F(int, Recv, (void *out, size_t count, int type, int peer, void *comm, struct sim_stream *s))  \
    F(int, AllReduce,                                                                              \
      (const void *in, void *out, size_t count, int type, int op, void *comm,                      \
       struct sim_stream *s))                                                                      \
    F(int, Broadcast,                                                                              \
      (const void *in, void *out, size_t count, int type, int root, void *comm,                    \
       struct sim_stream *s))                                                                      \
    F(int, Reduce,                                                                                 \
      (const void *in, void *out, size_t count, int type, int op, int root, void *comm,            \
       struct sim_stream *s))                                                                      \
    F(int, AllGather,                                                                              \
      (const void *in, void *out, size_t count, int type, void *comm, struct sim_stream *s))       \
    F(int, ReduceScatter,                                                                          \
      (const void *in, void *out, size_t count, int type, int op, void *comm,                      \
       struct sim_stream *s))

struct nccl_api {
#define MEMBER(result, name, parameters) result(*name) parameters;
    NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
};

/* Load libnccl from a file and the NVML beside this program, and put the simulated CUDA under it.
 * NULL: why not has been printed. */
const struct nccl_api *nccl_api_load(const char *libnccl, const char *libnvml);

#endif
