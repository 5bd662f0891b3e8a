/* SPDX-License-Identifier: Apache-2.0
 *
 * net_v7.c - handles of devices, which we leave alone.
 */
#include "nccl-plugin/net/calls.h"

static ncclResult_t get_properties_v7(int dev, struct ncclNetProperties_v7 *props)
{
    struct ncclNetProperties_v12 p;
    ncclResult_t result = dpn_properties_v12(dev, &p);

    if (result)
        return result;
    *props = (struct ncclNetProperties_v7){
        .name = p.name, .pciPath = p.pciPath, .guid = p.guid, .ptrSupport = p.ptrSupport,
        .speed = p.speed, .port = p.port, .latency = p.latency, .maxComms = p.maxComms,
        .maxRecvs = p.maxRecvs, .netDeviceType = p.netDeviceType,
        .netDeviceVersion = p.netDeviceVersion,
    };
    return ncclSuccess;
}

extern const struct ncclNet_v7 ncclNetPlugin_v7;
__attribute__((visibility("default"))) const struct ncclNet_v7 ncclNetPlugin_v7 = {
    .name = "dualpipe",
    .init = dpn_init_v6,
    .devices = dpn_devices_v6,
    .getProperties = get_properties_v7,
    .listen = dpn_listen_v6,
    .connect = dpn_connect_v7,
    .accept = dpn_accept_v7,
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
    .getDeviceMr = NULL, /* for what takes over part of the receive */
    .irecvConsumed = NULL,
};
