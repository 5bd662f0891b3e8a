/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/calls.h"

#include "base/fail.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/net.h"
#include "nccl-plugin/net/profile.h"
#include "nccl-plugin/nccl_log.h"

#include <string.h>

/* ---- life ---------------------------------------------------------------------------------- */

ncclResult_t dpn_init_v6(ncclDebugLogger_t logFunction)
{
    return dpn_result(dpn_net_init_shared(logFunction, false));
}

ncclResult_t dpn_init_v9(ncclDebugLogger_t logFunction)
{
    return dpn_result(dpn_net_init_shared(logFunction, true));
}

ncclResult_t dpn_init_v11(void **ctx, uint64_t commId, struct ncclNetCommConfig_v10 *config,
                          ncclDebugLogger_t logFunction, ncclProfilerCallback_t profFunction)
{
    struct dpn_net *net;

    (void)commId;
    int err = dpn_net_init(logFunction, &net);
    dpn_profile_use(profFunction);
    if (!err && config)
        net->traffic_class = config->trafficClass;
    *ctx = err ? NULL : net;
    return dpn_result(err);
}

ncclResult_t dpn_finalize_v11(void *ctx)
{
    dpn_net_finalize(ctx);
    return ncclSuccess;
}

/* A hint about what comes next on this thread; either may be NULL. */
ncclResult_t dpn_setNetAttr_v11(void *ctx, struct ncclNetAttr_v11 *netAttr)
{
    if (ctx && netAttr)
        dpn_net_say_next(ctx, netAttr->op, NCCL_NET_TRAFFIC_CLASS_UNDEF);
    return ncclSuccess;
}

/* ---- devices ------------------------------------------------------------------------------- */

ncclResult_t dpn_devices_v6(int *ndev)
{
    return dpn_result(dpn_net_count_devices(ndev));
}

ncclResult_t dpn_properties_v12(int dev, struct ncclNetProperties_v12 *props)
{
    const struct dpn_device *device;
    int err = dpn_net_device(dev, &device);

    if (err)
        return dpn_result(err);
    *props = (struct ncclNetProperties_v12){
        .name = (char *)device->name,
        .pciPath = device->pci_path,
        .guid = device->guid,
        .ptrSupport = device->pointers,
        .forceFlush = device->needs_flush,
        .speed = device->speed_mbps,
        .port = device->port,
        .latency = 0, /* unknown; NCCL assumes its own */
        .maxComms = 65536,
        .maxRecvs = DPN_MAX_RECEIVES,
        .netDeviceType = NCCL_NET_DEVICE_HOST,
        .vProps = {.ndevs = device->member_count},
        .maxP2pBytes = DPN_MAX_BYTES,
        .maxCollBytes = DPN_MAX_BYTES,
        .maxMultiRequestSize = 1,
        .railId = (int16_t)device->rail,
        .planeId = (int16_t)device->plane,
    };
    memcpy(props->vProps.devs, device->members, sizeof(props->vProps.devs));
    return ncclSuccess;
}

/* More than four are fused only by an NCCL that knows v12. */
struct ncclNetVDeviceProps_v9 dpn_members_v9(const struct ncclNetProperties_v12 *p)
{
    struct ncclNetVDeviceProps_v9 out = {.ndevs = p->vProps.ndevs};

    if (out.ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V9)
        out.ndevs = NCCL_NET_MAX_DEVS_PER_NIC_V9;
    memcpy(out.devs, p->vProps.devs, sizeof(out.devs));
    return out;
}

ncclResult_t dpn_makeVDevice_v12(int *d, struct ncclNetVDeviceProps_v12 *props)
{
    return dpn_result(dpn_net_fuse(props->devs, props->ndevs, d));
}

ncclResult_t dpn_makeVDevice_v9(int *d, struct ncclNetVDeviceProps_v9 *props)
{
    if (props->ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V9)
        return dpn_result(dp_fail(DP_EINVAL, "fusing %d devices: expected at most %d", props->ndevs,
                                  NCCL_NET_MAX_DEVS_PER_NIC_V9));
    return dpn_result(dpn_net_fuse(props->devs, props->ndevs, d));
}

ncclResult_t dpn_properties_v9(int dev, struct ncclNetProperties_v9 *props)
{
    struct ncclNetProperties_v12 p;
    ncclResult_t result = dpn_properties_v12(dev, &p);

    if (result)
        return result;
    *props = (struct ncclNetProperties_v9){
        .name = p.name, .pciPath = p.pciPath, .guid = p.guid, .ptrSupport = p.ptrSupport,
        .regIsGlobal = p.regIsGlobal, .forceFlush = p.forceFlush, .speed = p.speed, .port = p.port,
        .latency = p.latency, .maxComms = p.maxComms, .maxRecvs = p.maxRecvs,
        .netDeviceType = p.netDeviceType, .netDeviceVersion = p.netDeviceVersion,
        .vProps = dpn_members_v9(&p), .maxP2pBytes = p.maxP2pBytes,
        .maxCollBytes = p.maxCollBytes,
    };
    return ncclSuccess;
}

/* ---- connections ----------------------------------------------------------------------------- */

static int need_init(const struct dpn_net *net)
{
    return net && !dpn_is_inherited(net)
               ? 0
               : dp_fail(DP_ESTATE, "the plugin was not initialized in this process");
}

ncclResult_t dpn_listen_v11(void *ctx, int dev, void *handle, void **listenComm)
{
    struct dpn_listener *listener = NULL;
    int err = need_init(ctx);

    if (!err)
        err = dpn_net_listen(ctx, dev, handle, &listener);
    *listenComm = listener;
    return dpn_result(err);
}

ncclResult_t dpn_listen_v6(int dev, void *handle, void **listenComm)
{
    return dpn_listen_v11(dpn_net_shared(), dev, handle, listenComm);
}

/* The devices are the host's: *sendDevComm and *recvDevComm stay as they are. */
ncclResult_t dpn_connect_v11(void *ctx, int dev, void *handle, void **sendComm,
                             struct ncclNetDeviceHandle_v7 **sendDevComm)
{
    struct dpn_comm *comm = NULL;
    int err = need_init(ctx);

    (void)sendDevComm;
    if (!err)
        err = dpn_net_connect(ctx, dev, handle, &comm);
    *sendComm = comm;
    return dpn_result(err);
}

ncclResult_t dpn_connect_v7(int dev, void *handle, void **sendComm,
                            struct ncclNetDeviceHandle_v7 **sendDevComm)
{
    return dpn_connect_v11(dpn_net_shared(), dev, handle, sendComm, sendDevComm);
}

ncclResult_t dpn_accept_v7(void *listenComm, void **recvComm,
                           struct ncclNetDeviceHandle_v7 **recvDevComm)
{
    struct dpn_comm *comm = NULL;
    int err = dpn_net_accept(listenComm, &comm);

    (void)recvDevComm;
    *recvComm = comm;
    return dpn_result(err);
}

ncclResult_t dpn_close_v6(void *comm)
{
    dpn_net_close(comm);
    return ncclSuccess;
}

ncclResult_t dpn_closeListen_v6(void *listenComm)
{
    dpn_net_close_listener(listenComm);
    return ncclSuccess;
}

/* ---- memory -------------------------------------------------------------------------------- */

static ncclResult_t reg_region(void *comm, const struct dpn_region *region, void **mhandle)
{
    struct dpn_memory *memory = NULL;
    int err = dpn_net_register(comm, region, &memory);

    *mhandle = memory;
    return dpn_result(err);
}

ncclResult_t dpn_regMr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
    return reg_region(comm, &(struct dpn_region){data, size, type, -1, 0}, mhandle);
}

ncclResult_t dpn_regMr_v6(void *comm, void *data, int size, int type, void **mhandle)
{
    return dpn_regMr_v8(comm, data, (size_t)size, type, mhandle);
}

ncclResult_t dpn_regMrDmaBuf_v6(void *comm, void *data, size_t size, int type, uint64_t offset,
                                int fd, void **mhandle)
{
    return reg_region(comm, &(struct dpn_region){data, size, type, fd, offset}, mhandle);
}

ncclResult_t dpn_deregMr_v6(void *comm, void *mhandle)
{
    return dpn_result(dpn_net_deregister(comm, mhandle));
}

/* ---- messages ------------------------------------------------------------------------------ */

ncclResult_t dpn_isend_v10(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                           void *phandle, void **request)
{
    struct dpn_request *req = NULL;
    int err = dpn_net_isend(sendComm, data, size, tag, mhandle, &req);

    if (req)
        dpn_profile_message(((const struct dpn_comm *)sendComm)->rail, phandle);
    *request = req;
    return dpn_result(err);
}

ncclResult_t dpn_isend_v9(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                          void **request)
{
    return dpn_isend_v10(sendComm, data, size, tag, mhandle, NULL, request);
}

ncclResult_t dpn_isend_v6(void *sendComm, void *data, int size, int tag, void *mhandle,
                          void **request)
{
    return dpn_isend_v10(sendComm, data, (size_t)size, tag, mhandle, NULL, request);
}

/* Before the call *request says whether NCCL's kernel watches the memory. The receive might then be
 * done early, which is no duty. */
ncclResult_t dpn_irecv_v10(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                           void **mhandles, void **phandles, void **request)
{
    struct dpn_request *req = NULL;
    bool is_watched = (uintptr_t)*request == NCCL_NET_OPTIONAL_RECV_COMPLETION;
    int err = dpn_net_irecv(recvComm, n, data, sizes, tags, (struct dpn_memory **)mhandles,
                            is_watched, &req);

    for (int i = 0; i < n && req && phandles; i++)
        dpn_profile_message(((const struct dpn_comm *)recvComm)->rail, phandles[i]);
    *request = req;
    return dpn_result(err);
}

ncclResult_t dpn_irecv_v9(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                          void **mhandles, void **request)
{
    return dpn_irecv_v10(recvComm, n, data, sizes, tags, mhandles, NULL, request);
}

ncclResult_t dpn_irecv_v6(void *recvComm, int n, void **data, int *sizes, int *tags,
                          void **mhandles, void **request)
{
    size_t wide[DPN_MAX_RECEIVES];

    *request = NULL; /* which is not asked anything here */
    for (int i = 0; i < n && i < DPN_MAX_RECEIVES; i++)
        wide[i] = (size_t)sizes[i];
    return dpn_irecv_v10(recvComm, n, data, wide, tags, mhandles, NULL, request);
}

ncclResult_t dpn_iflush_v6(void *recvComm, int n, void **data, int *sizes, void **mhandles,
                           void **request)
{
    struct dpn_request *req = NULL;
    int err = dpn_net_iflush(recvComm, n, data, sizes, (struct dpn_memory **)mhandles, &req);

    *request = req;
    return dpn_result(err);
}

ncclResult_t dpn_test_v6(void *request, int *done, int *sizes)
{
    bool is_done = false;
    int err = dpn_net_test(request, &is_done, sizes);

    *done = is_done;
    return dpn_result(err);
}
