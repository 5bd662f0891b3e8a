/* SPDX-License-Identifier: Apache-2.0
 *
 * versions.c - what NCCL looks for: ncclNetPlugin_v6 to _v12, which convert arguments, nothing
 * else. A function's name ends in the first version that has it.
 */
#include "base/fail.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/net.h"

#include <stdatomic.h>
#include <string.h>

/* ---- NCCL's profiler ------------------------------------------------------------------------- */

enum { EVENT_START, EVENT_STOP };

static _Atomic(ncclProfilerCallback_t) callback;

/* NCCL's callback, which may be NULL, with what is initialized. */
static void dpn_profile_use(ncclProfilerCallback_t use)
{
    atomic_store_explicit(&callback, dpn_options.profile ? use : NULL, memory_order_relaxed);
}

/* A request of a connection over this rail was made for NCCL's event, which may be NULL. */
static void dpn_profile_message(const char *rail, void *event)
{
    ncclProfilerCallback_t call = atomic_load_explicit(&callback, memory_order_relaxed);
    void *handle = NULL;

    if (!call || !event)
        return;
    call(&handle, EVENT_START, event, DPN_PROFILE_NET_ID, (void *)(uintptr_t)rail);
    if (handle)
        call(&handle, EVENT_STOP, event, DPN_PROFILE_NET_ID, NULL);
}

/* ---- life ---------------------------------------------------------------------------------- */

static ncclResult_t init_v6(ncclDebugLogger_t logFunction)
{
    return dpn_result(dpn_net_init_shared(logFunction, false));
}

static ncclResult_t init_v9(ncclDebugLogger_t logFunction)
{
    return dpn_result(dpn_net_init_shared(logFunction, true));
}

static ncclResult_t init_v11(void **ctx, uint64_t commId, struct ncclNetCommConfig_v10 *config,
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

static ncclResult_t finalize_v11(void *ctx)
{
    dpn_net_finalize(ctx);
    return ncclSuccess;
}

/* A hint about what comes next on this thread; either may be NULL. */
static ncclResult_t setNetAttr_v11(void *ctx, struct ncclNetAttr_v11 *netAttr)
{
    if (ctx && netAttr)
        dpn_net_say_next(ctx, netAttr->op, NCCL_NET_TRAFFIC_CLASS_UNDEF);
    return ncclSuccess;
}

/* ---- devices ------------------------------------------------------------------------------- */

static ncclResult_t devices_v6(int *ndev)
{
    return dpn_result(dpn_net_count_devices(ndev));
}

static ncclResult_t properties_v12(int dev, struct ncclNetProperties_v12 *props)
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

static ncclResult_t makeVDevice_v12(int *d, struct ncclNetVDeviceProps_v12 *props)
{
    return dpn_result(dpn_net_fuse(props->devs, props->ndevs, d));
}

static ncclResult_t makeVDevice_v9(int *d, struct ncclNetVDeviceProps_v9 *props)
{
    if (props->ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V9)
        return dpn_result(dp_fail(DP_EINVAL, "fusing %d devices: expected at most %d", props->ndevs,
                                  NCCL_NET_MAX_DEVS_PER_NIC_V9));
    return dpn_result(dpn_net_fuse(props->devs, props->ndevs, d));
}

/* ---- connections ----------------------------------------------------------------------------- */

static int need_init(const struct dpn_net *net)
{
    return net && !dpn_is_inherited(net)
               ? 0
               : dp_fail(DP_ESTATE, "the plugin was not initialized in this process");
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listenComm)
{
    struct dpn_listener *listener = NULL;
    int err = need_init(ctx);

    if (!err)
        err = dpn_net_listen(ctx, dev, handle, &listener);
    *listenComm = listener;
    return dpn_result(err);
}

static ncclResult_t listen_v6(int dev, void *handle, void **listenComm)
{
    return listen_v11(dpn_net_shared(), dev, handle, listenComm);
}

/* The devices are the host's: *sendDevComm and *recvDevComm stay as they are. */
static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **sendComm,
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

static ncclResult_t connect_v7(int dev, void *handle, void **sendComm,
                               struct ncclNetDeviceHandle_v7 **sendDevComm)
{
    return connect_v11(dpn_net_shared(), dev, handle, sendComm, sendDevComm);
}

static ncclResult_t accept_v7(void *listenComm, void **recvComm,
                              struct ncclNetDeviceHandle_v7 **recvDevComm)
{
    struct dpn_comm *comm = NULL;
    int err = dpn_net_accept(listenComm, &comm);

    (void)recvDevComm;
    *recvComm = comm;
    return dpn_result(err);
}

static ncclResult_t close_v6(void *comm)
{
    dpn_net_close(comm);
    return ncclSuccess;
}

static ncclResult_t closeListen_v6(void *listenComm)
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

static ncclResult_t regMr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
    return reg_region(comm, &(struct dpn_region){data, size, type, -1, 0}, mhandle);
}

static ncclResult_t regMr_v6(void *comm, void *data, int size, int type, void **mhandle)
{
    return regMr_v8(comm, data, (size_t)size, type, mhandle);
}

static ncclResult_t regMrDmaBuf_v6(void *comm, void *data, size_t size, int type, uint64_t offset,
                                   int fd, void **mhandle)
{
    return reg_region(comm, &(struct dpn_region){data, size, type, fd, offset}, mhandle);
}

static ncclResult_t deregMr_v6(void *comm, void *mhandle)
{
    return dpn_result(dpn_net_deregister(comm, mhandle));
}

/* ---- messages ------------------------------------------------------------------------------ */

static ncclResult_t isend_v10(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                              void *phandle, void **request)
{
    struct dpn_request *req = NULL;
    int err = dpn_net_isend(sendComm, data, size, tag, mhandle, &req);

    if (req)
        dpn_profile_message(((const struct dpn_comm *)sendComm)->rail, phandle);
    *request = req;
    return dpn_result(err);
}

static ncclResult_t isend_v9(void *sendComm, void *data, size_t size, int tag, void *mhandle,
                             void **request)
{
    return isend_v10(sendComm, data, size, tag, mhandle, NULL, request);
}

static ncclResult_t isend_v6(void *sendComm, void *data, int size, int tag, void *mhandle,
                             void **request)
{
    return isend_v10(sendComm, data, (size_t)size, tag, mhandle, NULL, request);
}

/* Before the call *request says whether NCCL's kernel watches the memory. The receive might then be
 * done early, which is no duty. */
static ncclResult_t irecv_v10(void *recvComm, int n, void **data, size_t *sizes, int *tags,
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

static ncclResult_t irecv_v9(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                             void **mhandles, void **request)
{
    return irecv_v10(recvComm, n, data, sizes, tags, mhandles, NULL, request);
}

static ncclResult_t irecv_v6(void *recvComm, int n, void **data, int *sizes, int *tags,
                             void **mhandles, void **request)
{
    size_t wide[DPN_MAX_RECEIVES];

    *request = NULL; /* which is not asked anything here */
    for (int i = 0; i < n && i < DPN_MAX_RECEIVES; i++)
        wide[i] = (size_t)sizes[i];
    return irecv_v10(recvComm, n, data, wide, tags, mhandles, NULL, request);
}

static ncclResult_t iflush_v6(void *recvComm, int n, void **data, int *sizes, void **mhandles,
                              void **request)
{
    struct dpn_request *req = NULL;
    int err = dpn_net_iflush(recvComm, n, data, sizes, (struct dpn_memory **)mhandles, &req);

    *request = req;
    return dpn_result(err);
}

static ncclResult_t test_v6(void *request, int *done, int *sizes)
{
    bool is_done = false;
    int err = dpn_net_test(request, &is_done, sizes);

    *done = is_done;
    return dpn_result(err);
}

/* ---- properties of each version --------------------------------------------------------------- */

/* More than four devices are fused only by an NCCL that knows v12. */
static struct ncclNetVDeviceProps_v9 members_of(const struct ncclNetProperties_v12 *p)
{
    struct ncclNetVDeviceProps_v9 out = {.ndevs = p->vProps.ndevs};

    if (out.ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V9)
        out.ndevs = NCCL_NET_MAX_DEVS_PER_NIC_V9;
    memcpy(out.devs, p->vProps.devs, sizeof(out.devs));
    return out;
}

/* What a version has of the newest one's members `p`: those of the version before, and its own. */
#define MEMBERS_6                                                                                  \
    .name = p.name, .pciPath = p.pciPath, .guid = p.guid, .ptrSupport = p.ptrSupport,              \
    .speed = p.speed, .port = p.port, .latency = p.latency, .maxComms = p.maxComms,                \
    .maxRecvs = p.maxRecvs
#define MEMBERS_7                                                                                  \
    MEMBERS_6, .netDeviceType = p.netDeviceType, .netDeviceVersion = p.netDeviceVersion
#define MEMBERS_8 MEMBERS_7, .regIsGlobal = p.regIsGlobal
#define MEMBERS_9                                                                                  \
    MEMBERS_8, .forceFlush = p.forceFlush, .vProps = members_of(&p), .maxP2pBytes = p.maxP2pBytes, \
               .maxCollBytes = p.maxCollBytes
#define MEMBERS_11 MEMBERS_9, .maxMultiRequestSize = p.maxMultiRequestSize

#define PROPERTIES(version)                                                                        \
    static ncclResult_t properties_v##version(int dev, struct ncclNetProperties_v##version *props) \
    {                                                                                              \
        struct ncclNetProperties_v12 p;                                                            \
        const ncclResult_t result = properties_v12(dev, &p);                                       \
        if (!result)                                                                               \
            *props = (struct ncclNetProperties_v##version){MEMBERS_##version};                     \
        return result;                                                                             \
    }

PROPERTIES(6)
PROPERTIES(7)
PROPERTIES(8)
PROPERTIES(9)
PROPERTIES(11)

/* ---- what one version has --------------------------------------------------------------------- */

/* No handles of devices, which others leave alone. */
static ncclResult_t connect_v6(int dev, void *handle, void **sendComm)
{
    return connect_v7(dev, handle, sendComm, NULL);
}

static ncclResult_t accept_v6(void *listenComm, void **recvComm)
{
    return accept_v7(listenComm, recvComm, NULL);
}

/* Handles for a profiler, and a traffic class, for RDMA. */
static ncclResult_t init_v10(ncclDebugLogger_t logFunction, ncclProfilerCallback_t profFunction)
{
    const ncclResult_t result = init_v9(logFunction);

    dpn_profile_use(profFunction);
    return result;
}

static ncclResult_t connect_v10(int dev, struct ncclNetCommConfig_v10 *config, void *handle,
                                void **sendComm, struct ncclNetDeviceHandle_v7 **sendDevComm)
{
    /* The context is one for all communicators. */
    dpn_net_say_next(dpn_net_shared(), UINT32_MAX,
                     config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF);
    return connect_v7(dev, handle, sendComm, sendDevComm);
}

/* ---- the tables ------------------------------------------------------------------------------- */

/* getDeviceMr and irecvConsumed, from 7 on, stay NULL: they are for what takes over part of the
 * receive. */
#define END_6
#define END_7
#define END_8
#define END_9  .makeVDevice = makeVDevice_v9,
#define END_10 END_9
#define END_11 END_9 .finalize = finalize_v11, .setNetAttr = setNetAttr_v11,
#define END_12 .makeVDevice = makeVDevice_v12, .finalize = finalize_v11, .setNetAttr = setNetAttr_v11,

#define TABLE(v, init_, properties_, listen_, connect_, accept_, reg_, message_)                   \
    extern const struct ncclNet_v##v ncclNetPlugin_v##v;                                           \
    __attribute__((visibility("default"))) const struct ncclNet_v##v ncclNetPlugin_v##v = {        \
        .name = "dualpipe",                                                                        \
        .init = init_v##init_,                                                                     \
        .devices = devices_v6,                                                                     \
        .getProperties = properties_v##properties_,                                                \
        .listen = listen_v##listen_,                                                               \
        .connect = connect_v##connect_,                                                            \
        .accept = accept_v##accept_,                                                               \
        .regMr = regMr_v##reg_,                                                                    \
        .regMrDmaBuf = regMrDmaBuf_v6,                                                             \
        .deregMr = deregMr_v6,                                                                     \
        .isend = isend_v##message_,                                                                \
        .irecv = irecv_v##message_,                                                                \
        .iflush = iflush_v6,                                                                       \
        .test = test_v6,                                                                           \
        .closeSend = close_v6,                                                                     \
        .closeRecv = close_v6,                                                                     \
        .closeListen = closeListen_v6,                                                             \
        END_##v};
NCCL_NET_VERSIONS(TABLE)
