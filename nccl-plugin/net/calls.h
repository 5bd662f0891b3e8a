/* SPDX-License-Identifier: Apache-2.0
 *
 * calls.h - net.h as NCCL calls it, as far as several versions call it the same way. A name ends
 * in the first version that has it. What only one version has is in net_vN.c.
 */
#ifndef DPN_NET_CALLS_H
#define DPN_NET_CALLS_H

#include "nccl-plugin/nccl_abi.h"

/* In the table's order. */
ncclResult_t dpn_init_v6(ncclDebugLogger_t logFunction);
ncclResult_t dpn_init_v9(ncclDebugLogger_t logFunction);
ncclResult_t dpn_init_v11(void **ctx, uint64_t commId, struct ncclNetCommConfig_v10 *config,
                          ncclDebugLogger_t logFunction, ncclProfilerCallback_t profFunction);
ncclResult_t dpn_devices_v6(int *ndev);
/* Older versions take from it what they have. */
ncclResult_t dpn_properties_v12(int dev, struct ncclNetProperties_v12 *props);
ncclResult_t dpn_properties_v9(int dev, struct ncclNetProperties_v9 *props);
struct ncclNetVDeviceProps_v9 dpn_members_v9(const struct ncclNetProperties_v12 *p);
ncclResult_t dpn_makeVDevice_v9(int *d, struct ncclNetVDeviceProps_v9 *props);
ncclResult_t dpn_makeVDevice_v12(int *d, struct ncclNetVDeviceProps_v12 *props);
ncclResult_t dpn_listen_v6(int dev, void *handle, void **listenComm);
ncclResult_t dpn_listen_v11(void *ctx, int dev, void *handle, void **listenComm);
ncclResult_t dpn_connect_v7(int dev, void *handle, void **sendComm,
                            struct ncclNetDeviceHandle_v7 **sendDevComm);
ncclResult_t dpn_connect_v11(void *ctx, int dev, void *handle, void **sendComm,
                             struct ncclNetDeviceHandle_v7 **sendDevComm);
ncclResult_t dpn_accept_v7(void *listenComm, void **recvComm,
                           struct ncclNetDeviceHandle_v7 **recvDevComm);
ncclResult_t dpn_regMr_v6(void *comm, void *data, int size, int type, void **mhandle);
ncclResult_t dpn_regMr_v8(void *comm, void *data, size_t size, int type, void **mhandle);
ncclResult_t dpn_regMrDmaBuf_v6(void *comm, void *data, size_t size, int type, uint64_t offset,
                                int fd, void **mhandle);
ncclResult_t dpn_deregMr_v6(void *comm, void *mhandle);
ncclResult_t dpn_isend_v6(void *sendComm, void *data, int size, int tag, void *mhandle,
                          void **request);
ncclResult_t dpn_isend_v9(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                          void **request);
ncclResult_t dpn_isend_v10(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                           void *phandle, void **request);
ncclResult_t dpn_irecv_v6(void *recvComm, int n, void **data, int *sizes, int *tags,
                          void **mhandles, void **request);
ncclResult_t dpn_irecv_v9(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                          void **mhandles, void **request);
ncclResult_t dpn_irecv_v10(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                           void **mhandles, void **phandles, void **request);
ncclResult_t dpn_iflush_v6(void *recvComm, int n, void **data, int *sizes, void **mhandles,
                           void **request);
ncclResult_t dpn_test_v6(void *request, int *done, int *sizes);
ncclResult_t dpn_close_v6(void *comm);
ncclResult_t dpn_closeListen_v6(void *listenComm);
ncclResult_t dpn_finalize_v11(void *ctx);
ncclResult_t dpn_setNetAttr_v11(void *ctx, struct ncclNetAttr_v11 *netAttr);

#endif
