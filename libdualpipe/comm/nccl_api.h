/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_api.h - the functions of libnccl that the NCCL communicator calls, looked up at run time,
 * its errors in our vocabulary, and DUALPIPE_NCCL_*. The declarations are our own, of the part of
 * nccl.h that we use.
 */
#ifndef DP_COMM_NCCL_API_H
#define DP_COMM_NCCL_API_H

#include "base/options.h"

#include <stdint.h>

struct dp_nccl_comm;   /* what nccl.h calls ncclComm_t points to one */
struct dp_nccl_stream; /* a CUstream */

struct dp_nccl_id {
    char bytes[128];
};

/* ncclResult_t */
enum {
    DP_NCCL_SUCCESS,
    DP_NCCL_CUDA_ERROR,
    DP_NCCL_SYSTEM_ERROR,
    DP_NCCL_INTERNAL_ERROR,
    DP_NCCL_INVALID_ARGUMENT,
    DP_NCCL_INVALID_USAGE,
    DP_NCCL_REMOTE_ERROR,
    DP_NCCL_IN_PROGRESS
};

enum { DP_NCCL_UINT8 = 1 }; /* ncclDataType_t */

/* ncclConfig_t as of 2.27. Later releases append members, and fill in what a shorter one lacks. */
#define DP_NCCL_UNSET INT32_MIN
enum { DP_NCCL_OLDEST = 22700 };
struct dp_nccl_comm_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas;
};

/* Result, name without "nccl", parameters. */
#define DP_NCCL_FUNCTIONS(F)                                                                       \
    F(int, GetVersion, (int *out))                                                                 \
    F(int, GetUniqueId, (struct dp_nccl_id * out))                                                 \
    F(int, CommInitRankConfig,                                                                     \
      (struct dp_nccl_comm * *out, int count, struct dp_nccl_id id, int rank,                      \
       struct dp_nccl_comm_config *config))                                                        \
    F(int, CommSplit,                                                                              \
      (struct dp_nccl_comm * comm, int color, int key, struct dp_nccl_comm **out,                  \
       struct dp_nccl_comm_config *config))                                                        \
    F(int, CommFinalize, (struct dp_nccl_comm * comm))                                             \
    F(int, CommDestroy, (struct dp_nccl_comm * comm))                                              \
    F(int, CommAbort, (struct dp_nccl_comm * comm))                                                \
    F(int, CommRegister,                                                                           \
      (struct dp_nccl_comm * comm, void *buf, size_t len, void **handle))                          \
    F(int, CommDeregister, (struct dp_nccl_comm * comm, void *handle))                             \
    F(int, MemAlloc, (void **out, size_t len))                                                     \
    F(int, MemFree, (void *ptr))                                                                   \
    F(int, CommGetAsyncError, (struct dp_nccl_comm * comm, int *out))                              \
    F(const char *, GetErrorString, (int result))                                                  \
    F(const char *, GetLastError, (struct dp_nccl_comm * comm))                                    \
    F(int, GroupStart, (void))                                                                     \
    F(int, GroupEnd, (void))                                                                       \
    F(int, Send,                                                                                   \
      (const void *in, size_t count, int type, int peer, struct dp_nccl_comm *comm,                \
       struct dp_nccl_stream *stream))                                                             \
    F(int, Recv,                                                                                   \
      (void *out, size_t count, int type, int peer, struct dp_nccl_comm *comm,                     \
       struct dp_nccl_stream *stream))

struct dp_nccl_options {
    const char *library;
    int64_t stage_class, reduce_class, ctas;
};

struct dp_nccl {
#define DP_NCCL_MEMBER(result, name, parameters) result(*name) parameters;
    DP_NCCL_FUNCTIONS(DP_NCCL_MEMBER)
#undef DP_NCCL_MEMBER
    struct dp_nccl_options options;
    const char *file;
    int version;
};

/* Read the options and load the library, which stays loaded: it has threads of its own. DP_ENOENT
 * with every file tried, or the function that is missing; DP_EUNSUPPORTED for one that is too old.
 */
int dp_nccl_load(struct dp_nccl *out);

/* 0 for success and for what is still in progress; otherwise the error of ours that is nearest, and
 * a sentence: what failed, and NCCL's own words. */
int dp_nccl_check(const struct dp_nccl *nccl, int result, const char *fmt, ...) DP_PRINTF(3, 4);

extern const struct dp_option_area dp_nccl_option_area;

#endif
