/* SPDX-License-Identifier: Apache-2.0
 *
 * caller_version.h - included once for every VERSION: how that one is called. No include guard, on
 * purpose.
 */
#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define NAMED(x)    JOIN(x, VERSION)
#define TEXT_(x)    #x
#define TEXT(x)     TEXT_(x)
#if VERSION == 10
#define PROPERTIES struct ncclNetProperties_v9
#else
#define PROPERTIES struct JOIN(ncclNetProperties_v, VERSION)
#endif

static const struct JOIN(ncclNet_v, VERSION) *NAMED(table_);

static const char *NAMED(name_)(void)
{
    return NAMED(table_)->name;
}

static ncclResult_t NAMED(init_)(void **ctx, ncclDebugLogger_t logger)
{
#if VERSION >= 11
    struct ncclNetCommConfig_v10 config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    return NAMED(table_)->init(ctx, 0x1234567890abcdef, &config, logger, NULL);
#else
    *ctx = NULL;
#if VERSION == 10
    return NAMED(table_)->init(logger, NULL);
#else
    return NAMED(table_)->init(logger);
#endif
#endif
}

static ncclResult_t NAMED(devices_)(int *count)
{
    return NAMED(table_)->devices(count);
}

static ncclResult_t NAMED(properties_)(int dev, struct net_properties *out)
{
    PROPERTIES p;

    memset(&p, 0xa5, sizeof(p));
    ncclResult_t result = NAMED(table_)->getProperties(dev, &p);
    if (result)
        return result;
    *out = (struct net_properties){
        .name = p.name, .pci_path = p.pciPath, .ptr_support = p.ptrSupport, .speed = p.speed,
        .port = p.port, .latency_us = p.latency, .max_comms = p.maxComms, .max_recvs = p.maxRecvs,
#if VERSION >= 7
        .device_type = (int)p.netDeviceType, .device_version = p.netDeviceVersion,
#endif
#if VERSION >= 8
        .reg_is_global = p.regIsGlobal,
#endif
#if VERSION >= 9
        .force_flush = p.forceFlush, .member_count = p.vProps.ndevs,
        .first_member = p.vProps.devs[0], .max_p2p_bytes = p.maxP2pBytes,
        .max_coll_bytes = p.maxCollBytes,
#endif
#if VERSION >= 11
        .max_multi_request = p.maxMultiRequestSize,
#endif
#if VERSION >= 12
        .rail = p.railId, .plane = p.planeId,
#endif
    };
    return ncclSuccess;
}

static ncclResult_t NAMED(listen_)(void *ctx, int dev, void *handle, void **listener)
{
#if VERSION >= 11
    return NAMED(table_)->listen(ctx, dev, handle, listener);
#else
    (void)ctx;
    return NAMED(table_)->listen(dev, handle, listener);
#endif
}

static ncclResult_t NAMED(connect_)(void *ctx, int dev, void *handle, void **comm)
{
#if VERSION >= 7
    struct ncclNetDeviceHandle_v7 *device = NULL;
#endif
#if VERSION >= 11
    return NAMED(table_)->connect(ctx, dev, handle, comm, &device);
#else
    (void)ctx;
#if VERSION == 10
    return NAMED(table_)->connect(dev, NULL, handle, comm, &device); /* as NCCL 2.26 may */
#elif VERSION >= 7
    return NAMED(table_)->connect(dev, handle, comm, &device);
#else
    return NAMED(table_)->connect(dev, handle, comm);
#endif
#endif
}

static ncclResult_t NAMED(accept_)(void *listener, void **comm)
{
#if VERSION >= 7
    struct ncclNetDeviceHandle_v7 *device = NULL;
    return NAMED(table_)->accept(listener, comm, &device);
#else
    return NAMED(table_)->accept(listener, comm);
#endif
}

static ncclResult_t NAMED(reg_)(void *comm, void *data, size_t size, int type, void **memory)
{
#if VERSION >= 8
    return NAMED(table_)->regMr(comm, data, size, type, memory);
#else
    return NAMED(table_)->regMr(comm, data, (int)size, type, memory);
#endif
}

static ncclResult_t NAMED(reg_file_)(void *comm, void *data, size_t size, int type, int fd,
                                     void **memory)
{
    return NAMED(table_)->regMrDmaBuf(comm, data, size, type, 0, fd, memory);
}

static ncclResult_t NAMED(dereg_)(void *comm, void *memory)
{
    return NAMED(table_)->deregMr(comm, memory);
}

static ncclResult_t NAMED(isend_)(void *comm, void *data, size_t size, int tag, void *memory,
                                  void **req)
{
#if VERSION >= 10
    return NAMED(table_)->isend(comm, data, size, tag, memory, NULL, req);
#elif VERSION == 9
    return NAMED(table_)->isend(comm, data, size, tag, memory, req);
#else
    return NAMED(table_)->isend(comm, data, (int)size, tag, memory, req);
#endif
}

static ncclResult_t NAMED(irecv_)(void *comm, int n, void **data, size_t *sizes, int *tags,
                                  void **memories, void **req)
{
#if VERSION >= 10
    return NAMED(table_)->irecv(comm, n, data, sizes, tags, memories, NULL, req);
#elif VERSION == 9
    return NAMED(table_)->irecv(comm, n, data, sizes, tags, memories, req);
#else
    int narrow[32];
    for (int i = 0; i < n && i < 32; i++)
        narrow[i] = (int)sizes[i];
    return NAMED(table_)->irecv(comm, n, data, narrow, tags, memories, req);
#endif
}

static ncclResult_t NAMED(iflush_)(void *comm, int n, void **data, int *sizes, void **memories,
                                   void **req)
{
    return NAMED(table_)->iflush(comm, n, data, sizes, memories, req);
}

static ncclResult_t NAMED(test_)(void *req, int *done, int *sizes)
{
    return NAMED(table_)->test(req, done, sizes);
}

static ncclResult_t NAMED(close_send_)(void *comm)
{
    return NAMED(table_)->closeSend(comm);
}

static ncclResult_t NAMED(close_recv_)(void *comm)
{
    return NAMED(table_)->closeRecv(comm);
}

static ncclResult_t NAMED(close_listen_)(void *listener)
{
    return NAMED(table_)->closeListen(listener);
}

static ncclResult_t NAMED(finalize_)(void *ctx)
{
#if VERSION >= 11
    return NAMED(table_)->finalize(ctx);
#else
    (void)ctx;
    return ncclSuccess;
#endif
}

static ncclResult_t NAMED(set_attr_)(void *ctx, uint32_t ops)
{
#if VERSION >= 11
    const struct ncclNetCommAttr_v11 any = {NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF,
                                            NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF};
    struct ncclNetAttr_v11 attr = {any, any, ops, UINT32_MAX, UINT32_MAX};
    return NAMED(table_)->setNetAttr ? NAMED(table_)->setNetAttr(ctx, ops ? &attr : NULL)
                                     : ncclSuccess;
#else
    (void)ctx, (void)ops;
    return ncclSuccess;
#endif
}

static ncclResult_t NAMED(fuse_)(int count, const int *devices, int *fused)
{
#if VERSION >= 9
#if VERSION >= 12
    struct ncclNetVDeviceProps_v12 props = {.ndevs = count};
#else
    struct ncclNetVDeviceProps_v9 props = {.ndevs = count};
#endif
    if (!NAMED(table_)->makeVDevice)
        return ncclInvalidUsage;
    for (int i = 0; i < count && i < 4; i++)
        props.devs[i] = devices[i];
    return NAMED(table_)->makeVDevice(fused, &props);
#else
    (void)count, (void)devices, (void)fused;
    return ncclInvalidUsage;
#endif
}

static const struct net_caller *NAMED(find_)(void *library)
{
    static const struct net_caller caller = {
        VERSION,
        NAMED(name_),
        NAMED(init_),
        NAMED(devices_),
        NAMED(properties_),
        NAMED(listen_),
        NAMED(connect_),
        NAMED(accept_),
        NAMED(reg_),
        NAMED(reg_file_),
        NAMED(dereg_),
        NAMED(isend_),
        NAMED(irecv_),
        NAMED(iflush_),
        NAMED(test_),
        NAMED(close_send_),
        NAMED(close_recv_),
        NAMED(close_listen_),
        NAMED(finalize_),
        NAMED(set_attr_),
        NAMED(fuse_),
    };

    NAMED(table_) = dlsym(library, "ncclNetPlugin_v" TEXT(VERSION));
    return NAMED(table_) ? &caller : NULL;
}

#undef VERSION
#undef JOIN_
#undef JOIN
#undef NAMED
#undef TEXT_
#undef TEXT
#undef PROPERTIES
