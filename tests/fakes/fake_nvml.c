/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_nvml.c - a stand-in for libnvidia-ml.so.1 whose GPUs stand in the file that FAKE_NVML names:
 *
 *      gpu DOMAIN:BUS:DEVICE SM MIB UUID NAME...   one GPU; the lines below are about it
 *      link COUNT switch|npu|gpu|hidden|DOMAIN:BUS:DEVICE MBPS [VERSION]   NVML's number of it
 *      c2c COUNT MBPS
 *      pcie GENERATION WIDTH                       as it could run
 *      numa NODE
 *      fabric UUID CLIQUE STATE STATUS             of its NVLink domain
 *      mig                                         is divided
 *      refuse STATUS                               no peer may reach it over NVLink
 *      fail FUNCTION RESULT                        what it returns instead, for all GPUs
 *
 * "hidden" is a switch as virtual machines see it: without a type, at an address of all ones; "gpu"
 * a GPU that is not listed. Built with FAKE_NVML_OLD it lacks what NVML has had for the last years
 * only.
 */
#include "topology/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 16, RUNS = 32, FAILS = 8, NOT_SUPPORTED = 3, INVALID_ARGUMENT = 2, UNKNOWN = 999 };

struct run {
    int count, type; /* type -1: not told */
    unsigned domain, bus, device, mbps, version; /* 0: not told */
};

struct dp_nvml_device {
    unsigned domain, bus, device;
    int sm, numa, c2c, run_count, refusal;
    unsigned c2c_mbps, gen, width;
    unsigned long long mib;
    bool mig;
    char uuid[96], name[96];
    struct run runs[RUNS];
    bool has_fabric;
    struct dp_nvml_fabric fabric;
};

static struct dp_nvml_device gpus[GPUS];
static int gpu_count, fail_count;
static struct {
    char name[64];
    int result;
} fails[FAILS];

/* ---- the file ------------------------------------------------------------------------------- */

static void read_link(struct dp_nvml_device *g, const char *line)
{
    struct run r = {.type = DP_NVML_REMOTE_GPU};
    char target[64] = "";

    sscanf(line, "link %d %63s %u %u", &r.count, target, &r.mbps, &r.version);
    if (sscanf(target, "%x:%x:%x", &r.domain, &r.bus, &r.device) < 3) {
        r.type = !strcmp(target, "switch") ? DP_NVML_REMOTE_SWITCH
                 : !strcmp(target, "npu")  ? DP_NVML_REMOTE_NPU
                 : !strcmp(target, "gpu")  ? DP_NVML_REMOTE_GPU : -1;
        r.domain = r.bus = r.device = ~0u;
    }
    if (g->run_count < RUNS)
        g->runs[g->run_count++] = r;
}

/* The UUID with its hyphens. */
static void read_fabric(struct dp_nvml_device *g, const char *line)
{
    char uuid[37] = "";
    unsigned state = 0;
    int digits = 0;

    g->has_fabric = sscanf(line, "fabric %36s %u %u %d", uuid, &g->fabric.clique, &state,
                           &g->fabric.status) == 4;
    g->fabric.state = (unsigned char)state;
    for (const char *at = uuid; *at && digits < 32; at++) {
        unsigned digit;
        if (*at == '-' || sscanf((const char[]){*at, 0}, "%1x", &digit) != 1)
            continue;
        g->fabric.cluster[digits / 2] = (unsigned char)(g->fabric.cluster[digits / 2] << 4 | digit);
        digits++;
    }
}

static void read_line(const char *line)
{
    struct dp_nvml_device *g = &gpus[gpu_count ? gpu_count - 1 : 0];

    if (!strncmp(line, "gpu ", 4) && gpu_count < GPUS) {
        g = &gpus[gpu_count++];
        *g = (struct dp_nvml_device){.numa = -1};
        sscanf(line, "gpu %x:%x:%x %d %llu %95s %95[^\n]", &g->domain, &g->bus, &g->device, &g->sm,
               &g->mib, g->uuid, g->name);
    } else if (!strncmp(line, "link ", 5)) {
        read_link(g, line);
    } else if (!strncmp(line, "fabric ", 7)) {
        read_fabric(g, line);
    } else if (!strncmp(line, "mig", 3)) {
        g->mig = true;
    } else if (sscanf(line, "fail %63s %d", fails[fail_count % FAILS].name,
                      &fails[fail_count % FAILS].result) == 2) {
        fail_count++;
    } else if (sscanf(line, "c2c %d %u", &g->c2c, &g->c2c_mbps) < 1 &&
               sscanf(line, "pcie %u %u", &g->gen, &g->width) < 1 &&
               sscanf(line, "refuse %d", &g->refusal) < 1) {
        sscanf(line, "numa %d", &g->numa);
    }
}

static int read_file(void)
{
    const char *path = getenv("FAKE_NVML");
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[256];

    if (!f)
        return UNKNOWN;
    gpu_count = fail_count = 0;
    while (fgets(line, sizeof(line), f))
        read_line(line);
    fclose(f);
    return 0;
}

/* What the function is to return instead, else 0. */
static int failure(const char *name)
{
    for (int i = 0; i < fail_count; i++)
        if (!strcmp(fails[i].name, name))
            return fails[i].result;
    return 0;
}

#define MAY_FAIL() \
    do { \
        int result = failure(__func__); \
        if (result) \
            return result; \
    } while (0)

static const struct run *run_of(const struct dp_nvml_device *g, unsigned link)
{
    for (int i = 0; i < g->run_count; i++) {
        if (link < (unsigned)g->runs[i].count)
            return &g->runs[i];
        link -= (unsigned)g->runs[i].count;
    }
    return NULL;
}

static int copy_text(char *out, unsigned room, const char *text)
{
    snprintf(out, room, "%s", text);
    return 0;
}

/* ---- the library ---------------------------------------------------------------------------- */

#define PROTOTYPE(name, arguments) DP_PUBLIC int name arguments;
DP_NVML_FUNCTIONS(PROTOTYPE)
DP_PUBLIC const char *nvmlErrorString(int result);

int nvmlInit_v2(void)
{
    int err = read_file();

    return err ? err : failure(__func__);
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    MAY_FAIL();
    *count = (unsigned)gpu_count;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct dp_nvml_device **out)
{
    MAY_FAIL();
    *out = &gpus[index % GPUS];
    return index < (unsigned)gpu_count ? 0 : INVALID_ARGUMENT;
}

static void put_pci(struct dp_nvml_pci *out, unsigned domain, unsigned bus, unsigned device)
{
    *out = (struct dp_nvml_pci){.domain = domain, .bus = bus, .device = device, .id = 0x233010de};
    snprintf(out->bus_id, sizeof(out->bus_id), "%08X:%02X:%02X.0", domain, bus & 0xff, device & 0xff);
}

int nvmlDeviceGetPciInfo_v3(struct dp_nvml_device *g, struct dp_nvml_pci *out)
{
    MAY_FAIL();
    put_pci(out, g->domain, g->bus, g->device);
    return 0;
}

int nvmlDeviceGetName(struct dp_nvml_device *g, char *out, unsigned room)
{
    MAY_FAIL();
    return copy_text(out, room, g->name);
}

int nvmlDeviceGetUUID(struct dp_nvml_device *g, char *out, unsigned room)
{
    MAY_FAIL();
    return copy_text(out, room, g->uuid);
}

int nvmlDeviceGetCudaComputeCapability(struct dp_nvml_device *g, int *major, int *minor)
{
    MAY_FAIL();
    *major = g->sm / 10;
    *minor = g->sm % 10;
    return 0;
}

int nvmlDeviceGetMemoryInfo(struct dp_nvml_device *g, struct dp_nvml_memory *out)
{
    MAY_FAIL();
    *out = (struct dp_nvml_memory){.total = g->mib << 20};
    return 0;
}

int nvmlDeviceGetMaxPcieLinkGeneration(struct dp_nvml_device *g, unsigned *out)
{
    *out = g->gen;
    return g->gen ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxPcieLinkWidth(struct dp_nvml_device *g, unsigned *out)
{
    *out = g->width;
    return g->width ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrPcieLinkWidth(struct dp_nvml_device *g, unsigned *out)
{
    return nvmlDeviceGetMaxPcieLinkWidth(g, out);
}

int nvmlDeviceGetNvLinkState(struct dp_nvml_device *g, unsigned link, int *state)
{
    MAY_FAIL();
    *state = DP_NVML_ENABLED;
    return run_of(g, link) ? 0 : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkVersion(struct dp_nvml_device *g, unsigned link, unsigned *version)
{
    const struct run *r = run_of(g, link);

    MAY_FAIL();
    if (!r)
        return INVALID_ARGUMENT;
    *version = r->version;
    return r->version ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct dp_nvml_device *g, unsigned link,
                                        struct dp_nvml_pci *out)
{
    const struct run *r = run_of(g, link);

    MAY_FAIL();
    if (!r)
        return INVALID_ARGUMENT;
    put_pci(out, r->domain, r->bus, r->device);
    return 0;
}

int nvmlDeviceGetP2PStatus(struct dp_nvml_device *g, struct dp_nvml_device *peer, int which, int *out)
{
    MAY_FAIL();
    if (which != DP_NVML_P2P_OVER_NVLINK)
        return NOT_SUPPORTED;
    *out = g->refusal > peer->refusal ? g->refusal : peer->refusal;
    return 0;
}

const char *nvmlErrorString(int result)
{
    return result == NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}

/* ---- what old ones lack --------------------------------------------------------------------- */

#ifndef FAKE_NVML_OLD

int nvmlDeviceIsMigDeviceHandle(struct dp_nvml_device *g, unsigned *is_mig)
{
    (void)g;
    *is_mig = 0;
    return 0;
}

int nvmlDeviceGetMigMode(struct dp_nvml_device *g, unsigned *current, unsigned *pending)
{
    *current = *pending = g->mig;
    return 0;
}

int nvmlDeviceGetMemoryAffinity(struct dp_nvml_device *g, unsigned words, unsigned long *nodes,
                                unsigned scope)
{
    MAY_FAIL();
    if (g->numa < 0 || scope)
        return NOT_SUPPORTED;
    memset(nodes, 0, words * sizeof(*nodes));
    nodes[0] = 1ul << g->numa;
    return 0;
}

int nvmlDeviceGetNvLinkCapability(struct dp_nvml_device *g, unsigned link, int which, unsigned *out)
{
    MAY_FAIL();
    *out = which == DP_NVML_CAPABILITY_P2P;
    return run_of(g, link) ? 0 : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(struct dp_nvml_device *g, unsigned link, int *type)
{
    const struct run *r = run_of(g, link);

    MAY_FAIL();
    if (!r || r->type < 0)
        return NOT_SUPPORTED;
    *type = r->type;
    return 0;
}

int nvmlDeviceGetGpuFabricInfoV(struct dp_nvml_device *g, struct dp_nvml_fabric *out)
{
    MAY_FAIL();
    if (out->version != DP_NVML_FABRIC_VERSION)
        return INVALID_ARGUMENT;
    *out = g->fabric;
    return g->has_fabric ? 0 : NOT_SUPPORTED;
}

static int answer(const struct dp_nvml_device *g, unsigned id, unsigned scope, unsigned *out)
{
    const struct run *r = run_of(g, scope);

    *out = id == DP_NVML_FIELD_STATE        ? DP_NVML_ENABLED
           : id == DP_NVML_FIELD_C2C_COUNT  ? (unsigned)g->c2c
           : id == DP_NVML_FIELD_C2C_STATUS ? DP_NVML_ENABLED
           : id == DP_NVML_FIELD_C2C_RATE   ? g->c2c_mbps
           : id == DP_NVML_FIELD_VERSION    ? (r ? r->version : 0) : r ? r->mbps : 0;
    if (id == DP_NVML_FIELD_COMMON_SPEED && g->sm >= 90)
        return NOT_SUPPORTED;
    if (id == DP_NVML_FIELD_VERSION)
        return *out ? 0 : NOT_SUPPORTED;
    if (id == DP_NVML_FIELD_STATE || id == DP_NVML_FIELD_SPEED)
        return r && g->sm >= 90 ? 0 : NOT_SUPPORTED;
    return 0;
}

int nvmlDeviceGetFieldValues(struct dp_nvml_device *g, int count, struct dp_nvml_field *fields)
{
    MAY_FAIL();
    for (int i = 0; i < count; i++)
        fields[i].result = answer(g, fields[i].id, fields[i].scope, &fields[i].value.number);
    return 0;
}

#endif
