/* SPDX-License-Identifier: Apache-2.0
 *
 * net_v11.c - a context for each communicator.
 */
#include "nccl-plugin/net/calls.h"

static ncclResult_t get_properties_v11(int dev, struct ncclNetProperties_v11 *props)
{
    struct ncclNetProperties_v12 p;
    ncclResult_t result = dpn_properties_v12(dev, &p);

    if (result)
        return result;
    *props = (struct ncclNetProperties_v11){
        .name = p.name, .pciPath = p.pciPath, .guid = p.guid, .ptrSupport = p.ptrSupport,
        .regIsGlobal = p.regIsGlobal, .forceFlush = p.forceFlush, .speed = p.speed, .port = p.port,
        .latency = p.latency, .maxComms = p.maxComms, .maxRecvs = p.maxRecvs,
        .netDeviceType = p.netDeviceType, .netDeviceVersion = p.netDeviceVersion,
        .maxP2pBytes = p.maxP2pBytes, .maxCollBytes = p.maxCollBytes,
        .maxMultiRequestSize = p.maxMultiRequestSize, .vProps = dpn_members_v9(&p),
    };
    return ncclSuccess;
}

extern const struct ncclNet_v11 ncclNetPlugin_v11;
__attribute__((visibility("default"))) const struct ncclNet_v11 ncclNetPlugin_v11 = {
    .name = "dualpipe",
    .init = dpn_init_v11,
    .devices = dpn_devices_v6,
    .getProperties = get_properties_v11,
    .listen = dpn_listen_v11,
    .connect = dpn_connect_v11,
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
    .finalize = dpn_finalize_v11,
    .setNetAttr = dpn_setNetAttr_v11,
};
