/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include "base/fail.h"
#include "base/options.h"

#include <stdlib.h>
#include <string.h>

static const struct dp_option table[] = {
    {"WORKERS", DP_OPTION_INT, "0", "threads that copy for the host device",
     offsetof(struct dp_device_options, workers), .min = 0, .max = DP_HOST_MAX_WORKERS},
    {"CUDA_LIBRARY", DP_OPTION_STRING, NULL, "file of the CUDA driver, instead of libcuda.so.1",
     offsetof(struct dp_device_options, cuda_library), .choices = NULL},
};
const struct dp_option_area dp_device_option_area = {"DEVICE", table, 2};

/* The number behind the colon of "cuda:1", or `fallback` if there is none. */
static int parse_number(const char *name, const char *text, int fallback, int *out)
{
    char *end;

    if (!*text) {
        *out = fallback;
        return 0;
    }
    long value = text[0] == ':' ? strtol(text + 1, &end, 10) : -1;
    if (value < 0 || value > 9999 || end == text + 1 || *end)
        return dp_fail(DP_EINVAL, "device '%s': expected host[:workers] or cuda[:ordinal]", name);
    *out = (int)value;
    return 0;
}

int dp_device_open(const char *name, struct dp_device **out)
{
    struct dp_device_options options;
    int number = 0, err;

    err = dp_options_read(&dp_device_option_area, &options);
    if (err)
        return err;
    if (!name)
        return dp_fail(DP_EINVAL, "no device named: expected host[:workers] or cuda[:ordinal]");
    if (!strncmp(name, "cuda", 4)) {
        err = parse_number(name, name + 4, 0, &number);
        return err ? err : dp_device_cuda_open(number, out);
    }
    if (!strncmp(name, "host", 4)) {
        err = parse_number(name, name + 4, (int)options.workers, &number);
        return err ? err : dp_device_host_open(number, out);
    }
    return dp_fail(DP_EINVAL, "device '%s': expected host[:workers] or cuda[:ordinal]", name);
}

void dp_device_close(struct dp_device *dev)
{
    if (dev)
        dev->ops->close(dev);
}
