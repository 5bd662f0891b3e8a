/* SPDX-License-Identifier: Apache-2.0
 *
 * caller.c - how each type of function is called, and with these a caller for every version.
 */
#include "nccl-plugin/net/caller.h"

#include <dlfcn.h>
#include <string.h>

/* By the first version of the type; `t` is the table. */
#define INIT_6     t->init(logger)
#define INIT_9     INIT_6
#define INIT_10    t->init(logger, NULL)
#define INIT_11    t->init(ctx, 0x1234567890abcdef, &config, logger, NULL)
#define LISTEN_6   t->listen(dev, handle, listener)
#define LISTEN_11  t->listen(ctx, dev, handle, listener)
#define CONNECT_6  t->connect(dev, handle, comm)
#define CONNECT_7  t->connect(dev, handle, comm, &device)
#define CONNECT_10 t->connect(dev, NULL, handle, comm, &device) /* as NCCL 2.26 may */
#define CONNECT_11 t->connect(ctx, dev, handle, comm, &device)
#define ACCEPT_6   t->accept(listener, comm)
#define ACCEPT_7   t->accept(listener, comm, &device)
#define REG_6      t->regMr(comm, data, (int)size, type, memory)
#define REG_8      t->regMr(comm, data, size, type, memory)
#define SEND_6     t->isend(comm, data, (int)size, tag, memory, req)
#define SEND_9     t->isend(comm, data, size, tag, memory, req)
#define SEND_10    t->isend(comm, data, size, tag, memory, NULL, req)
#define RECV_6     t->irecv(comm, n, data, narrow, tags, memories, req)
#define RECV_9     t->irecv(comm, n, data, sizes, tags, memories, req)
#define RECV_10    t->irecv(comm, n, data, sizes, tags, memories, NULL, req)

/* What a version has of the properties `p`: that of the version before, and its own. */
#define PROPERTIES_6                                                                               \
    .name = p.name, .pci_path = p.pciPath, .ptr_support = p.ptrSupport, .speed = p.speed,          \
    .port = p.port, .latency_us = p.latency, .max_comms = p.maxComms, .max_recvs = p.maxRecvs
#define PROPERTIES_7                                                                               \
    PROPERTIES_6, .device_type = (int)p.netDeviceType, .device_version = p.netDeviceVersion
#define PROPERTIES_8 PROPERTIES_7, .reg_is_global = p.regIsGlobal
#define PROPERTIES_9                                                                               \
    PROPERTIES_8, .force_flush = p.forceFlush, .member_count = p.vProps.ndevs,                     \
                  .first_member = p.vProps.devs[0], .max_p2p_bytes = p.maxP2pBytes,                \
                  .max_coll_bytes = p.maxCollBytes
#define PROPERTIES_11 PROPERTIES_9, .max_multi_request = p.maxMultiRequestSize
#define PROPERTIES_12 PROPERTIES_11, .rail = p.railId, .plane = p.planeId

#define FUSE(props)                                                                                \
    if (!t->makeVDevice || count < 0)                                                              \
        return ncclInvalidUsage;                                                                   \
    struct props fusing = {.ndevs = count};                                                        \
    memcpy(fusing.devs, devices, (size_t)(count < 4 ? count : 4) * sizeof(*devices));              \
    return t->makeVDevice(fused, &fusing);
#define FUSE_6                                                                                     \
    (void)t, (void)count, (void)devices, (void)fused;                                              \
    return ncclInvalidUsage;
#define FUSE_7  FUSE_6
#define FUSE_8  FUSE_6
#define FUSE_9  FUSE(ncclNetVDeviceProps_v9)
#define FUSE_10 FUSE_9
#define FUSE_11 FUSE_9
#define FUSE_12 FUSE(ncclNetVDeviceProps_v12)

/* Without a context there is nothing to end and to say something of. */
#define FINALIZE_6  (ncclResult_t)((void)t, (void)ctx, ncclSuccess)
#define FINALIZE_9  FINALIZE_6
#define FINALIZE_10 FINALIZE_6
#define FINALIZE_11 t->finalize(ctx)
#define SET_6       (ncclResult_t)((void)t, (void)ctx, (void)attr, ncclSuccess)
#define SET_9       SET_6
#define SET_10      SET_6
#define SET_11      t->setNetAttr ? t->setNetAttr(ctx, ops ? &attr : NULL) : ncclSuccess

#define CALLER(v, init_, properties_, listen_, connect_, accept_, reg_, message_)                  \
    static const struct ncclNet_v##v *table_##v;                                                   \
    static struct net_caller caller_##v;                                                           \
                                                                                                   \
    static ncclResult_t call_init_##v(void **ctx, ncclDebugLogger_t logger)                        \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        struct ncclNetCommConfig_v10 config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};                      \
        (void)config;                                                                              \
        *ctx = NULL;                                                                               \
        return INIT_##init_;                                                                       \
    }                                                                                              \
    static ncclResult_t call_properties_##v(int dev, struct net_properties *out)                   \
    {                                                                                              \
        struct ncclNetProperties_v##properties_ p;                                                 \
        memset(&p, 0xa5, sizeof(p));                                                               \
        const ncclResult_t result = table_##v->getProperties(dev, &p);                             \
        if (!result)                                                                               \
            *out = (struct net_properties){PROPERTIES_##properties_};                              \
        return result;                                                                             \
    }                                                                                              \
    static ncclResult_t call_listen_##v(void *ctx, int dev, void *handle, void **listener)         \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        (void)ctx;                                                                                 \
        return LISTEN_##listen_;                                                                   \
    }                                                                                              \
    static ncclResult_t call_connect_##v(void *ctx, int dev, void *handle, void **comm)            \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        struct ncclNetDeviceHandle_v7 *device = NULL;                                              \
        (void)ctx, (void)device;                                                                   \
        return CONNECT_##connect_;                                                                 \
    }                                                                                              \
    static ncclResult_t call_accept_##v(void *listener, void **comm)                               \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        struct ncclNetDeviceHandle_v7 *device = NULL;                                              \
        (void)device;                                                                              \
        return ACCEPT_##accept_;                                                                   \
    }                                                                                              \
    static ncclResult_t call_reg_##v(void *comm, void *data, size_t size, int type, void **memory) \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        return REG_##reg_;                                                                         \
    }                                                                                              \
    static ncclResult_t call_isend_##v(void *comm, void *data, size_t size, int tag, void *memory, \
                                       void **req)                                                 \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        return SEND_##message_;                                                                    \
    }                                                                                              \
    static ncclResult_t call_irecv_##v(void *comm, int n, void **data, size_t *sizes, int *tags,   \
                                       void **memories, void **req)                                \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        int narrow[32];                                                                            \
        for (int i = 0; v < 9 && i < n && i < 32; i++)                                             \
            narrow[i] = (int)sizes[i];                                                             \
        (void)narrow;                                                                              \
        return RECV_##message_;                                                                    \
    }                                                                                              \
    static ncclResult_t call_finalize_##v(void *ctx)                                               \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        return FINALIZE_##init_;                                                                   \
    }                                                                                              \
    static ncclResult_t call_set_##v(void *ctx, uint32_t ops)                                      \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        struct ncclNetAttr_v11 attr = {any_peers, any_peers, ops, UINT32_MAX, UINT32_MAX};         \
        return SET_##init_;                                                                        \
    }                                                                                              \
    static ncclResult_t call_fuse_##v(int count, const int *devices, int *fused)                   \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v;                                                  \
        FUSE_##v                                                                                   \
    }                                                                                              \
    static const struct net_caller *find_##v(void *library)                                        \
    {                                                                                              \
        const struct ncclNet_v##v *t = table_##v = dlsym(library, "ncclNetPlugin_v" #v);           \
        if (t)                                                                                     \
            caller_##v = (struct net_caller){                                                      \
                v,                t->name,          call_init_##v,     t->devices,                 \
                call_properties_##v, call_listen_##v, call_connect_##v, call_accept_##v,           \
                call_reg_##v,     t->regMrDmaBuf,   t->deregMr,        call_isend_##v,             \
                call_irecv_##v,   t->iflush,        t->test,           t->closeSend,               \
                t->closeRecv,     t->closeListen,   call_finalize_##v, call_set_##v,               \
                call_fuse_##v};                                                                    \
        return t ? &caller_##v : NULL;                                                             \
    }

static const struct ncclNetCommAttr_v11 any_peers = {NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF,
                                                     NCCL_NET_ATTR_UNDEF, NCCL_NET_ATTR_UNDEF};

NCCL_NET_VERSIONS(CALLER)

const struct net_caller *net_caller_find(void *library, int version)
{
#define FIND(v, ...)                                                                               \
    if (version == v)                                                                              \
        return find_##v(library);
    NCCL_NET_VERSIONS(FIND)
    return NULL;
}
