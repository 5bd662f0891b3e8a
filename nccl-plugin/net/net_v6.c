/* SPDX-License-Identifier: Apache-2.0
 *
 * net_v6.c - no handles of devices, sizes of int.
 */
#include "nccl-plugin/net/calls.h"

static ncclResult_t get_properties_v6(int dev, struct ncclNetProperties_v6 *props)
{
    struct ncclNetProperties_v12 p;
    ncclResult_t result = dpn_properties_v12(dev, &p);

    if (result)
        return result;
    *props = (struct ncclNetProperties_v6){
        .name = p.name, .pciPath = p.pciPath, .guid = p.guid, .ptrSupport = p.ptrSupport,
        .speed = p.speed, .port = p.port, .latency = p.latency, .maxComms = p.maxComms,
        .maxRecvs = p.maxRecvs,
    };
    return ncclSuccess;
}

static ncclResult_t connect_v6(int dev, void *handle, void **sendComm)
{
    return dpn_connect_v7(dev, handle, sendComm, NULL);
}

static ncclResult_t accept_v6(void *listenComm, void **recvComm)
{
    return dpn_accept_v7(listenComm, recvComm, NULL);
}

extern const struct ncclNet_v6 ncclNetPlugin_v6;
__attribute__((visibility("default"))) const struct ncclNet_v6 ncclNetPlugin_v6 = {
    .name = "dualpipe",
    .init = dpn_init_v6,
    .devices = dpn_devices_v6,
    .getProperties = get_properties_v6,
    .listen = dpn_listen_v6,
    .connect = connect_v6,
    .accept = accept_v6,
    .regMr = dpn_regMr_v6,
    .regMrDmaBuf = dpn_regMrDmaBuf_v6,
    .deregMr = dpn_deregMr_v6,
    .isend = dpn_isend_v6,
    .irecv = dpn_irecv_v6,
    .iflush = dpn_iflush_v6,
    .test = dpn_test_v6,
    .closeSend = dpn_close_v6,
    .closeRecv = dpn_close_v6,
    .closeListen = dpn_closeListen_v6,
};
