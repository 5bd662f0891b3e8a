/* SPDX-License-Identifier: Apache-2.0
 *
 * net_v9.c - messages take a size_t; devices may be fused.
 */
#include "nccl-plugin/net/calls.h"

extern const struct ncclNet_v9 ncclNetPlugin_v9;
__attribute__((visibility("default"))) const struct ncclNet_v9 ncclNetPlugin_v9 = {
    .name = "dualpipe",
    .init = dpn_init_v9,
    .devices = dpn_devices_v6,
    .getProperties = dpn_properties_v9,
    .listen = dpn_listen_v6,
    .connect = dpn_connect_v7,
    .accept = dpn_accept_v7,
    .regMr = dpn_regMr_v8,
    .regMrDmaBuf = dpn_regMrDmaBuf_v6,
    .deregMr = dpn_deregMr_v6,
    .isend = dpn_isend_v9,
    .irecv = dpn_irecv_v9,
    .iflush = dpn_iflush_v6,
    .test = dpn_test_v6,
    .closeSend = dpn_close_v6,
    .closeRecv = dpn_close_v6,
    .closeListen = dpn_closeListen_v6,
    .getDeviceMr = NULL, /* for what takes over part of the receive */
    .irecvConsumed = NULL,
    .makeVDevice = dpn_makeVDevice_v9,
};
