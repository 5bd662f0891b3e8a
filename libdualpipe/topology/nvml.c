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
