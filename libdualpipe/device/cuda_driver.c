/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_driver.h"

#include "base/clock.h"
#include "base/dl.h"
#include "base/fail.h"

#include <stdio.h>

/* cuMemAlloc is a macro for cuMemAlloc_v2: the argument is expanded before it becomes text. */
#define TEXT_OF(x)       #x
#define TEXT_OF_VALUE(x) TEXT_OF(x)

static const struct dp_dl_symbol symbols[] = {
#define SYMBOL(name) {TEXT_OF_VALUE(name), offsetof(struct dp_cuda_driver, name), false},
    DP_CUDA_FUNCTIONS(SYMBOL)
#undef SYMBOL
#define SYMBOL(name) {TEXT_OF_VALUE(name), offsetof(struct dp_cuda_driver, name), true},
    DP_CUDA_OPTIONAL_FUNCTIONS(SYMBOL)
#undef SYMBOL
    {"cuStreamWaitValue32_v2", offsetof(struct dp_cuda_driver, wait_value), true},
    {"cuStreamWriteValue32_v2", offsetof(struct dp_cuda_driver, write_value), true},
};

/* Both know every error of their own driver, and none of a newer one. */
static const char *error_name(const struct dp_cuda_driver *cu, CUresult result)
{
    const char *name = NULL;

    cu->cuGetErrorName(result, &name);
    return name ? name : "an error without a name";
}

static const char *error_text(const struct dp_cuda_driver *cu, CUresult result)
{
    const char *text = NULL;

    cu->cuGetErrorString(result, &text);
    return text ? text : "no explanation";
}

int dp_cuda_driver_load(const char *library, int ordinal, struct dp_cuda_driver *out)
{
    const char *files[] = {library ? library : "libcuda.so.1", NULL};
    char reason[512];
    void *handle;

    out->ordinal = ordinal;
    if (dp_dl_open(files, symbols, sizeof(symbols) / sizeof(symbols[0]), out, &handle)) {
        snprintf(reason, sizeof(reason), "%s", dp_last_error());
        return dp_fail(DP_ENODEV, "cuda:%d: no CUDA driver: %s", ordinal, reason);
    }
    CUresult result = out->cuInit(0);
    if (result != CUDA_SUCCESS)
        return dp_fail(DP_ENODEV, "cuda:%d: the CUDA driver does not start: %s (%s)", ordinal,
                       error_name(out, result), error_text(out, result));
    return 0;
}

static int nearest_error(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
        return DP_EINVAL;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return DP_ENOMEM;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
        return DP_ENODEV;
    case CUDA_ERROR_NOT_SUPPORTED:
        return DP_EUNSUPPORTED;
    default:
        return DP_EIO;
    }
}

int dp_cuda_check(const struct dp_cuda_driver *cu, CUresult result, const char *fmt, ...)
{
    char what[256];
    va_list args;

    if (result == CUDA_SUCCESS)
        return 0;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return dp_fail(nearest_error(result), "cuda:%d: %s: %s (%s)", cu->ordinal, what,
                   error_name(cu, result), error_text(cu, result));
}

/* The driver's own waits know no deadline. So: ask often while it may be a matter of microseconds, then
 * after sleeps of 1/256 of the time so far, as the wait ends late by one of them. */
int dp_cuda_poll(int (*test)(void *arg), void *arg, int64_t timeout_ns)
{
    const int64_t spin_ns = 50 * DP_NS_PER_US, start = dp_now_ns();
    const int64_t shortest_ns = 10 * DP_NS_PER_US, longest_ns = 500 * DP_NS_PER_US;
    int err;

    while ((err = test(arg)) == DP_EAGAIN) {
        const int64_t waited = dp_now_ns() - start, part_ns = waited / 256;
        if (waited >= timeout_ns)
            return DP_ETIMEDOUT;
        if (waited < spin_ns)
            continue;
        nanosleep(&(struct timespec){0, (long)(part_ns < shortest_ns  ? shortest_ns
                                               : part_ns > longest_ns ? longest_ns
                                                                      : part_ns)},
                  NULL);
    }
    return err;
}
