/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_nvml.c - libnvidia-ml.so.1 for NCCL: one GPU without NVLink or peers. What is left out NCCL
 * takes for not supported by this driver.
 */
#include "simcuda/cuda_api.h"
#include "simcuda/sim_gpu.h"

#include <string.h>
#include <strings.h>

enum { NVML_SUCCESS = 0, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_P2P_NOT_SUPPORTED = 1 };

static char the_gpu;

#define NVML SIM_EXPORT int

NVML nvmlInit(void);
NVML nvmlInit_v2(void);
NVML nvmlShutdown(void);
NVML nvmlDeviceGetCount(unsigned *out);
NVML nvmlDeviceGetCount_v2(unsigned *out);
NVML nvmlDeviceGetHandleByIndex(unsigned index, void **out);
NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
NVML nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **out);
NVML nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out);
NVML nvmlDeviceGetIndex(void *gpu, unsigned *out);
NVML nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor);
NVML nvmlDeviceGetP2PStatus(void *gpu, void *peer, int index, int *out);
NVML nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *out);
NVML nvmlDeviceGetNvLinkRemotePciInfo(void *gpu, unsigned link, void *out);
NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, void *out);
NVML nvmlDeviceGetNvLinkCapability(void *gpu, unsigned link, int which, unsigned *out);
NVML nvmlDeviceGetFieldValues(void *gpu, int count, void *values);
NVML nvmlDeviceGetPciInfo_v3(void *gpu, void *out);
NVML nvmlDeviceGetPciInfoExt(void *gpu, void *out);
NVML nvmlDeviceGetPcieLinkMaxSpeed(void *gpu, unsigned *out);
NVML nvmlDeviceGetCurrPcieLinkGeneration(void *gpu, unsigned *out);
NVML nvmlDeviceGetCurrPcieLinkWidth(void *gpu, unsigned *out);
SIM_EXPORT const char *nvmlErrorString(int err);

NVML nvmlInit(void)
{
    return NVML_SUCCESS;
}

NVML nvmlInit_v2(void)
{
    return NVML_SUCCESS;
}

NVML nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetCount(unsigned *out)
{
    *out = 1;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetCount_v2(unsigned *out)
{
    return nvmlDeviceGetCount(out);
}

NVML nvmlDeviceGetHandleByIndex(unsigned index, void **out)
{
    *out = &the_gpu;
    return index == 0 ? NVML_SUCCESS : NVML_NOT_FOUND;
}

NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    return nvmlDeviceGetHandleByIndex(index, out);
}

/* NVML writes the domain with eight digits, CUDA with four. */
NVML nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **out)
{
    size_t len = strlen(bus_id), wanted = strlen(SIM_GPU_BUS_ID);

    if (len < wanted || strcasecmp(bus_id + len - wanted, SIM_GPU_BUS_ID) != 0)
        return NVML_NOT_FOUND;
    *out = &the_gpu;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out)
{
    return nvmlDeviceGetHandleByPciBusId(bus_id, out);
}

NVML nvmlDeviceGetIndex(void *gpu, unsigned *out)
{
    (void)gpu;
    *out = 0;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor)
{
    (void)gpu;
    *major = SIM_GPU_MAJOR;
    *minor = SIM_GPU_MINOR;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetP2PStatus(void *gpu, void *peer, int index, int *out)
{
    (void)gpu, (void)peer, (void)index;
    *out = NVML_P2P_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *out)
{
    (void)gpu, (void)link, (void)out;
    return NVML_NOT_SUPPORTED;
}

NVML nvmlDeviceGetNvLinkRemotePciInfo(void *gpu, unsigned link, void *out)
{
    (void)gpu, (void)link, (void)out;
    return NVML_NOT_SUPPORTED;
}

NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, void *out)
{
    return nvmlDeviceGetNvLinkRemotePciInfo(gpu, link, out);
}

NVML nvmlDeviceGetNvLinkCapability(void *gpu, unsigned link, int which, unsigned *out)
{
    (void)gpu, (void)link, (void)which, (void)out;
    return NVML_NOT_SUPPORTED;
}

NVML nvmlDeviceGetFieldValues(void *gpu, int count, void *values)
{
    (void)gpu, (void)count, (void)values;
    return NVML_NOT_SUPPORTED;
}

/* ---- NCCL 2.30 calls these without asking whether they are there ----------------------------- */

NVML nvmlDeviceGetPciInfo_v3(void *gpu, void *out)
{
    (void)gpu, (void)out;
    return NVML_NOT_SUPPORTED;
}

NVML nvmlDeviceGetPciInfoExt(void *gpu, void *out)
{
    (void)gpu, (void)out;
    return NVML_NOT_SUPPORTED;
}

NVML nvmlDeviceGetPcieLinkMaxSpeed(void *gpu, unsigned *out)
{
    (void)gpu, (void)out;
    return NVML_NOT_SUPPORTED;
}

NVML nvmlDeviceGetCurrPcieLinkGeneration(void *gpu, unsigned *out)
{
    (void)gpu, (void)out;
    return NVML_NOT_SUPPORTED;
}

NVML nvmlDeviceGetCurrPcieLinkWidth(void *gpu, unsigned *out)
{
    (void)gpu, (void)out;
    return NVML_NOT_SUPPORTED;
}

const char *nvmlErrorString(int err)
{
    return err ? "not supported by the simulated NVML" : "success";
}
