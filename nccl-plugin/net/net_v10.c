/* SPDX-License-Identifier: Apache-2.0
 *
 * net_v10.c - a traffic class, for RDMA, and handles for a profiler.
 */
#include "nccl-plugin/net/net.h"
#include "nccl-plugin/net/calls.h"
#include "nccl-plugin/net/profile.h"

static ncclResult_t init_v10(ncclDebugLogger_t logFunction, ncclProfilerCallback_t profFunction)
{
    const ncclResult_t result = dpn_init_v9(logFunction);

    dpn_profile_use(profFunction);
    return result;
}

static ncclResult_t connect_v10(int dev, struct ncclNetCommConfig_v10 *config, void *handle,
                                void **sendComm, struct ncclNetDeviceHandle_v7 **sendDevComm)
{
    /* The context is one for all communicators. */
    dpn_net_say_next(dpn_net_shared(), UINT32_MAX,
                     config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF);
    return dpn_connect_v7(dev, handle, sendComm, sendDevComm);
}

extern const struct ncclNet_v10 ncclNetPlugin_v10;
__attribute__((visibility("default"))) const struct ncclNet_v10 ncclNetPlugin_v10 = {
    .name = "dualpipe",
    .init = init_v10,
    .devices = dpn_devices_v6,
    .getProperties = dpn_properties_v9,
    .listen = dpn_listen_v6,
    .connect = connect_v10,
    .accept = dpn_accept_v7,
    .regMr = dpn_regMr_v8,
    .regMrDmaBuf = dpn_regMrDmaBuf_v6,
    .deregMr = dpn_deregMr_v6,
    .isend = dpn_isend_v10,
    .irecv = dpn_irecv_v10,
    .iflush = dpn_iflush_v6,
    .test = dpn_test_v6,
    .closeSend = dpn_close_v6,
    .closeRecv = dpn_close_v6,
    .closeListen = dpn_closeListen_v6,
    .getDeviceMr = NULL, /* for what takes over part of the receive */
    .irecvConsumed = NULL,
    .makeVDevice = dpn_makeVDevice_v9,
};
