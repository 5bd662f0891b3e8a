/* SPDX-License-Identifier: Apache-2.0 */
#include "topology/nvml.h"

#include "base/dl.h"
#include "base/fail.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct dp_dl_symbol symbols[] = {
#define SYMBOL(name, arguments) {#name, offsetof(struct dp_nvml, name), true},
    DP_NVML_FUNCTIONS(SYMBOL)
#undef SYMBOL
    {"nvmlErrorString", offsetof(struct dp_nvml, nvmlErrorString), true},
};

const char *dp_nvml_reason(const struct dp_nvml *nvml, int result, char text[32])
{
    const char *reason = nvml->nvmlErrorString ? nvml->nvmlErrorString(result) : NULL;

    snprintf(text, 32, "error %d", result);
    return reason && *reason ? reason : text;
}

int dp_nvml_open(const char *file, struct dp_nvml *out)
{
    const char *files[] = {file ? file : "libnvidia-ml.so.1", NULL};
    struct dp_nvml nvml = {.library = NULL};
    char text[32];
    int err = dp_dl_open(files, symbols, sizeof(symbols) / sizeof(symbols[0]), &nvml, &nvml.library);

    if (err)
        return err;
    if (!nvml.nvmlInit_v2 || !nvml.nvmlDeviceGetCount_v2 || !nvml.nvmlDeviceGetHandleByIndex_v2 ||
        !nvml.nvmlDeviceGetPciInfo_v3) {
        dlclose(nvml.library);
        return dp_fail_quietly(DP_ENOENT, "%s is too old, or no NVML: it lacks functions that count "
                               "and find GPUs", files[0]);
    }
    int result = nvml.nvmlInit_v2();
    if (result != DP_NVML_SUCCESS) {
        err = dp_fail_quietly(DP_ENODEV, "%s does not start: %s", files[0],
                              dp_nvml_reason(&nvml, result, text));
        dlclose(nvml.library);
        return err;
    }
    *out = nvml;
    return 0;
}

void dp_nvml_close(struct dp_nvml *nvml)
{
    if (nvml->nvmlShutdown)
        nvml->nvmlShutdown();
    dlclose(nvml->library);
}

/* ---- nvml ask -------------------------------------------------------------------------------- */

/* Questions to NVML about one GPU whose answers need some thought: how fast its NVLinks
 * are, what joins it to its CPU, which hosts its NVLink domain reaches. */

bool dp_nvml_ask_field(const struct dp_nvml *nvml, struct dp_nvml_device *device, unsigned id,
                       unsigned scope, unsigned *out)
{
    struct dp_nvml_field field = {.id = id, .scope = scope, .result = -1};

    if (!DP_NVML_CALL(nvml, nvmlDeviceGetFieldValues, device, 1, &field) ||
        field.result != DP_NVML_SUCCESS)
        return false;
    *out = field.value.number;
    return true;
}

/* ---- NVLink --------------------------------------------------------------------------------- */

/* NVML's numbers of versions: what is before the point, and GB/s of a link after coding. NVIDIA's white
 * papers of P100, V100, A100, GA102 (3.1), H100 and Blackwell. */
static const struct {
    int version;
    double rate;
} versions[] = {{0, 0}, {1, 20}, {2, 25}, {2, 25}, {3, 25}, {3, 14.0625}, {4, 25}, {5, 50}};

static unsigned ask_version(const struct dp_nvml *nvml, struct dp_nvml_device *device, unsigned link)
{
    unsigned number = 0;

    if (!DP_NVML_CALL(nvml, nvmlDeviceGetNvLinkVersion, device, link, &number) &&
        !dp_nvml_ask_field(nvml, device, DP_NVML_FIELD_VERSION, link, &number))
        return 0;
    return number < sizeof(versions) / sizeof(versions[0]) ? number : 0;
}

struct dp_nvml_speed dp_nvml_ask_speed(const struct dp_nvml *nvml, struct dp_nvml_device *device,
                                       unsigned link, int sm)
{
    unsigned version = ask_version(nvml, device, link), mbps = 0;
    double usual = version ? versions[version].rate : dp_topo_assumed_nvlink_rate(sm);
    bool told = dp_nvml_ask_field(nvml, device, DP_NVML_FIELD_SPEED, link, &mbps) && mbps;

    told = told || (dp_nvml_ask_field(nvml, device, DP_NVML_FIELD_COMMON_SPEED, 0, &mbps) && mbps);
    return (struct dp_nvml_speed){
        .version = versions[version].version, .is_assumed = !told,
        .rate = told && (usual <= 0 || mbps / 1000. < 0.9 * usual) ? mbps / 1000. : usual,
    };
}

/* ---- chip to chip --------------------------------------------------------------------------- */

double dp_nvml_ask_c2c(const struct dp_nvml *nvml, struct dp_nvml_device *device, int32_t *count)
{
    unsigned links = 0, state, mbps;
    double rate = 0;

    *count = 0;
    if (!dp_nvml_ask_field(nvml, device, DP_NVML_FIELD_C2C_COUNT, 0, &links))
        return 0;
    for (unsigned i = 0; i < links && i < DP_NVML_LINKS_MAX; i++)
        if (dp_nvml_ask_field(nvml, device, DP_NVML_FIELD_C2C_STATUS, i, &state) &&
            state == DP_NVML_ENABLED &&
            dp_nvml_ask_field(nvml, device, DP_NVML_FIELD_C2C_RATE, i, &mbps)) {
            rate += mbps / 1000.;
            ++*count;
        }
    return rate;
}

/* ---- NVLink domains ------------------------------------------------------------------------- */

static void put_hex(const unsigned char *bytes, int count, char *text)
{
    for (int i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* NCCL asks in the same route; NVSwitches of one host have a cluster of zeroes. */
void dp_nvml_ask_domain(const struct dp_nvml *nvml, struct dp_nvml_device *device,
                        char text[DP_NVML_DOMAIN_LEN])
{
    static const unsigned char none[16];
    struct dp_nvml_fabric f = {.version = DP_NVML_FABRIC_VERSION};
    char hex[33];

    *text = '\0';
    if (!DP_NVML_CALL(nvml, nvmlDeviceGetGpuFabricInfoV, device, &f) ||
        f.state != DP_NVML_FABRIC_DONE || f.status != DP_NVML_SUCCESS ||
        !memcmp(f.cluster, none, sizeof(none)))
        return;
    put_hex(f.cluster, 16, hex);
    snprintf(text, DP_NVML_DOMAIN_LEN, "%.8s-%.4s-%.4s-%.4s-%s.%u", hex, hex + 8, hex + 12, hex + 16,
             hex + 20, f.clique);
}
