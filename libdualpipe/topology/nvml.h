/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml.h - NVIDIA's management library, loaded at run time: what /sys does not say of GPUs, above all
 * how NVLink joins them. The declarations are our own, of the part that we use; what a library lacks
 * or refuses is left out.
 *
 * Sources: NVIDIA Management Library (NVML) API Reference Guide: device queries, NvLink methods, field
 * value queries.
 */
#ifndef DP_TOPOLOGY_NVML_H
#define DP_TOPOLOGY_NVML_H

#include "base/options.h"
#include "topology/build.h"

#include <assert.h>

struct dp_nvml_device; /* never looked into; stands for a whole GPU unless it says otherwise */

struct dp_nvml_pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device;
    unsigned id, subsystem_id; /* device << 16 | vendor */
    char bus_id[32];
};

struct dp_nvml_memory {
    unsigned long long total, free, used;
};

struct dp_nvml_field {
    unsigned id, scope; /* scope: a link's number */
    long long timestamp, latency;
    int type, result;
    union {
        unsigned number;
        unsigned long long large;
    } value;
};

struct dp_nvml_fabric {
    unsigned version; /* DP_NVML_FABRIC_VERSION */
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};

static_assert(sizeof(struct dp_nvml_pci) == 68, "as nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3");
static_assert(sizeof(struct dp_nvml_memory) == 24, "as nvmlMemory_t");
static_assert(sizeof(struct dp_nvml_field) == 40, "as nvmlFieldValue_t");
static_assert(offsetof(struct dp_nvml_field, value) == 32, "as nvmlFieldValue_t");
static_assert(sizeof(struct dp_nvml_fabric) == 36, "as nvmlGpuFabricInfo_v2_t");

/* What functions return and take. */
enum {
    DP_NVML_SUCCESS = 0,
    DP_NVML_ENABLED = 1, /* a link that is up; MIG */
    DP_NVML_CAPABILITY_P2P = 0,
    DP_NVML_REMOTE_GPU = 0,
    DP_NVML_REMOTE_NPU = 1, /* a CPU of IBM */
    DP_NVML_REMOTE_SWITCH = 2,
    DP_NVML_P2P_OVER_NVLINK = 2, /* which way is asked about */
    DP_NVML_P2P_OK = 0,
    DP_NVML_FIELD_COMMON_SPEED = 90, /* MB/s of a link, coding included; before Hopper */
    DP_NVML_FIELD_SPEED = 164,       /* the same of the link in scope; from Hopper on */
    DP_NVML_FIELD_STATE = 165,
    DP_NVML_FIELD_VERSION = 166,
    DP_NVML_FIELD_C2C_COUNT = 170,
    DP_NVML_FIELD_C2C_STATUS = 171,
    DP_NVML_FIELD_C2C_RATE = 172, /* MB/s of the link in scope */
    DP_NVML_FABRIC_VERSION = sizeof(struct dp_nvml_fabric) | 2 << 24,
    DP_NVML_FABRIC_DONE = 3,      /* the state in which the rest means something */
    DP_NVML_LINKS_MAX = 36        /* no GPU has more; NVML refuses numbers that no link has */
};

/* F(name, arguments) */
#define DP_NVML_FUNCTIONS(F) \
    F(nvmlInit_v2, (void)) \
    F(nvmlShutdown, (void)) \
    F(nvmlDeviceGetCount_v2, (unsigned *count)) \
    F(nvmlDeviceGetHandleByIndex_v2, (unsigned index, struct dp_nvml_device **out)) \
    F(nvmlDeviceGetPciInfo_v3, (struct dp_nvml_device *, struct dp_nvml_pci *out)) \
    F(nvmlDeviceGetName, (struct dp_nvml_device *, char *out, unsigned room)) \
    F(nvmlDeviceGetUUID, (struct dp_nvml_device *, char *out, unsigned room)) \
    F(nvmlDeviceGetCudaComputeCapability, (struct dp_nvml_device *, int *major, int *minor)) \
    F(nvmlDeviceGetMemoryInfo, (struct dp_nvml_device *, struct dp_nvml_memory *out)) \
    F(nvmlDeviceGetMemoryAffinity, (struct dp_nvml_device *, unsigned words, unsigned long *nodes, \
                                    unsigned scope)) \
    F(nvmlDeviceGetMaxPcieLinkGeneration, (struct dp_nvml_device *, unsigned *out)) \
    F(nvmlDeviceGetMaxPcieLinkWidth, (struct dp_nvml_device *, unsigned *out)) \
    F(nvmlDeviceGetCurrPcieLinkWidth, (struct dp_nvml_device *, unsigned *out)) \
    F(nvmlDeviceIsMigDeviceHandle, (struct dp_nvml_device *, unsigned *is_mig)) \
    F(nvmlDeviceGetMigMode, (struct dp_nvml_device *, unsigned *current, unsigned *pending)) \
    F(nvmlDeviceGetNvLinkState, (struct dp_nvml_device *, unsigned link, int *state)) \
    F(nvmlDeviceGetNvLinkVersion, (struct dp_nvml_device *, unsigned link, unsigned *version)) \
    F(nvmlDeviceGetNvLinkCapability, (struct dp_nvml_device *, unsigned link, int which, \
                                      unsigned *out)) \
    F(nvmlDeviceGetNvLinkRemotePciInfo_v2, (struct dp_nvml_device *, unsigned link, \
                                            struct dp_nvml_pci *out)) \
    F(nvmlDeviceGetNvLinkRemoteDeviceType, (struct dp_nvml_device *, unsigned link, int *type)) \
    F(nvmlDeviceGetP2PStatus, (struct dp_nvml_device *, struct dp_nvml_device *, int which, \
                               int *out)) \
    F(nvmlDeviceGetGpuFabricInfoV, (struct dp_nvml_device *, struct dp_nvml_fabric *out)) \
    F(nvmlDeviceGetFieldValues, (struct dp_nvml_device *, int count, struct dp_nvml_field *fields))

/* Each may be NULL. */
struct dp_nvml {
#define MEMBER(name, arguments) int(*name) arguments;
    DP_NVML_FUNCTIONS(MEMBER)
#undef MEMBER
    const char *(*nvmlErrorString)(int result);
    void *library;
};

/* Did the function, which may be missing, do it? */
#define DP_NVML_CALL(nvml, name, ...) \
    ((nvml)->name && (nvml)->name(__VA_ARGS__) == DP_NVML_SUCCESS)

/* Complete the GPUs of a host, which has its NUMA nodes and what its PCI buses show: models, memory,
 * NVLink, C2C, and GPUs that stand on no bus that is shown. What cannot be told is noted. Of a machine
 * that is not this one (is_here) only where DUALPIPE_TOPOLOGY_NVML_LIBRARY names a library to ask.
 * DP_EINVAL for that option's value only. */
int dp_nvml_add(struct dp_topo_builder *b, int32_t host, bool is_here);

extern const struct dp_option_area dp_topology_option_area;

#endif
