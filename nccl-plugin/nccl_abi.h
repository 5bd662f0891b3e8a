/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_abi.h - what NCCL and a net or tuner plugin say to each other, version by version, in our
 * own declarations. Names are NCCL's, so that its documents apply. Every size and offset is
 * asserted in tests/conformance/nccl_abi_layout.c.
 *
 *      NCCL      2.13-18  2.19  2.20-23  2.24-25  2.26-27  2.28-30.2  2.30.3-
 *      net       6        7     8        9        10       11         12
 *      NCCL      2.19-20  2.21  2.22-23  2.24-27  2.28-30.2  2.30.3-
 *      tuner     1        2     3        4        5          6
 *
 * NCCL takes the highest version that it knows; the layout of a version never changes.
 */
#ifndef DPN_NCCL_ABI_H
#define DPN_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* ---- results and the logger ------------------------------------------------------------------ */

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8
} ncclResult_t;

typedef enum {
    NCCL_LOG_NONE = 0,
    NCCL_LOG_VERSION = 1,
    NCCL_LOG_WARN = 2,
    NCCL_LOG_INFO = 3,
    NCCL_LOG_ABORT = 4,
    NCCL_LOG_TRACE = 5
} ncclDebugLogLevel;

/* Subsystems, the logger's flags. */
enum { NCCL_INIT = 0x1, NCCL_NET = 0x10, NCCL_GRAPH = 0x20, NCCL_TUNING = 0x40, NCCL_REG = 0x2000 };

typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                  int line, const char *fmt, ...);
typedef ncclResult_t (*ncclProfilerCallback_t)(void **eHandle, int type, void *pHandle,
                                               int64_t pluginId, void *extData);

/* The event of this project's net plugin that goes through NCCL to the profiler plugin: a message of a
 * step is given to a device, whose name is the event's data. A kind of plugin that no other one has
 * taken, and version 1 of its events. */
enum { DPN_PROFILE_NET_ID = 0x4450 << 16 | 1 };

/* ---- net: constants -------------------------------------------------------------------------- */

#define NCCL_NET_HANDLE_MAXSIZE 128
#define NCCL_NET_MAX_REQUESTS   32                 /* outstanding per communicator */
#define NCCL_MAX_NET_SIZE_BYTES (INT64_C(1) << 40) /* largest maxP2pBytes that NCCL accepts */

enum { NCCL_PTR_HOST = 1, NCCL_PTR_CUDA = 2, NCCL_PTR_DMABUF = 4 };
enum { NCCL_NET_OPTIONAL_RECV_COMPLETION = 1 }; /* preset in irecv's *request */
enum { NCCL_NET_TRAFFIC_CLASS_UNDEF = -1, NCCL_NET_ATTR_UNDEF = -1, NCCL_NET_ID_UNDEF = -1 };
enum { NCCL_NET_MAX_DEVS_PER_NIC_V9 = 4, NCCL_NET_MAX_DEVS_PER_NIC_V12 = 8 };

typedef enum { NCCL_NET_DEVICE_HOST = 0, NCCL_NET_DEVICE_UNPACK = 1 } ncclNetDeviceType;

/* ---- net: structures ------------------------------------------------------------------------- */

/* For devices that take over part of the receive; ours never do. The same from v7 on. */
struct ncclNetDeviceHandle_v7 {
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
};

/* A device fused out of several: the members. A plain one: itself. v9 to v11. */
struct ncclNetVDeviceProps_v9 {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V9];
};

struct ncclNetVDeviceProps_v12 {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V12];
};

/* v10 and later. */
struct ncclNetCommConfig_v10 {
    int trafficClass;
};

struct ncclNetCommAttr_v11 {
    int32_t maxConcurrentPeers, minConcurrentPeers, maxFlowsPerPeer, minFlowsPerPeer;
};

/* A hint before operations: op, algo and proto are masks over the enums, all ones if undefined. v11
 * and v12. */
struct ncclNetAttr_v11 {
    struct ncclNetCommAttr_v11 sendCommAttr, recvCommAttr;
    uint32_t op, algo, proto;
};

/* What several versions have in the same places. */
#define NCCL_NET_PROPERTIES_FIRST                                                                  \
    char *name;     /* unique per device; stays valid for the life of the process */               \
    char *pciPath;  /* of the device's PCI function in sysfs */                                    \
    uint64_t guid;  /* of the adapter; (guid, port) share one bandwidth */                         \
    int ptrSupport; /* NCCL_PTR_* */
#define NCCL_NET_PROPERTIES_LINK                                                                   \
    int speed; /* Mbit/s */                                                                        \
    int port;                                                                                      \
    float latency; /* us */                                                                        \
    int maxComms;                                                                                  \
    int maxRecvs; /* grouped receives */
#define NCCL_NET_PROPERTIES_DEVICE                                                                 \
    ncclNetDeviceType netDeviceType;                                                               \
    int netDeviceVersion;
/* From v9 on. */
#define NCCL_NET_PROPERTIES_FUSED(fused)                                                           \
    NCCL_NET_PROPERTIES_FIRST                                                                      \
    int regIsGlobal;                                                                               \
    int forceFlush; /* flush even where the GPU would not need it */                               \
    NCCL_NET_PROPERTIES_LINK                                                                       \
    NCCL_NET_PROPERTIES_DEVICE                                                                     \
    fused vProps;                                                                                  \
    size_t maxP2pBytes;                                                                            \
    size_t maxCollBytes;

struct ncclNetProperties_v6 {
    NCCL_NET_PROPERTIES_FIRST
    NCCL_NET_PROPERTIES_LINK
};

struct ncclNetProperties_v7 {
    NCCL_NET_PROPERTIES_FIRST
    NCCL_NET_PROPERTIES_LINK
    NCCL_NET_PROPERTIES_DEVICE
};

struct ncclNetProperties_v8 {
    NCCL_NET_PROPERTIES_FIRST
    int regIsGlobal; /* a registration serves every comm of the device */
    NCCL_NET_PROPERTIES_LINK
    NCCL_NET_PROPERTIES_DEVICE
};

/* v9 and v10. */
struct ncclNetProperties_v9 {
    NCCL_NET_PROPERTIES_FUSED(struct ncclNetVDeviceProps_v9)
};

struct ncclNetProperties_v11 {
    NCCL_NET_PROPERTIES_FUSED(struct ncclNetVDeviceProps_v9)
    int maxMultiRequestSize;
};

struct ncclNetProperties_v12 {
    NCCL_NET_PROPERTIES_FUSED(struct ncclNetVDeviceProps_v12)
    int maxMultiRequestSize;
    int16_t railId;
    int16_t planeId;
};

/* ---- net: functions -------------------------------------------------------------------------- */

/* A type ends in the first version whose table has it. */
typedef ncclResult_t ncclNetInit_v6(ncclDebugLogger_t logFunction);
typedef ncclNetInit_v6 ncclNetInit_v9;
typedef ncclResult_t ncclNetInit_v10(ncclDebugLogger_t logFunction,
                                     ncclProfilerCallback_t profFunction);
typedef ncclResult_t ncclNetInit_v11(void **ctx, uint64_t commId,
                                     struct ncclNetCommConfig_v10 *config,
                                     ncclDebugLogger_t logFunction,
                                     ncclProfilerCallback_t profFunction);

typedef ncclResult_t ncclNetListen_v6(int dev, void *handle, void **listenComm);
typedef ncclResult_t ncclNetListen_v11(void *ctx, int dev, void *handle, void **listenComm);

typedef ncclResult_t ncclNetConnect_v6(int dev, void *handle, void **sendComm);
typedef ncclResult_t ncclNetConnect_v7(int dev, void *handle, void **sendComm,
                                       struct ncclNetDeviceHandle_v7 **sendDevComm);
typedef ncclResult_t ncclNetConnect_v10(int dev, struct ncclNetCommConfig_v10 *config, void *handle,
                                        void **sendComm,
                                        struct ncclNetDeviceHandle_v7 **sendDevComm);
typedef ncclResult_t ncclNetConnect_v11(void *ctx, int dev, void *handle, void **sendComm,
                                        struct ncclNetDeviceHandle_v7 **sendDevComm);

typedef ncclResult_t ncclNetAccept_v6(void *listenComm, void **recvComm);
typedef ncclResult_t ncclNetAccept_v7(void *listenComm, void **recvComm,
                                      struct ncclNetDeviceHandle_v7 **recvDevComm);

typedef ncclResult_t ncclNetRegMr_v6(void *comm, void *data, int size, int type, void **mhandle);
typedef ncclResult_t ncclNetRegMr_v8(void *comm, void *data, size_t size, int type, void **mhandle);

typedef ncclResult_t ncclNetIsend_v6(void *sendComm, void *data, int size, int tag, void *mhandle,
                                     void **request);
typedef ncclResult_t ncclNetIsend_v9(void *sendComm, void *data, size_t size, int tag,
                                     void *mhandle, void **request);
typedef ncclResult_t ncclNetIsend_v10(void *sendComm, void *data, size_t size, int tag,
                                      void *mhandle, void *phandle, void **request);

typedef ncclResult_t ncclNetIrecv_v6(void *recvComm, int n, void **data, int *sizes, int *tags,
                                     void **mhandles, void **request);
typedef ncclResult_t ncclNetIrecv_v9(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                                     void **mhandles, void **request);
typedef ncclResult_t ncclNetIrecv_v10(void *recvComm, int n, void **data, size_t *sizes, int *tags,
                                      void **mhandles, void **phandles, void **request);

/* ---- net: tables ----------------------------------------------------------------------------- */

/* A version, and since which version its functions and its properties are as they are: init,
 * getProperties, listen, connect, accept, regMr, isend and irecv.
 *
 *      7   handles of devices that take over part of the receive
 *      8   regMr takes a size_t
 *      9   isend and irecv take sizes of size_t; devices can be fused
 *      10  a traffic class for connect, profiler handles for isend and irecv
 *      11  a context per communicator, finalize, setNetAttr
 *      12  wider fused devices, rail and plane of a device */
#define NCCL_NET_VERSIONS(X)                                                                       \
    X(6, 6, 6, 6, 6, 6, 6, 6)                                                                      \
    X(7, 6, 7, 6, 7, 7, 6, 6)                                                                      \
    X(8, 6, 8, 6, 7, 7, 8, 6)                                                                      \
    X(9, 9, 9, 6, 7, 7, 8, 9)                                                                      \
    X(10, 10, 9, 6, 10, 7, 8, 10)                                                                  \
    X(11, 11, 11, 11, 11, 7, 8, 10)                                                                \
    X(12, 11, 12, 11, 11, 7, 8, 10)

/* What stands at a table's end. */
#define NCCL_NET_END_6
#define NCCL_NET_END_7                                                                             \
    ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);                   \
    ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
#define NCCL_NET_END_8 NCCL_NET_END_7
#define NCCL_NET_END_9                                                                             \
    NCCL_NET_END_7                                                                                 \
    ncclResult_t (*makeVDevice)(int *d, struct ncclNetVDeviceProps_v9 *props);
#define NCCL_NET_END_10 NCCL_NET_END_9
#define NCCL_NET_END_CONTEXT                                                                       \
    ncclResult_t (*finalize)(void *ctx);                                                           \
    ncclResult_t (*setNetAttr)(void *ctx, struct ncclNetAttr_v11 *netAttr);
#define NCCL_NET_END_11 NCCL_NET_END_9 NCCL_NET_END_CONTEXT
#define NCCL_NET_END_12                                                                            \
    NCCL_NET_END_7                                                                                 \
    ncclResult_t (*makeVDevice)(int *d, struct ncclNetVDeviceProps_v12 *props);                    \
    NCCL_NET_END_CONTEXT

#define NCCL_NET_TABLE(v, init_, props_, listen_, connect_, accept_, reg_, message_)               \
    struct ncclNet_v##v {                                                                          \
        const char *name;                                                                          \
        ncclNetInit_v##init_ *init;                                                                \
        ncclResult_t (*devices)(int *ndev);                                                        \
        ncclResult_t (*getProperties)(int dev, struct ncclNetProperties_v##props_ *props);         \
        ncclNetListen_v##listen_ *listen;                                                          \
        ncclNetConnect_v##connect_ *connect;                                                       \
        ncclNetAccept_v##accept_ *accept;                                                          \
        ncclNetRegMr_v##reg_ *regMr;                                                               \
        ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,                 \
                                    uint64_t offset, int fd, void **mhandle);                      \
        ncclResult_t (*deregMr)(void *comm, void *mhandle);                                        \
        ncclNetIsend_v##message_ *isend;                                                           \
        ncclNetIrecv_v##message_ *irecv;                                                           \
        ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles,    \
                               void **request);                                                    \
        ncclResult_t (*test)(void *request, int *done, int *sizes);                                \
        ncclResult_t (*closeSend)(void *sendComm);                                                 \
        ncclResult_t (*closeRecv)(void *recvComm);                                                 \
        ncclResult_t (*closeListen)(void *listenComm);                                             \
        NCCL_NET_END_##v                                                                           \
    };
NCCL_NET_VERSIONS(NCCL_NET_TABLE)
#undef NCCL_NET_TABLE

/* ---- tuner ----------------------------------------------------------------------------------- */

typedef enum {
    ncclFuncBroadcast = 0,
    ncclFuncReduce = 1,
    ncclFuncAllGather = 2,
    ncclFuncReduceScatter = 3,
    ncclFuncAllReduce = 4
} ncclFunc_t;

enum {
    NCCL_ALGO_UNDEF = -1,
    NCCL_ALGO_TREE = 0,
    NCCL_ALGO_RING = 1,
    NCCL_ALGO_COLLNET_DIRECT = 2,
    NCCL_ALGO_COLLNET_CHAIN = 3,
    NCCL_ALGO_NVLS = 4,
    NCCL_ALGO_NVLS_TREE = 5,
    NCCL_ALGO_PAT = 6,
    NCCL_NUM_ALGORITHMS = 7
};
enum {
    NCCL_PROTO_UNDEF = -1,
    NCCL_PROTO_LL = 0,
    NCCL_PROTO_LL128 = 1,
    NCCL_PROTO_SIMPLE = 2,
    NCCL_NUM_PROTOCOLS = 3
};
enum { NCCL_NUM_HW_LINKS = 3, NCCL_NUM_COMPCAPS = 4, NCCL_NUM_TUNING_SCALES = 3 };
#define NCCL_ALGO_PROTO_IGNORE (-1.0f) /* a cell of the cost table that may not be chosen */

struct ncclNvlDomainInfo_v5 {
    int nNvlDomains, minRanksPerNvlDomain, maxRanksPerNvlDomain;
};

/* In and out: NCCL's defaults, which a plugin may overwrite. us and GB/s. */
struct ncclTunerConstants_v5 {
    double baseLatencies[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
    double hwLatencies[NCCL_NUM_HW_LINKS][NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
    double llMaxBws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
    double perChMaxRingLL128Bws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
    double perChMaxTreeLL128Bws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
    double perChMaxTreeBws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
    double perChMaxNVLSTreeBws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
};

typedef ncclResult_t ncclTunerInit_v1(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction);
typedef ncclResult_t ncclTunerInit_v2(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                                      void **context);
typedef ncclResult_t ncclTunerInit_v5(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                                      ncclDebugLogger_t logFunction,
                                      struct ncclNvlDomainInfo_v5 *nvlDomainInfo,
                                      struct ncclTunerConstants_v5 *constants);
/* The cost table is float[numAlgo][numProto], whatever its declared type. */
typedef ncclResult_t ncclTunerGetCollInfo_v4(void *context, ncclFunc_t collType, size_t nBytes,
                                             int numPipeOps, float **collCostTable, int numAlgo,
                                             int numProto, int regBuff, int *nChannels);

struct ncclTuner_v1 {
    const char *name;
    ncclTunerInit_v1 *init;
    ncclResult_t (*getCollInfo)(ncclFunc_t collType, size_t nBytes, int collNetSupport,
                                int nvlsSupport, int numPipeOps, int *algorithm, int *protocol,
                                int *nChannels);
    ncclResult_t (*destroy)(void);
};

/* New: a context. */
struct ncclTuner_v2 {
    const char *name;
    ncclTunerInit_v2 *init;
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes,
                                int collNetSupport, int nvlsSupport, int numPipeOps, int *algorithm,
                                int *protocol, int *nChannels);
    ncclResult_t (*destroy)(void *context);
};

/* New: a cost table instead of one choice. */
struct ncclTuner_v3 {
    const char *name;
    ncclTunerInit_v2 *init;
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int *nChannels);
    ncclResult_t (*destroy)(void *context);
};

/* New: whether buffers are registered. */
struct ncclTuner_v4 {
    const char *name;
    ncclTunerInit_v2 *init;
    ncclTunerGetCollInfo_v4 *getCollInfo;
    ncclResult_t (*destroy)(void *context);
};

/* New: constants to overwrite, earlier in the life of a communicator. */
struct ncclTuner_v5 {
    const char *name;
    ncclTunerInit_v5 *init;
    ncclTunerGetCollInfo_v4 *getCollInfo;
    ncclResult_t (*finalize)(void *context);
};

/* New: the size of a chunk. */
struct ncclTuner_v6 {
    const char *name;
    ncclTunerInit_v5 *init;
    ncclTunerGetCollInfo_v4 *getCollInfo;
    ncclResult_t (*finalize)(void *context);
    ncclResult_t (*getChunkSize)(void *context, ncclFunc_t collType, size_t nBytes, int algorithm,
                                 int protocol, int nChannels, size_t *chunkSize);
};

#endif
