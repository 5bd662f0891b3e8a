/* SPDX-License-Identifier: Apache-2.0
 *
 * caller.h - any net plugin, in any version of its table, behind one table of ours. As NCCL does,
 * it hands over sizes as the version takes them, and lets the plugin's results through unchanged.
 */
#ifndef DPN_NET_CALLER_H
#define DPN_NET_CALLER_H

#include "nccl-plugin/nccl_abi.h"

#include <stdbool.h>

enum { OLDEST_VERSION = 6, NEWEST_VERSION = 12 };

/* What the cases look at; what a version does not have is 0. */
struct net_properties {
    const char *name, *pci_path;
    int ptr_support, speed, port, max_comms, max_recvs, reg_is_global, force_flush;
    float latency_us;
    int device_type, device_version;
    int member_count, first_member;
    size_t max_p2p_bytes, max_coll_bytes;
    int max_multi_request, rail, plane;
};

struct net_caller {
    int version;
    const char *name;
    ncclResult_t (*init)(void **ctx, ncclDebugLogger_t logger);
    ncclResult_t (*devices)(int *count);
    /* Into memory that holds something else, as NCCL's may. */
    ncclResult_t (*properties)(int dev, struct net_properties *out);
    ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listener);
    ncclResult_t (*connect)(void *ctx, int dev, void *handle, void **comm);
    ncclResult_t (*accept)(void *listener, void **comm);
    ncclResult_t (*reg)(void *comm, void *data, size_t size, int type, void **memory);
    /* A buffer of another device. */
    ncclResult_t (*reg_file)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                             void **memory);
    ncclResult_t (*dereg)(void *comm, void *memory);
    ncclResult_t (*isend)(void *comm, void *data, size_t size, int tag, void *memory, void **req);
    ncclResult_t (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **memories,
                          void **req);
    ncclResult_t (*iflush)(void *comm, int n, void **data, int *sizes, void **memories, void **req);
    ncclResult_t (*test)(void *req, int *done, int *sizes);
    ncclResult_t (*close_send)(void *comm);
    ncclResult_t (*close_recv)(void *comm);
    ncclResult_t (*close_listen)(void *listener);
    ncclResult_t (*finalize)(void *ctx); /* older than 11: does nothing */
    /* What its next connections are for, a bit for each ncclFunc; 0: says nothing, by NULL. Older
     * than 11, or not there: does nothing. */
    ncclResult_t (*set_attr)(void *ctx, uint32_t ops);
    /* One device out of several, at most 4; ncclInvalidUsage where the version cannot. */
    ncclResult_t (*fuse)(int count, const int *devices, int *fused);
};

/* The table of a version in an open library; NULL: it has no such symbol. */
const struct net_caller *net_caller_find(void *library, int version);

#endif
