/* SPDX-License-Identifier: Apache-2.0
 *
 * net_v12.c - rail and plane of a device.
 */
#include "nccl-plugin/net/calls.h"

extern const struct ncclNet_v12 ncclNetPlugin_v12;
__attribute__((visibility("default"))) const struct ncclNet_v12 ncclNetPlugin_v12 = {
    .name = "dualpipe",
    .init = dpn_init_v11,
    .devices = dpn_devices_v6,
    .getProperties = dpn_properties_v12,
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
    .makeVDevice = dpn_makeVDevice_v12,
    .finalize = dpn_finalize_v11,
    .setNetAttr = dpn_setNetAttr_v11,
};
